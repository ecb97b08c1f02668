"""For tests of workers over a growing cache: what the processes of a loader hold of its generations."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from helpers.filling import fill

from packtrain._core.generations import Generation, generation_numbers, retire
from packtrain._growing.options import FillOptions
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GrowingDataset, newest
from packtrain._readers.dataset.samples import PackedSamples

VALUES: Final = 4096
"""Numbers in a sample."""
BYTES: Final = 4 * VALUES
PER_SHARD: Final = 4
OPTIONS: Final = FillOptions(budget=40 * PER_SHARD * BYTES, headroom=0.5, shard_size=PER_SHARD * BYTES)
"""A generation has at most 20 shards."""
_SHARD: Final = re.compile(r"/shards/cache-(\d+)\.")


def plain(number: int) -> dict[str, Any]:
    """A sample that is filled with its number."""
    return {"x": np.full(VALUES, number, np.int32), "label": number}


class Cache:
    """A cache of samples by number.

    Args:
        root: Its folder.
        shards: Number of shards in its first generation.
    """

    def __init__(self, root: Path, shards: int = 6) -> None:
        self.root: Final = root
        self._next = 0
        self.grow(shards)

    def grow(self, shards: int = 3) -> None:
        """Writes new shards, and publishes a generation with each."""
        count = shards * PER_SHARD
        first, self._next = self._next, self._next + count

        def samples() -> Iterator[dict[str, Any]]:
            yield from map(plain, range(first, first + count))

        fill(self.root, samples, OPTIONS)

    def last(self) -> Generation:
        """Its newest generation."""
        return Generation.load(self.root, generation_numbers(self.root)[-1])

    def last_numbers(self) -> list[int]:
        """The numbers of the samples of that."""
        return list(range(self.last().first_sample, self.last().end_sample))

    def dataset(self) -> GrowingDataset:
        """Its newest generation."""
        return GrowingDataset(PackedSamples(newest(CacheFiles(self.root)), fields=("x", "label")))

    def older_are_free(self) -> bool:
        """True if nobody has a lease on any generation but the newest."""
        found = [retire(self.root, number) for number in generation_numbers(self.root)[:-1]]
        return all(found)


def check(batch: Any, dataset: GrowingDataset) -> list[int]:
    """The numbers of the samples in a batch, each of which must be what was written, and of the present generation."""
    found: list[int] = batch.label.tolist()
    assert (batch.x == batch.label[:, None]).all()
    generation = dataset.store.generation
    assert all(generation.first_sample <= number < generation.end_sample for number in found)
    return found


def workers() -> list[int]:
    """The process numbers of the workers that live, in the order of the workers."""
    children = sorted(multiprocessing.active_children(), key=lambda process: process.name)
    return [process.pid for process in children if process.pid is not None]


def mapped(process: int, root: Path) -> set[int]:
    """Numbers of the shards of a cache of which a process has the records or the index mapped, or open."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            lines.append(os.readlink(descriptor))
        except FileNotFoundError:
            # It was closed meanwhile.
            continue
    # An earlier test may have left garbage that refers to another cache.
    return {int(found[1]) for line in lines if str(root) in line and (found := _SHARD.search(line))}


def has_left(process: int, dataset: GrowingDataset) -> bool:
    """True if a process has nothing open that is older than a dataset's generation."""
    return min(mapped(process, dataset.store.path), default=1 << 62) >= dataset.store.generation.first_shard
