"""The open shards and indexes of a growing cache, which serve any generation."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.arguments import choice
from packtrain._core.errors import CorruptFile, CorruptRecord, GenerationGone
from packtrain._core.generations import (
    REMEDY,
    SHARDS,
    CacheInfo,
    Generation,
    Table,
    advising,
    index_dtype,
    index_path,
    shard_path,
)
from packtrain._core.index import ROWS_PER_BLOCK
from packtrain._core.mounts import is_network
from packtrain._core.npy import table_header
from packtrain._core.opening import open_regular
from packtrain._core.options import FORMATS
from packtrain._core.overriding import override
from packtrain._core.paths import local_path
from packtrain._core.problems import reading
from packtrain._core.schema import IMAGE

from .records import Faults, FieldRecords
from .shards import IO, Io, ShardFile, Shards, descriptor_budget
from .sound import Check

_MOST_INDEX_BYTES: Final = 4 << 30
_INDEXES: Final = 0.25
"""Part of the descriptors for mapped indexes. Further ones are copied: they are small, and shards are not."""


class CacheFiles:
    """The open shards and indexes of a cache, by shard number. Shards never change, so they serve any generation.

    Args:
        root: The cache's folder.
        io: ``"mmap"``, ``"pread"`` or ``"auto"``, see `RecordStore`.
        check: Compare each record with its checksum when it is read. ``"first"`` is the same as True.

    Attributes:
        root: The cache's folder.
        info: What the cache holds.
        schema: What samples hold.
        io: ``"mmap"`` or ``"pread"``.
        check: Whether each record is compared with its checksum when it is read.
        opened: The shards that are open.
        read_bytes: Bytes of records read since the cache was opened.
        waited_ns: 0: nothing is fetched from an object store.

    Raises:
        NotADataset: There is no cache.
        UnsupportedVersion: It was written by a newer packtrain.
        CorruptFile: Its description is damaged.
        UnreadableFile: It cannot be read.
    """

    def __init__(self, root: str | os.PathLike[str], io: str = "auto", *, check: Check = True) -> None:
        choice("io", io, IO)
        self.root: Final = local_path(root)
        self.info: Final = CacheInfo.load(self.root)
        self.schema: Final = self.info.schema
        self.check: Final = bool(check)
        self.opened: Final[dict[int, ShardFile]] = {}
        self.read_bytes = 0
        self.waited_ns: Final = 0
        self._given = io
        self._suffix = FORMATS[self.info.format].suffix
        self._dtype = index_dtype(self.schema)
        self._shards: dict[int, CacheShard] = {}
        mapped = io == "mmap" or (io == "auto" and not is_network(self.root))
        self.io: Final[Io] = "mmap" if mapped else "pread"

    def __reduce__(self) -> tuple[Callable[..., CacheFiles], tuple[str, str, bool, str]]:
        return _reopened, (os.fspath(self.root), self._given, self.check, self.info.id)

    def shard(self, number: int, generation: Generation) -> CacheShard:
        """Return a shard of a generation with its index.

        Raises:
            CorruptFile: Its index is missing or damaged.
            UnreadableFile: Its index cannot be read.
        """
        shard = self._shards.get(number)
        # Another thread may have been faster.
        return self._shards.setdefault(number, self._open_shard(number, generation)) if shard is None else shard

    def forget(self, before: int) -> None:
        """Close all shards with lower numbers. Views that were handed out stay valid, and so do other threads' reads.

        A generation that has such a shard opens it again as it needs it.
        """
        # Copies, because other threads may open shards meanwhile.
        for kept in (self._shards, self.opened):
            for shard in list(kept):
                if shard < before:
                    kept.pop(shard, None)

    def require_same(self) -> None:
        """Make sure that the folder holds the cache that was opened.

        Raises:
            GenerationGone: It holds another one by now.
            NotADataset: It holds none any more.
        """
        if CacheInfo.load(self.root) != self.info:
            raise _replaced(self.root)

    def _open_shard(self, number: int, generation: Generation) -> CacheShard:
        place = number - generation.first_shard
        file = index_path(self.root, number)
        with advising(REMEDY, f"{SHARDS}/{file.name}"):
            index = self._index(file, number, generation, place)
        path = shard_path(self.root, self._suffix, number)
        shards = _OneShard(self.root, path, generation.bytes[place], self.io, self.opened, 1 - _INDEXES)
        faults = _CacheShardFaults(self.root, path.name, index)
        records = {
            field.name: FieldRecords(field, index, shards, faults, check=self.check, bare=self.info.bare)
            for field in self.schema.fields
        }
        return CacheShard(index, faults, records)

    def _index(self, path: Path, number: int, generation: Generation, place: int) -> ShardIndex:
        """Open the index of a shard, and check it as a whole."""
        records, checksum = generation.records[place], generation.index_crc32c[place]
        header = table_header(self._dtype, records)
        size = len(header) + records * self._dtype.itemsize
        if size > _MOST_INDEX_BYTES:
            raise CorruptFile(f"{path} is damaged: {records} samples are too many for one shard")
        mapped = len(self._shards) < descriptor_budget() * _INDEXES
        with reading(path), os.fdopen(open_regular(path, below=self.root), "rb") as file:
            # An empty file cannot be mapped.
            mapped = mapped and os.fstat(file.fileno()).st_size == size
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if mapped else file.read(size + 1)
        if len(data) != size:
            raise CorruptFile(f"{path} is damaged: it does not have {size} bytes")
        if data[: len(header)] != header:
            raise CorruptFile(f"{path} is damaged: its header is not that of {records} samples of this cache")
        if crc32c(data) != checksum:
            raise CorruptFile(f"{path} is damaged: its checksum is not the one in generation {generation.number}")
        table = np.frombuffer(data, self._dtype, records, len(header))
        first = generation.first_sample + sum(generation.records[:place])
        if (table["number"][0], table["number"][-1]) != (first, first + records - 1):
            raise CorruptFile(f"{path} is damaged: it does not hold the samples from {first} on")
        return ShardIndex(table, number)


class _OneShard(Shards):
    """The file of one shard, which is kept open among all those of its cache."""

    def __init__(self, root: Path, path: Path, size: int, io: Io, opened: dict[int, ShardFile], share: float) -> None:
        super().__init__(io, opened, share)
        self._open = partial(open_regular, path, below=root)
        self._size = size

    @override
    def open(self, number: int) -> ShardFile:
        return self._opened(number, self._open, self._size)


class ShardIndex:
    """The index of one shard, in the form that records need it in. It was checked as a whole.

    Args:
        table: A row per sample, see `index_dtype`.
        number: Number of the shard.
        prefix: What the names of the columns begin with; it is left out wherever a name is given.

    Attributes:
        table: A row per sample.
        unchecked: 0 for each block of rows: nothing is left to check.
    """

    def __init__(self, table: Table, number: int, prefix: str = "") -> None:
        self.table: Final = table
        self.unchecked = bytearray(-(-len(table) // ROWS_PER_BLOCK))
        self._number = number
        self._prefix = prefix

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A column."""
        if name == "shard":
            return np.broadcast_to(np.array(self._number, np.int64), len(self.table))
        column: npt.NDArray[Any] = self.table[self._prefix + name]
        return column

    def field(self, name: str) -> ShardIndex:
        """The columns of a field."""
        return self if name == IMAGE else ShardIndex(self.table, self._number, f"field.{name}.")

    def check(self, row: int) -> None:
        """Does nothing: the index was checked when it was opened."""


