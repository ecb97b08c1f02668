"""The samples of a growing cache: one generation at a time, over files that stay open from one to the next."""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from typing_extensions import override

from packtrain._codec.decode import EncodedImage
from packtrain._codec.stages import OnStage, untimed
from packtrain._core.arguments import choice
from packtrain._core.errors import CorruptFile, CorruptRecord, DatasetError, GenerationGone, UsageError
from packtrain._core.generations import (
    CacheInfo,
    Generation,
    GenerationLease,
    Table,
    generation_numbers,
    index_dtype,
    index_path,
    promise,
    shard_path,
)
from packtrain._core.mounts import is_network
from packtrain._core.opening import open_regular
from packtrain._core.paths import local_path
from packtrain._core.problems import reading
from packtrain._core.schema import IMAGE, Field

from ..formats import container
from .image_dataset import ImageDataset
from .records import Faults, FieldRecords, counted
from .samples import PackedSamples
from .shards import IO, Shard, Shards
from .store import NO_LABEL, Label, Store


class CacheFiles(Shards):
    """The open shards and indexes of a cache, by shard number. Shards never change, so they serve any generation.

    Args:
        root: The cache's folder.
        io: ``"mmap"``, ``"pread"`` or ``"auto"``, see `RecordStore`.
        check: Compare each record with its checksum when it is read.

    Attributes:
        root: The cache's folder.
        info: What the cache holds.
        schema: What samples hold.

    Raises:
        NotADataset: There is no cache.
        UnsupportedVersion: It was written by a newer packtrain.
        CorruptFile: Its description is damaged.
        UnreadableFile: It cannot be read.
    """

    def __init__(self, root: str | os.PathLike[str], io: str = "auto", *, check: bool = True) -> None:
        choice("io", io, IO)
        self.root: Final = local_path(root)
        self.info: Final = CacheInfo.load(self.root)
        self.schema: Final = self.info.schema
        self.check: Final = check
        self._given = io
        self._suffix = container(self.info.format).SUFFIX
        self._dtype = index_dtype(self.schema)
        self._parts: dict[int, Part] = {}
        self._sizes: dict[int, int] = {}
        self._forgotten_bytes = 0
        mapped = io == "mmap" or (io == "auto" and not is_network(self.root))
        super().__init__("mmap" if mapped else "pread")

    def __reduce__(self) -> tuple[Callable[..., CacheFiles], tuple[str, str, bool]]:
        return _reopened, (os.fspath(self.root), self._given, self.check)

    @override
    def open(self, number: int) -> Shard:
        return self._opened(number, shard_path(self.root, self._suffix, number), self._sizes[number])

    def part(self, number: int, generation: Generation) -> Part:
        """A shard of a generation with its index.

        Raises:
            CorruptFile: Its index is missing or damaged.
            UnreadableFile: Its index cannot be read.
        """
        part = self._parts.get(number)
        if part is None:
            place = number - generation.first_shard
            self._sizes[number] = generation.bytes[place]
            table = self._table(number, generation.records[place], generation.index_crc32c[place])
            part = self._parts.setdefault(number, Part(self, ShardIndex(table, number), number))
        return part

    def forget(self, before: int) -> None:
        """Closes all shards with lower numbers. Views that were handed out stay valid."""
        for number in [number for number in self._parts if number < before]:
            self._forgotten_bytes += self._parts.pop(number).read_bytes
            self._sizes.pop(number, None)
        for number in [number for number in self.opened if number < before]:
            self.opened.pop(number, None)

    @property
    def read_bytes(self) -> int:
        """Bytes of records read since the cache was opened."""
        return self._forgotten_bytes + sum(part.read_bytes for part in tuple(self._parts.values()))

    def shard_name(self, number: int) -> str:
        """Name of the file of a shard."""
        return shard_path(self.root, self._suffix, number).name

    def _table(self, number: int, records: int, checksum: int) -> Table:
        """The index of a shard, mapped and checked."""
        path = index_path(self.root, number)
        with reading(path, file=f"{path.parent.name}/{path.name}"), os.fdopen(open_regular(path), "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = len(mapped) - records * self._dtype.itemsize
        if crc32c(mapped) != checksum or start < 0:
            raise CorruptFile(f"{path} is damaged: its checksum differs from that of the generation", file=path.name)
        return np.frombuffer(mapped, self._dtype, records, start)


class ShardIndex:
    """The index of one shard, in the form that records need it in. It was checked as a whole.

    Args:
        table: A row per sample, see `index_dtype`.
        number: Number of the shard.
        prefix: What the names of the columns begin with; it is left out wherever a name is given.
    """

    def __init__(self, table: Table, number: int, prefix: str = "") -> None:
        self.table: Final = table
        self._number = number
        self._prefix = prefix
        self.unchecked = bytearray(len(table))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A column."""
        if name == "shard":
            return np.broadcast_to(np.array(self._number, np.uint32), len(self.table))
        column: npt.NDArray[Any] = self.table[self._prefix + name]
        return column

    def field(self, name: str) -> ShardIndex:
        """The columns of a field."""
        return self if name == IMAGE else ShardIndex(self.table, self._number, f"field.{name}.")

    def check(self, row: int) -> None:
        """Does nothing: the index was checked when it was opened."""


class Part:
    """One shard of a cache: its records by field.

    Args:
        files: The open files.
        index: Its index.
        number: Its number.
    """

    def __init__(self, files: CacheFiles, index: ShardIndex, number: int) -> None:
        self.index: Final = index
        self._files = files
        self._faults = _PartFaults(files, index, number)
        self._fields: dict[str, FieldRecords] = {}

    def field(self, name: str) -> FieldRecords:
        """The records of a field."""
        records = self._fields.get(name)
        if records is None:
            files = self._files
            field, bare = files.schema[name], files.info.bare
            records = FieldRecords(field, self.index, files, self._faults, check=files.check, bare=bare)
            records = self._fields.setdefault(name, records)
        return records

    def describe(self, row: int) -> str:
        """The name of a row of this shard for messages."""
        return self._faults.describe(row)

    @property
    def read_bytes(self) -> int:
        """Bytes of records read since this was opened."""
        return sum(records.read_bytes for records in tuple(self._fields.values()))


class _PartFaults(Faults):
    """Faults of one shard of a cache."""

    def __init__(self, files: CacheFiles, index: ShardIndex, number: int) -> None:
        super().__init__(files.root)
        self._index = index
        self._file = files.shard_name(number)

    @override
    def describe(self, row: int) -> str:
        return f"sample {self.line(row)} (row {row} of {self._file})"

    @override
    def line(self, row: int) -> int:
        return int(self._index["number"][row])

    @override
    def file(self, row: int) -> str | None:
        return self._file

    @property
    @override
    def remedy(self) -> str:
        return "A growing cache cannot be repaired: delete its folder, and let it fill again"


class GenerationRows:
    """Where the rows of a generation lie. From their first use on, none of its shards is deleted while this lives.

    A process that was forked, or that was sent this, takes a lease of its own when it first uses it.

    Args:
        files: The open files of the cache.
        generation: The generation.
        lease: A lease on it, if there is one.

    Attributes:
        files: The open files of the cache.
        generation: The generation.
    """

    def __init__(self, files: CacheFiles, generation: Generation, lease: GenerationLease | None = None) -> None:
        self._lease = lease
        self.files: Final = files
        self.generation: Final = generation
        self._ends = list(accumulate(generation.records))

    def __reduce__(self) -> tuple[type[GenerationRows], tuple[CacheFiles, Generation]]:
        return GenerationRows, (self.files, self.generation)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, row: int) -> tuple[Part, int]:
        """The shard that holds a row, and the row there; a negative row is counted from the end.

        Raises:
            IndexError: There is no such row.
            GenerationGone: There was no lease on it, and it has gone.
            CorruptFile: The index of its shard is damaged.
        """
        if not 0 <= row < len(self):
            row = counted(row, len(self))
        if self._lease is None or not self._lease.held:
            self._lease = GenerationLease(self.files.root, self.generation.number)
        place = bisect_right(self._ends, row)
        part = self.files.part(self.generation.first_shard + place, self.generation)
        return part, row - (self._ends[place - 1] if place else 0)

    def release(self) -> None:
        """Gives up the lease. The next use takes another one."""
        if self._lease is not None:
            self._lease.close()

    def parts(self) -> list[Part]:
        """All shards, oldest first."""
        shards = range(self.generation.first_shard, self.generation.end_shard)
        return [self.files.part(number, self.generation) for number in shards]


class GenerationStore(Store):
    """The records of one generation of a cache, by row and field.

    Args:
        rows: The rows of the generation.
    """

    def __init__(self, rows: GenerationRows) -> None:
        files = rows.files
        self._rows = rows
        self._files = files
        self.path = files.root
        self.schema = files.schema
        self.io = files.io
        self.check = files.check
        self._records: dict[str, GenerationRecords] = {}

    @classmethod
    def open(cls, files: CacheFiles, number: int) -> Self:
        """Opens a generation, with a lease on it.

        Raises:
            GenerationGone: It is no longer there.
            CorruptFile: It is damaged.
            UnreadableFile: It cannot be read.
        """
        lease = GenerationLease(files.root, number)
        return cls(GenerationRows(files, Generation.load(files.root, number), lease))

    def __reduce__(self) -> tuple[type[GenerationStore], tuple[GenerationRows]]:
        return GenerationStore, (self._rows,)

    @override
    def __len__(self) -> int:
        return len(self._rows)

    @property
    def generation(self) -> Generation:
        """The generation."""
        return self._rows.generation

    @property
    @override
    def opened(self) -> CacheFiles:
        return self._files

    @override
    def field(self, name: str) -> GenerationRecords:
        records = self._records.get(name)
        if records is None:
            records = self._records.setdefault(name, GenerationRecords(self.schema[name], self._rows))
        return records

    @override
    def release(self) -> None:
        self._rows.release()

    @property
    @override
    def read_bytes(self) -> int:
        return self._files.read_bytes

    @property
    @override
    def identity(self) -> str:
        return self._files.info.id

    @override
    def checked_row(self, row: int) -> int:
        return row if 0 <= row < len(self) else counted(row, len(self))

    @override
    def label(self, row: int) -> Label:
        part, row = self._rows.at(row)
        if self.schema.labels.kind == "none":
            return NO_LABEL
        value = part.index["label"][row]
        label: Label = value.copy() if value.ndim else value.item()
        return label

    @override
    def all_labels(self) -> npt.NDArray[Any]:
        return np.concatenate([part.index["label"] for part in self._rows.parts()])

    @override
    def line(self, row: int) -> int:
        return self.generation.first_sample + self.checked_row(row)

    @override
    def filename(self, row: int) -> str:
        raise UsageError(f"{self.path}: samples of a growing cache have no path: add a text field for it")

    @override
    def describe(self, row: int) -> str:
        try:
            part, inner = self._rows.at(row)
        except DatasetError:
            return f"sample {self.line(row)}"
        return part.describe(inner)

    @override
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return places

    @override
    def places(self) -> npt.NDArray[np.int64]:
        return np.arange(len(self))


class GenerationRecords:
    """The records of one field of a generation, by row: those of its shards. See `FieldRecords` for what is raised.

    Args:
        field: The field.
        rows: Where its rows lie.
    """

    def __init__(self, field: Field, rows: GenerationRows) -> None:
        self.field: Final = field
        self._rows = rows
        self._name = field.name

    def _at(self, row: int) -> tuple[FieldRecords, int]:
        part, inner = self._rows.at(row)
        return part.field(self._name), inner

    def read(self, row: int, on_stage: OnStage = untimed) -> memoryview | None:
        """The stored bytes of `row`; None if it is missing."""
        records, inner = self._at(row)
        return records.read(inner, on_stage)

    def image(self, row: int, on_stage: OnStage = untimed) -> EncodedImage | None:
        """The image of `row` as it is stored, None if it is missing."""
        records, inner = self._at(row)
        return records.image(inner, on_stage)

    def value(self, row: int, on_stage: OnStage = untimed) -> Any:
        """The value of `row`; None if it is missing."""
        records, inner = self._at(row)
        return records.value(inner, on_stage)

    def size(self, row: int) -> tuple[int, int]:
        """Width and height of the image or mask of `row`; (0, 0) if it is missing."""
        records, inner = self._at(row)
        return records.size(inner)

    def length(self, row: int) -> int:
        """Size of the record of `row` in bytes; -1 if it is missing."""
        records, inner = self._at(row)
        return records.length(inner)

    def will_need(self, row: int) -> int:
        """Asks the system to read the record of `row` into memory; see `FieldRecords.will_need`."""
        try:
            records, inner = self._at(row)
        except (IndexError, DatasetError):
            return 0
        return records.will_need(inner)

    def damaged(self, row: int, how: str) -> CorruptRecord:
        """The error that says how the record of `row` is damaged."""
        records, inner = self._at(row)
        return records.damaged(inner, how)

    def undecodable(self, row: int, error: Exception) -> CorruptRecord:
        """The error for a record that holds something else."""
        records, inner = self._at(row)
        return records.undecodable(inner, error)


class GrowingDataset(ImageDataset):
    """The samples of a growing cache; `packtrain.GrowingCache` opens one.

    It has the rows of one generation, and moves to another one only by `advance`, which a `Loader` calls as an epoch
    begins. Until then no shard of its generation is deleted, whatever the filler does.
    """

    _samples: PackedSamples

    def __init__(self, samples: PackedSamples) -> None:
        super().__init__(samples)

    @property
    def store(self) -> GenerationStore:
        """The records of the generation."""
        found = self._samples.store
        assert isinstance(found, GenerationStore)
        return found

    @property
    def generation(self) -> int:
        """Number of the generation."""
        return self.store.generation.number

    def advance(self, generation: int | None = None) -> int:
        """Moves to another generation, and lets go of the present one.

        Args:
            generation: Number of the generation; None: the newest one.

        Returns:
            Number of new samples: those that were written after the present generation.

        Raises:
            GenerationGone: It is no longer there.
        """
        before = self.store.generation
        store = self._store(generation)
        if store is not self.store:
            self._samples = self._samples.with_store(store)
            store.opened.forget(store.generation.first_shard)
        return max(0, store.generation.end_sample - max(before.end_sample, store.generation.first_sample))

    def promise(self, seconds: float) -> bool:
        """Keeps the present generation for so long, even if no process reads it. False if it is gone."""
        return promise(self.store.path, self.generation, time.time() + seconds)

    def _store(self, generation: int | None) -> GenerationStore:
        """The store of a generation; the present one if it is that."""
        if generation is None:
            return newest(self.store.opened, self.store)
        return self.store if generation == self.generation else GenerationStore.open(self.store.opened, generation)


def newest(files: CacheFiles, present: GenerationStore | None = None) -> GenerationStore:
    """The store of the newest generation; `present` if it is that.

    Raises:
        GenerationGone: There is none.
    """
    while True:
        numbers = generation_numbers(files.root)
        if not numbers:
            raise GenerationGone(f"{files.root} has no generation yet: nothing has been written")
        if present is not None and present.generation.number == numbers[-1]:
            return present
        try:
            return GenerationStore.open(files, numbers[-1])
        except DatasetError:
            # It may have been replaced meanwhile.
            if generation_numbers(files.root)[-1:] == numbers[-1:]:
                raise


def _reopened(root: str, io: str, check: bool) -> CacheFiles:
    return CacheFiles(root, io, check=check)
