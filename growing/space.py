"""The most bytes that a shard can take, and the room that there is for them.

All figures are of allocated blocks. Bounds err on the large side: what a shard takes is reserved before its first byte
is written, and the folder must not exceed its budget at any moment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from packtrain._core.errors import PackError
from packtrain._core.generations import CacheInfo, index_dtype
from packtrain._core.manifest import CACHE, Format
from packtrain._core.mounts import file_system
from packtrain._core.schema import Schema
from packtrain._core.sizes import size
from packtrain._formats.writing import NewSample, shard_space
from packtrain._storage.staging.capacity import FileSystem, capacity
from packtrain._storage.staging.documents import allocated_bytes
from packtrain._storage.staging.folder import Folder

_NUMBER_LINE: Final = 24
"""Characters of a number in a document, which has a line for each."""
_SMALL_FILES: Final = 40
"""Blocks for small files: status, log, folders that grow, reports of readers that begin."""
_LEAST_BLOCK: Final = 4096


class ShardCost:
    """The most bytes that samples take in a shard and in the files beside it.

    Args:
        format: Container format.
        schema: Schema of the samples.
        block: Size of the blocks that the file system allocates, in bytes.
        ahead: How many times its size a file may take while it is written.

    Attributes:
        fixed: Bytes of a shard without samples.
    """

    def __init__(self, format: Format, schema: Schema, block: int, ahead: int = 1) -> None:
        columns, self._container = index_dtype(schema), shard_space(format, schema)
        self._times: Final = ahead * self._container.times
        self._each = columns.itemsize + self._container.sample
        header = 512 + 128 * len(columns.names or ())
        self.fixed: Final = self._container.fixed + header + block * (6 + 2 * self._container.spools)

    def sample(self, sample: NewSample) -> int:
        """The most bytes that a sample adds to a shard and to the files beside it."""
        return self._each + sum(self._container.record(each.size) for each in sample.records if each is not None)

    def peak(self, samples: int) -> int:
        """The most bytes that a shard takes at any moment while it is written, if its samples add `samples` bytes."""
        # A file in many pieces has blocks that say where these are.
        return self.fixed + self._times * (samples + samples // 128)


class Space:
    """The bytes that a cache takes, and the room for more.

    Args:
        root: The cache's folder, which holds a cache already.
        info: Content of its cache.json.

    Attributes:
        cost: The bytes that samples take.
    """

    def __init__(self, root: Path, info: CacheInfo) -> None:
        self._root = root
        self._folder = Folder.open(root)
        # What a small file takes says more than statvfs: some file systems allocate several blocks at a time.
        smallest = (root / CACHE).stat().st_blocks * 512
        self._block: Final = max(_LEAST_BLOCK, os.statvfs(root).f_frsize, smallest)
        # XFS allocates as much again as a growing file has, and takes it back when the file is closed.
        ahead = 2 if file_system(root) == "xfs" else 1
        self.cost: Final = ShardCost(info.format, info.schema, self._block, ahead)

    @property
    def used(self) -> int:
        """Bytes that everything in the folder takes now."""
        return allocated_bytes(self._folder)

    def check_folder(self) -> None:
        """Check that the cache's path still leads to the same folder. Another filler may work in a new one.

        Raises:
            PackError: It does not.
        """
        try:
            same = os.path.samestat(self._root.stat(), os.fstat(self._folder.fileno()))
        except FileNotFoundError:
            same = False
        if not same:
            raise PackError(
                f"{self._root} was removed, moved or replaced while it was filled. The filler has left the folder "
                "that is there now as it is: run the same command again to fill that one"
            )

    def need(self, shard_bytes: int, shards: int) -> int:
        """Bytes to reserve before a shard is begun.

        Args:
            shard_bytes: What its samples add at most, see `ShardCost.sample`.
            shards: Number of shards of the generation that will end with it.
        """
        document_blocks = -(-(1024 + 3 * _NUMBER_LINE * (shards + 1)) // self._block)
        return self.cost.peak(shard_bytes) + (2 * document_blocks + _SMALL_FILES) * self._block

    def shortage(self, need: int) -> str:
        """Say why `need` bytes more do not fit the file system, or the memory that holds it; empty if they do."""
        found = capacity(FileSystem.inspect(self._root), need=need)
        if found.bytes >= need:
            return ""
        where = {"memory": "the machine's memory", "cgroup": "the memory limit of this job's cgroup"}
        place = where.get(found.bound, "the file system")
        return (
            f"{place} has room for {size(max(0, found.bytes))} more in {self._root}, and a shard takes up to "
            f"{size(need)}: make room there"
        )