@dataclass(frozen=True)
class CacheShard:
    """One shard of a cache. It knows nothing of the cache, so that both go when they are dropped.

    Attributes:
        index: The index of the shard.
        faults: Makes errors.
        records: The records of each field.
    """

    index: ShardIndex
    faults: Faults
    records: Mapping[str, FieldRecords]


class _CacheShardFaults(Faults):
    """Faults of one shard of a cache.

    Args:
        root: The cache's folder.
        name: Name of the shard.
        index: Its index.
    """

    def __init__(self, root: Path, name: str, index: ShardIndex) -> None:
        super().__init__(root)
        self._index = index
        self._name = name

    @override
    def describe(self, row: int) -> str:
        return f"sample {self.line(row)} (row {row} of {self._name})"

    @override
    def line(self, row: int) -> int:
        return int(self._index["number"][row])

    @override
    def file(self, row: int) -> str | None:
        return f"{SHARDS}/{self._name}"

    @override
    def remedy(self, error: Exception | None = None) -> str:
        return REMEDY

    @override
    def damaged(self, row: int, field: str, how: str) -> CorruptRecord:
        error = super().damaged(row, field, how)
        # Which row it is differs from generation to generation. Its number, `line`, stays.
        error.row = None
        return error


def _reopened(root: str, io: str, check: bool, known: str) -> CacheFiles:
    files = CacheFiles(root, io, check=check)
    if files.info.id != known:
        raise _replaced(files.root)
    return files


def _replaced(root: Path) -> GenerationGone:
    return GenerationGone(
        f"{root} has been removed and filled anew, so that the generation that was read is gone. Open the cache again"
    )
