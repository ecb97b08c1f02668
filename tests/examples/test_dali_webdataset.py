"""DALI's own reader finds each sample of packed tar shards, with its label, once in an epoch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.dali import require_dali
from helpers.support import encoded, image_set, packed, shard_bytes
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "examples/dali_webdataset/loader.py"
IMAGES, BATCH = 22, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several shards of grey images, each as bright as its label says."""
    root = tmp_path_factory.mktemp("grey")
    for number in range(IMAGES):
        (root / f"{number}.jpg").write_bytes(encoded(Image.new("RGB", (48, 36), (11 * number,) * 3)))
    listing = root / "list.txt"
    listing.write_text("".join(f"{number}.jpg {11 * number}\n" for number in range(IMAGES)))
    return packed(listing, root / "out", "tar", shard_size=shard_bytes(listing, 6))


def test_the_example_is_a_program_without_dali() -> None:
    names = {node.name for node in ast.parse(SCRIPT.read_text()).body if isinstance(node, ast.FunctionDef)}
    assert {"built", "main"} <= names


def test_each_epoch_has_each_sample_once_with_its_label(folder: Path) -> None:
    require_dali()
    from dali_webdataset.loader import Batches

    assert len(list(folder.glob("*.tar"))) > 2
    batches = Batches(folder, BATCH, side=16)
    epochs: list[list[int]] = []
    for _ in range(2):
        epochs.append([])
        for images, labels in batches:
            assert images.shape[1:] == (3, 16, 16) and images.dtype == torch.uint8
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert (images.double().mean((1, 2, 3)) - labels).abs().max() <= 2
            epochs[-1] += labels.tolist()
    assert [sorted(epoch) for epoch in epochs] == [[11 * number for number in range(IMAGES)]] * 2
    assert epochs[0] != epochs[1]


def test_ranks_see_all_samples_in_equally_many_batches(folder: Path) -> None:
    require_dali()
    from dali_webdataset.loader import Batches

    parts = [[labels.tolist() for _, labels in Batches(folder, BATCH, rank=rank, world_size=4)] for rank in range(4)]
    assert {len(part) for part in parts} == {2}
    assert {label for part in parts for labels in part for label in labels} == {11 * n for n in range(IMAGES)}


@pytest.mark.complete
def test_a_shard_without_samples_is_left_out(tmp_path: Path) -> None:
    require_dali()
    listing = image_set(tmp_path, 6)
    (tmp_path / "image 3.jpg").write_bytes(b"no image")
    out = packed(listing, tmp_path / "out", "tar", shard_size=1, max_rejects="1")
    done = subprocess.run([sys.executable, SCRIPT, out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 images, ")
