"""Publishes the generations of a cache, and deletes the shards that are in none of them any more."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from packtrain._core.errors import CorruptFile
from packtrain._core.files import fsync_folder
from packtrain._core.generations import (
    GENERATIONS,
    REMEDY,
    SHARDS,
    CacheInfo,
    Generation,
    generation_numbers,
    generation_path,
    retire,
    shard_path,
)
from packtrain._core.options import FORMATS

from .cache_folder import clear_up, shard_number
from .file_users import is_open, who_maps, who_reads
from .shard import FinishedShard, allocated, shard_files

_MOST_NAMED: Final = 3


class Publisher:
    """Publisher of a cache's generations, of which there is one at a time.

    Removes the shards that an earlier filler has left unpublished.

    Args:
        root: The cache's folder.
        info: Content of its cache.json.

    Raises:
        CorruptFile: A generation is damaged, or a shard of the newest one; the message says what to do.
    """

    def __init__(self, root: Path, info: CacheInfo) -> None:
        self._root: Final = root
        self._info: Final = info
        self._held = {number: Generation.load(root, number) for number in generation_numbers(root)}
        clear_up(root, self.newest.end_shard)
        numbers = set(map(shard_number, (root / SHARDS).iterdir())) - {-1}
        self._allocated = {number: self._measure(number) for number in sorted(numbers)}
        self._check_newest()

    @property
    def newest(self) -> Generation:
        """The newest generation; an empty one, which is not on disk, if there is none."""
        return self._held[max(self._held)] if self._held else Generation(-1, 0, 0, 0, (), (), ())

    @property
    def allocated(self) -> int:
        """Bytes of all shards that are on disk, with the files beside them."""
        return sum(self._allocated.values())

    @property
    def oldest_ns(self) -> int:
        """Time of the oldest shard of the newest generation, in nanoseconds since 1970; 0 if there is no generation."""
        newest = self.newest
        path = shard_path(self._root, FORMATS[self._info.format].suffix, newest.first_shard)
        return path.stat().st_mtime_ns if newest.records else 0

    def publish(self, shard: FinishedShard, most: int, seen: int | None) -> int:
        """Publish a generation that ends with this shard.

        Args:
            shard: The shard.
            most: The most bytes of shards that the generation may have; it leaves out its oldest ones. It has at least
                the new one.
            seen: Shards that end after the sample of this number are not left out; None: any shard may be.

        Returns:
            Bytes that the shard takes, with the files beside it.
        """
        last = self.newest
        assert shard.number == last.end_shard
        self._allocated[shard.number] = self._measure(shard.number)
        grown = replace(
            last,
            records=(*last.records, shard.records),
            bytes=(*last.bytes, shard.bytes),
            index_crc32c=(*last.index_crc32c, shard.index_crc32c),
        )
        self._add(grown.without_oldest(self._too_many(grown, most, seen)[0]))
        return self._allocated[shard.number]

    def withdraw(self, shard: FinishedShard) -> bool:
        """Forget a shard whose publication failed. Return False if it was published nevertheless."""
        last = self.newest
        if last.end_shard > shard.number:
            return False
        if generation_path(self._root, last.number + 1).exists():
            self._held[last.number + 1] = Generation.load(self._root, last.number + 1)
            return False
        self._allocated.pop(shard.number, None)
        return True

    def shrink(self, most: int, seen: int | None) -> bool:
        """Publish the newest generation without its oldest shards if it exceeds `most` bytes; False if it does not."""
        last = self.newest
        count, _ = self._too_many(last, most, seen)
        if not count:
            return False
        self._add(last.without_oldest(count))
        return True

    def fits(self, more: int, most: int, seen: int) -> bool:
        """Check whether a generation with `more` bytes fits `most` bytes and keeps all shards that nobody has seen."""
        return self._too_many(self.newest, most - more, seen)[1] <= most - more

    def evict(self) -> tuple[int, int]:
        """Retire the generations that nobody needs, and delete unneeded shards that no process has open.

        Returns:
            Number of deleted shards, and their size in allocated blocks, with the files beside them.
        """
        before = len(self._held)
        for number in sorted(self._held)[:-1]:
            if retire(self._root, number):
                del self._held[number]
        unneeded = self._unneeded()
        if unneeded and len(self._held) < before:
            # After a crash no generation may come back whose shards do not.
            fsync_folder(self._root / GENERATIONS)
        count = total = 0
        for number in unneeded:
            files = shard_files(self._root, self._info, number)
            if not any(map(is_open, files)):
                for path in files:
                    path.unlink(missing_ok=True)
                count, total = count + 1, total + self._allocated.pop(number)
        return count, total

    @property
    def holds_older(self) -> bool:
        """True if an older generation is still kept, or a shard is still open that is in no generation."""
        return len(self._held) > 1 or bool(self._unneeded())

    def holders(self) -> str:
        """Name the processes that keep shards outside the newest generation, for a message; empty if there are none."""
        found = [text for number in sorted(self._held)[:-1] if (text := who_reads(self._root, number))]
        for number in self._unneeded()[:_MOST_NAMED]:
            files = shard_files(self._root, self._info, number)
            found += [who_maps(path) for path in files if is_open(path)][:1]
        more = len(found) - _MOST_NAMED
        return "; ".join(found[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")

    def _unneeded(self) -> list[int]:
        """Numbers of the shards on disk that are in no generation, oldest first."""
        held = [range(each.first_shard, each.end_shard) for each in self._held.values()]
        return sorted(number for number in self._allocated if not any(number in each for each in held))

    def _too_many(self, generation: Generation, most: int, seen: int | None) -> tuple[int, int]:
        """Return how many of its oldest shards a generation leaves out to fit `most`, and the bytes of the others."""
        total = sum(map(self._allocated.__getitem__, range(generation.first_shard, generation.end_shard)))
        end, count = generation.first_sample, 0
        for records in generation.records[:-1]:
            end += records
            if total <= most or (seen is not None and end > seen):
                break
            total -= self._allocated[generation.first_shard + count]
            count += 1
        return count, total

    def _add(self, shards: Generation) -> None:
        generation = replace(shards, number=self.newest.number + 1, created_ns=time.time_ns())
        generation.publish(self._root)
        self._held[generation.number] = generation

    def _measure(self, number: int) -> int:
        return sum(map(allocated, shard_files(self._root, self._info, number)))

    def _check_newest(self) -> None:
        newest = self.newest
        for place, size in enumerate(newest.bytes):
            number = newest.first_shard + place
            container_path, index, *_ = shard_files(self._root, self._info, number)
            try:
                whole = container_path.stat().st_size == size and index.exists()
            except FileNotFoundError:
                whole = False
            if not whole:
                raise CorruptFile(
                    f"{container_path} or its index is missing or has another size than generation {newest.number} "
                    f"says. {REMEDY}",
                    file=container_path.name,
                )
