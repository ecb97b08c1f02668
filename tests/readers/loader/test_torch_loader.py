"""Laws of use in torch's own DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.batching import assert_same
from helpers.support import FORMATS, START_METHODS, flip, packed, shard_bytes, sources
from helpers.transforms import negative, to_tensor
from torch.utils.data import DataLoader

from packtrain import PackedDataset, concat, open_dataset
from packtrain._core.options import LabelSpec
from packtrain.errors import CorruptRecord

Batches = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="module")
def folders(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The session's images in every format, several shards each."""
    folder, size = tmp_path_factory.mktemp("loader"), shard_bytes(images, 5)
    return {name: packed(images, folder / name, name, shard_size=size) for name in FORMATS}


def opened(folder: Path, **options: Any) -> PackedDataset:
    return open_dataset(folder, to_tensor, negative, **options)


def epoch(loader: DataLoader[Any]) -> Batches:
    return [(images.clone(), labels.clone()) for images, labels in loader]


@START_METHODS
def test_workers_give_what_no_workers_give_epoch_after_epoch(folders: dict[str, Path], method: str) -> None:
    # One dataset over all formats and both ways of reading, so that two workers test all of them.
    dataset = concat([opened(folder, io=io) for folder in folders.values() for io in ("mmap", "pread")])
    dataset.record(0)  # some shards are open before the workers start
    expected = epoch(DataLoader(dataset, batch_size=5))
    assert sum(len(labels) for _, labels in expected) == len(dataset) == 6 * 12
    options: dict[str, Any] = {"batch_size": 5, "num_workers": 2, "persistent_workers": True}
    loader = DataLoader(dataset, multiprocessing_context=method, **options)
    for _ in range(3):
        assert_same(epoch(loader), expected)


def test_default_collate_stacks_vector_labels(images: Path, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(images.read_text().replace(".jpg ", ".jpg 0.5 "))
    options: dict[str, Any] = {"labels": LabelSpec("float", 2), "root": images.parent}
    dataset = opened(packed(tmp_path / "train.txt", tmp_path / "out", "tar", **options))
    expected = [[-0.5, -source.label] for source in sources(images)]
    for workers in (0, 2):
        (batch,) = epoch(DataLoader(dataset, batch_size=12, num_workers=workers))
        assert batch[0].shape == (12, 3, 12, 10)
        assert (batch[1].dtype, batch[1].tolist()) == (torch.float32, expected)


@START_METHODS
def test_a_workers_error_arrives_as_what_it_is(images: Path, tmp_path: Path, method: str) -> None:
    out = packed(images, tmp_path / "out", "tar", seed=None)
    dataset = opened(out)
    flip(out / "train-000000.tar", int(dataset.store.index["offset"][3]) + 50)
    iterator: Any = iter(DataLoader(dataset.subset([3]), num_workers=1, multiprocessing_context=method))
    with pytest.raises(CorruptRecord, match=r"row 3 \(line 3, 'image 3\.jpg', in train-000000\.tar\) is damaged"):
        next(iterator)
    iterator._shutdown_workers()  # the garbage collector would have to wait five seconds for the worker
