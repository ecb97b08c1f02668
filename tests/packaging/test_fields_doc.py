"""The examples of docs/fields.md can be typed: its commands pack its list, and its programs run on what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.documents import blocks, run
from helpers.support import encoded, picture
from PIL import Image

DOCUMENT = Path(__file__).parents[2] / "docs/fields.md"
COPIES = 8
"""Repetitions of the samples of the document's list, so that there is a batch of them."""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Names that its programs define: run on its list, with the files that it names, behind its commands."""
    folder = tmp_path_factory.mktemp("fields")
    (table,) = (block.text for block in blocks(DOCUMENT.read_text()) if block.text.startswith("path,"))
    head, *rows = table.splitlines()
    (folder / "train.csv").write_text("\n".join([head, *rows * COPIES]) + "\n")
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number in range(len(rows)):
        (folder / f"images/{number}.jpg").write_bytes(encoded(picture(number, 160, 120)))
        Image.fromarray(np.full((120, 160), number, np.uint8)).save(folder / f"masks/{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outcome = run(DOCUMENT, folder)
        assert len(outcome.printed) == 2
        yield outcome.names


@pytest.mark.complete
def test_its_programs_run(names: dict[str, Any]) -> None:
    assert len(names["dataset"]) == 3 * COPIES  # none of them was refused
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
