"""Publishes generations, and deletes the shards that none of them has any more."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final

from packtrain._core.generations import (
    GENERATIONS,
    READERS,
    SHARDS,
    TEMPORARY,
    CacheInfo,
    Generation,
    generation_numbers,
    retire,
)

from .shard import FinishedShard, remove_shard


class Generations:
    """The generations of a cache, as its filler sees them. Nobody else may change them meanwhile.

    Args:
        root: The cache's folder.
        info: What the cache holds.
        most: The most bytes of shards that a generation may have; it leaves out its oldest ones.
    """

    def __init__(self, root: Path, info: CacheInfo, most: int) -> None:
        self._root: Final = root
        self._info: Final = info
        self._most: Final = most
        self._held = {number: Generation.load(root, number) for number in generation_numbers(root)}
        self._clear_up()

    @property
    def newest(self) -> Generation:
        """The newest generation; an empty one, which is not on disk, if there is none."""
        return self._held[max(self._held)] if self._held else Generation(-1, 0, 0, 0, (), (), ())

    def publish(self, shard: FinishedShard) -> Generation:
        """Publishes a generation that ends with this shard."""
        last = self.newest
        assert shard.number == last.end_shard
        grown = Generation(
            last.number + 1,
            time.time_ns(),
            last.first_shard,
            last.first_sample,
            (*last.records, shard.records),
            (*last.bytes, shard.bytes),
            (*last.index_crc32c, shard.index_crc32c),
        )
        total, count = sum(grown.bytes), 0
        while total > self._most and count < len(grown.bytes) - 1:
            total -= grown.bytes[count]
            count += 1
        found = grown.without_oldest(count)
        found.publish(self._root)
        self._held[found.number] = found
        return found

    def evict(self) -> int:
        """Retires the generations that nobody needs, and deletes the shards that are in none any more.

        Returns:
            Number of shards that were deleted.
        """
        before = min((held.first_shard for held in self._held.values()), default=0)
        for number in sorted(self._held)[:-1]:
            if retire(self._root, number):
                del self._held[number]
        after = min((held.first_shard for held in self._held.values()), default=0)
        for number in range(before, after):
            remove_shard(self._root, self._info, number)
        return after - before

    def _clear_up(self) -> None:
        """Removes what a filler that was killed has left: shards in no generation, and unfinished ones."""
        shutil.rmtree(self._root / TEMPORARY, ignore_errors=True)
        for name in (TEMPORARY, SHARDS, GENERATIONS, READERS):
            (self._root / name).mkdir(exist_ok=True)
        known = range(min((held.first_shard for held in self._held.values()), default=0), self.newest.end_shard)
        for path in (self._root / SHARDS).iterdir():
            number = int(path.name.partition(".")[0].rpartition("-")[2])
            if number not in known:
                path.unlink()
