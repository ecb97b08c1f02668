"""Laws of `check="first"` in a loader: whichever processes read, damage that is there at first is found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.support import encoded, flip, packed, picture

from packtrain import Loader, open_dataset
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.image_dataset import PackedDataset
from packtrain.errors import CorruptRecord
from packtrain.transforms import CenterCrop

COUNT = 32
DAMAGED = 21


@pytest.fixture(scope="module", params=["raw", pytest.param("verbatim", marks=pytest.mark.stress)])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(COUNT):
        (folder / f"{number}.png").write_bytes(encoded(picture(number, 12, 10), "PNG"))
    (folder / "train.txt").write_text("".join(f"{number}.png {number}\n" for number in range(COUNT)))
    return packed(folder / "train.txt", folder / "out", "tar", store=StoreOptions(request.param), shard_size=4000)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A dataset that may be damaged."""
    return Path(shutil.copytree(original, tmp_path / "dataset"))


def harm(dataset: PackedDataset, row: int = DAMAGED) -> None:
    """Changes a byte of a record that is no matter to a decoder: a pixel, or the checksum of a chunk of a PNG."""
    store: Any = dataset.store
    shard = store.path / store.manifest.shards[int(store.index["shard"][row])].name
    offset, length = (int(store.index[name][row]) for name in ("offset", "length"))
    flip(shard, offset + length - 1)


def loader(dataset: PackedDataset, workers: int, context: str | None) -> Loader:
    return Loader(dataset, 4, shuffle=True, seed=1, num_workers=workers, multiprocessing_context=context)


def labels(batches: Iterator[Any]) -> list[int]:
    return sorted(torch.cat([batch[1] for batch in batches]).tolist())


@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.complete)]
)
def test_damage_is_found_at_first_and_not_looked_for_later(folder: Path, workers: int, context: str | None) -> None:
    dataset = open_dataset(folder, CenterCrop(8), check="first")
    harm(dataset)
    with loader(dataset, workers, context) as batches:
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=f"row {DAMAGED} "):
                list(batches)
        harm(dataset)  # mended
        for _ in range(2):
            assert labels(iter(batches)) == list(range(COUNT))
        harm(dataset)
        for _ in range(3):
            # Whichever worker has each record now, some process has found it sound.
            assert labels(iter(batches)) == list(range(COUNT))
        # So the process that has not read it knows that, too.
        assert len(dataset.record(DAMAGED))
    with loader(dataset, workers, context) as batches:
        assert labels(iter(batches)) == list(range(COUNT)), "other workers of the same run know it as well"
    anew = open_dataset(folder, CenterCrop(8), check="first")
    with loader(anew, workers, context) as batches, pytest.raises(CorruptRecord, match=f"row {DAMAGED} "):
        list(batches)
