"""The most bytes that a shard can take, and the room that there is for them.

All figures are of allocated blocks. Bounds err on the large side: what a shard takes is reserved before its first byte
is written, and the folder must not exceed its budget at any moment.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from packtrain._core.errors import PackError
from packtrain._core.generations import CacheInfo, index_dtype
from packtrain._core.manifest import CACHE, Format
from packtrain._core.mounts import file_system
from packtrain._core.schema import Schema
from packtrain._core.sizes import size
from packtrain._formats.tar.reader import BLOCK, KEY_DIGITS
from packtrain._formats.writing import NewSample
from packtrain._storage.staging.capacity import FileSystem, capacity
from packtrain._storage.staging.documents import allocated_bytes
from packtrain._storage.staging.folder import Folder

_DIGITS: Final = 24
"""Characters of a number in a text, with a sign or a separator."""
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
        fields = len(schema.fields)
        values = 0 if schema.labels.kind == "none" else (schema.labels.shape(1)[1:] or (1,))[0]
        label = values * _DIGITS
        columns = index_dtype(schema)
        self._format: Final = format
        # HDF5 keeps all fields but the image in files without a name until it copies them into the shard.
        self._times: Final = ahead * (2 if format == "hdf5" and schema.others else 1)
        spools = len(schema.others) if format == "hdf5" else 0
        self._each = columns.itemsize
        container = 0
        if format == "tar":
            names = sum(BLOCK + 2 * (len(field.prefix) + 8) + KEY_DIGITS + 3 * _DIGITS for field in schema.fields)
            self._each += names + (BLOCK + _padded(label, BLOCK) + KEY_DIGITS + 4 * _DIGITS if values else 0)
            container = 3 * BLOCK
        elif format == "hdf5":
            # The number, and for each field a checksum, an end, a shape and whether it is there.
            self._each += 8 + 8 * values + fields * (4 + 8 + 12 + 1)
            # With everything aligned, each of libhdf5's structures takes a multiple of a page.
            container = 4096 * (32 + 32 * fields)
        else:
            self._each += _lmdb(label) if values else 0
            container = mmap.PAGESIZE * 16 * (2 + fields)
        header = 512 + 128 * len(columns.names or ())
        self.fixed: Final = container + header + block * (6 + 2 * spools)

    def sample(self, sample: NewSample) -> int:
        """The most bytes that a sample adds to a shard and to the files beside it."""
        total = self._each
        if self._format == "hdf5":
            return total + sample.size
        for record in sample.records:
            if record is not None:
                length = record.size
                total += length + -length % BLOCK if self._format == "tar" else _lmdb(length)
        return total

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
                f"{self._root} was removed, moved or replaced while it was filled. What is there now is left alone: "
                "run the same command again to fill it"
            )

    def need(self, shard_bytes: int, shards: int) -> int:
        """Bytes to reserve before a shard is begun.

        Args:
            shard_bytes: What its samples add at most, see `ShardCost.sample`.
            shards: Number of shards of the generation that will end with it.
        """
        document = _padded(1024 + 3 * _NUMBER_LINE * (shards + 1), self._block)
        return self.cost.peak(shard_bytes) + 2 * document + _SMALL_FILES * self._block

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


def _lmdb(length: int) -> int:
    """The most bytes that a value of this length takes in LMDB's pages, with the nodes that lead to it."""
    page = mmap.PAGESIZE
    node = length + 8 + 16
    # Pages that were split are at least a fourth full. A value for which a page has no two places has pages of its own.
    if node <= page // 2 - 16:
        return min(page, 4 * node)
    return _padded(length + 16, page) + 4 * 48


def _padded(length: int, block: int) -> int:
    return length + -length % block
