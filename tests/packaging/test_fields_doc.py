"""What docs/fields.md shows can be typed: its commands pack its list, and its programs run on what comes out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.support import encoded, picture
from PIL import Image

TEXT = (Path(__file__).parents[2] / "docs/fields.md").read_text()
COPIES = 8
"""How often the samples of the document's list are repeated, so that there is a batch of them."""


def blocks(language: str) -> list[str]:
    """The code blocks of the document that are marked with a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [text for marked, text in found if marked == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The list of the document with the files that it names, and what its commands make of it."""
    folder = tmp_path_factory.mktemp("fields")
    (table,) = (block for block in blocks("") if block.startswith("path,"))
    head, *rows = table.splitlines()
    (folder / "train.csv").write_text("\n".join([head, *rows * COPIES]) + "\n")
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number in range(len(rows)):
        (folder / f"images/{number}.jpg").write_bytes(encoded(picture(number, 160, 120)))
        Image.fromarray(np.full((120, 160), number, np.uint8)).save(folder / f"masks/{number}.png")
    commands = [line for block in blocks("") for line in block.splitlines() if line.startswith("packtrain ")]
    assert len(commands) == 2
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and "refused" not in done.stderr, done.stderr
    return folder


@pytest.fixture
def names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the programs of the document define, run one after the other."""
    monkeypatch.chdir(folder)
    found: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/fields.md", "exec"), found)
    return found


def test_its_programs_run(names: dict[str, Any]) -> None:
    batch = names["batch"]
    assert batch._fields == ("image", "mask", "caption", "boxes", "row", "present")
    assert batch.image.shape == (8, 3, 224, 224) and batch.image.dtype == torch.uint8
    assert batch.mask.shape == (8, 224, 224) and batch.mask.dtype == torch.uint8
    assert [len(boxes) for boxes in batch.boxes] == [{0: 1, 1: 2, 2: 0}[row % 3] for row in batch.row.tolist()]
    assert batch.present.boxes.tolist() == [row % 3 != 2 for row in batch.row.tolist()]
    assert [caption == "" for caption in batch.caption] == [row % 3 == 1 for row in batch.row.tolist()]


def test_boxes_are_moved_as_pixels_are(names: dict[str, Any]) -> None:
    crop = torch.tensor([10, 20, 50, 100, 1])
    boxes = torch.tensor([[10, 20, 60, 120], [20, 20, 30, 45], [0, 0, 10, 300]])
    # The second begins a fifth of the width from the left and ends two fifths from it, so after mirroring from the
    # right; the third lies outside.
    wanted = torch.tensor([[0.0, 0, 100, 100], [60, 0, 80, 25]])
    assert torch.equal(names["moved"](boxes, crop, 100), wanted)
