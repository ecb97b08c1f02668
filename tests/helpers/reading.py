"""A dataset in an object store that is a folder, opened as users open it; its chunks have a few records."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.local_objects import SPEC, STORE, LocalObjects
from helpers.streaming import Remote, remote_in
from helpers.support import encoded, packed, picture

from packtrain import Loader, open_dataset
from packtrain._readers.dataset import opened
from packtrain._readers.dataset.image_dataset import ImageDataset, PackedDataset
from packtrain._storage.streams import cutting, opening
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.opening import open_stream
from packtrain.transforms import CenterCrop, Resize

URL = "s3://bucket/set"
ROWS = 600
TRANSFORM = [Resize(24), CenterCrop(16)]
PLENTY = 1 << 24
"""A budget for everything."""


class Streamed:
    """A remote dataset, and the same on this machine.

    Args:
        remote: The store.
    """

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.store = remote.store

    def open(self, budget: str | int | None = PLENTY, **options: Any) -> PackedDataset:
        """Opens it through a cache."""
        return open_dataset(URL, TRANSFORM, stage=self.remote.place, budget=budget, **options)

    def local(self, **options: Any) -> PackedDataset:
        """Opens it where it lies."""
        return open_dataset(self.remote.dataset, TRANSFORM, **options)

    def part(self, share: float) -> int:
        """The budget that is enough for a share of the chunks."""
        cache = cache_of(self.open())
        total = int((-(-cache.table.bytes // 4096) * 4096).sum())
        cache.close()
        return int(cache.state()["overhead"] + share * total)


def cache_of(dataset: PackedDataset) -> ChunkCache:
    """The cache of a dataset."""
    assert dataset.store.chunks is not None
    return dataset.store.chunks


@contextmanager
def streamed_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streamed]:
    """A dataset in a store in this folder, with chunks of a few records."""
    monkeypatch.setenv(STORE, "")
    monkeypatch.setattr(cutting, "ENOUGH", 3_000)
    monkeypatch.setattr(cutting, "MOST", 4_096)
    monkeypatch.setattr(opened, "object_store", LocalObjects)
    monkeypatch.setattr(opening, "open_stream", partial(open_stream, fetch_with=SPEC))
    with remote_in(folder) as remote:
        shutil.copytree(small_dataset(), remote.dataset)
        yield Streamed(remote)


@cache
def small_dataset(rows: int = ROWS) -> Path:
    """The folder of a dataset, to be left as it is."""
    folder = Path(tempfile.mkdtemp(prefix="packtrain-test-"))
    atexit.register(shutil.rmtree, folder)
    for number in range(rows):
        (folder / f"{number}.jpg").write_bytes(encoded(picture(number, 30 + number % 7, 24 + number % 5)))
    (folder / "train.txt").write_text("".join(f"{number}.jpg {number % 10}\n" for number in range(rows)))
    return packed(folder / "train.txt", folder / "out", "tar", shard_size=100_000)


def epoch_of(loader: Loader) -> list[tuple[int, bytes, int]]:
    """Row, pixels and label of each sample of an epoch; the loader must have ``fields=("row",)``."""
    return [
        (row, image.numpy().tobytes(), label)
        for images, labels, rows in loader
        for row, image, label in zip(rows.tolist(), images, labels.tolist(), strict=True)
    ]


def content(dataset: ImageDataset) -> list[tuple[int, bytes, int]]:
    """The same of a dataset, row by row."""
    return [(row, np.asarray(dataset[row][0]).tobytes(), dataset[row][1]) for row in range(len(dataset))]
