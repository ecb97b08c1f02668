"""A dataset's records by row and field, straight from the bytes of the shards. Does not import torch."""

from __future__ import annotations

import hashlib
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import choice
from packtrain._core.errors import CorruptFile, UsageError
from packtrain._core.index import Index
from packtrain._core.manifest import ColumnInfo, Manifest
from packtrain._core.overriding import override
from packtrain._core.paths import local_path
from packtrain._core.schema import IMAGE, Schema
from packtrain._storage.staging.locks import lease_on
from packtrain._storage.streams.cutting import chunk_bounds, space_of

from .chunked import ChunkedShards
from .indexed import IndexedValues
from .records import DatasetFaults, FieldRecords, Records, counted, native
from .shards import IO, DatasetShards, Shards
from .sound import Check, SoundRows, starting_process

if TYPE_CHECKING:
    from packtrain._storage.streams.chunks import ChunkTable
    from packtrain._storage.streams.client import ChunkCache

Label = int | float | npt.NDArray[Any]
NO_LABEL: Final = -1
"""Label of every row of a dataset without labels, as in torchvision's unlabelled STL10."""


class Opened(Protocol):
    """Open files."""

    @property
    def read_bytes(self) -> int:
        """Bytes of records read since they were opened."""

    @property
    def waited_ns(self) -> int:
        """Nanoseconds that this process has waited for records to be fetched from an object store."""


class Store(ABC):
    """Source of the records of samples, by row and field.

    Attributes:
        path: Folder of the dataset.
        name: Name of the dataset in messages.
        schema: What samples hold.
        identity: Says which sample each row is.
        io: ``"mmap"`` or ``"pread"``.
        check: Whether each record is compared with its checksum whenever it is read, or only when it is first read.
        chunks: The cache that its records are read from; None if they are all at hand.
        compares_again: True if records are compared whenever they are read, and ``check="first"`` would spare that.
        remote: True if the dataset was opened in an object store, also where a copy of it is read. The order of a
            loader follows this. If it followed what is at hand, two ranks would take different orders when only one of
            their machines has a copy.
        has_paths: False if rows have no path.
        side_names: Names of the sides of a dataset that was split, by their numbers in the column ``split``.
    """

    path: Path
    name: str
    schema: Schema
    identity: str
    io: str
    check: Check
    chunks: ChunkCache | None = None
    compares_again: bool = False
    remote: bool = False
    has_paths: bool = True
    side_names: tuple[str, ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def field(self, name: str) -> Records:
        """The records of a field."""

    @property
    @abstractmethod
    def read_bytes(self) -> int:
        """Bytes of records read since the dataset was opened."""

    @property
    def waited_ns(self) -> int:
        """Nanoseconds that this process has waited for records to be fetched from an object store."""
        return 0

    def expect(self, rows: npt.NDArray[np.int64], fields: Sequence[str]) -> None:  # noqa: B027  # most are at hand
        """Says which rows are read soon, see `FieldRecords.expect`.

        Args:
            rows: The rows, int64 [any].
            fields: Names of the stored fields that are read of them.
        """

    @property
    def opened(self) -> Opened:
        """The open files, which stay open when a later state of the same dataset takes the place of this one."""
        return self

    def release(self) -> None:  # noqa: B027  # most stores never change places with another one
        """Lets go of what keeps this state of a dataset, once another one has taken its place."""

    def close_unused(self) -> None:  # noqa: B027  # most stores have nothing but what they need
        """Closes what is not needed any more: what only earlier states of the dataset needed, what has been removed."""

    @abstractmethod
    def checked_row(self, row: int) -> int:
        """Checks the row number and its part of the index; a negative row is counted from the end.

        Raises:
            IndexError: There is no such row.
            CorruptFile: The index is damaged there.
        """

    @abstractmethod
    def label(self, row: int) -> Label:
        """The label of `row`: int, float, or an array [K] of int64 or float32; `NO_LABEL` without labels."""

    @abstractmethod
    def all_labels(self) -> npt.NDArray[Any]:
        """The labels of all rows, [rows] or [rows, K]; there must be some.

        Raises:
            CorruptFile: The index is damaged.
        """

    @abstractmethod
    def column(self, name: str, rows: npt.NDArray[np.int64], field: str | None = None) -> npt.NDArray[Any]:
        """Entries of a column of the index, or of a field's columns there, for rows of which none is negative.

        Args:
            name: Name of the column; that of a field's without the prefix.
            rows: int64 [n].
            field: Name of the field; None for the columns of rows.

        Raises:
            CorruptFile: The index is damaged there.
        """

    def texts(self, field: str, rows: npt.NDArray[np.int64]) -> list[str]:
        """The values of a string in rows of which none is negative; "" where missing, U+FFFD for what is no UTF-8.

        Raises:
            CorruptFile: The index is damaged there.
        """
        raise UsageError(f"{self.name}: {field} does not lie in the index")

    @abstractmethod
    def line(self, row: int) -> int:
        """The 0-based line of `row` in the list."""

    @abstractmethod
    def filename(self, row: int) -> str:
        """The path of `row` as it stands in the list."""

    def filenames(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The paths of some rows, int64 [n], of which none is negative; what is not UTF-8 becomes U+FFFD."""
        return [self.filename(row) for row in rows.tolist()]

    @abstractmethod
    def describe(self, row: int) -> str:
        """The name of `row` for messages."""

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows whose records lie at these places of the physical order; both int64 [any]."""
        return places

    def places(self) -> npt.NDArray[np.int64]:
        """The place of each row, int64 [rows]."""
        return np.arange(len(self))

    @abstractmethod
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        """The places at which the dataset's chunks begin, and the number of places: int64 [chunks + 1].

        Raises:
            UsageError: It has no chunks.
            CorruptFile: The index is damaged.
        """

    def record(self, row: int, field: str = IMAGE) -> memoryview:
        """The stored bytes of a field of `row` as a read-only memoryview; with mmap, no byte is copied.

        Raises:
            IndexError: There is no such row.
            UsageError: There is no such field, or `row` is without it.
            CorruptFile: The shard is missing or has the wrong size, or the index is damaged at this row.
            UnreadableFile: The shard cannot be opened or read.
            CorruptRecord: The bytes differ from what was written.
        """
        data = self.field(field).read(row)
        if data is None:
            raise UsageError(f"{self.name}: {self.describe(self.checked_row(row))} has no {field}")
        return data


class RecordStore(Store):
    """The records of a dataset, by row and field.

    If `path` is a staged copy, it is not evicted while this object lives.

    It pickles as its arguments, and can be used on both sides of a fork, because it holds no state that two processes
    could disturb. A process that is forked from this one, or started with this object, shares what ``check="first"``
    remembers. Any other copy of it begins anew.

    Args:
        path: The dataset's folder.
        io: ``"mmap"`` maps shards; ``"pread"`` copies each record with one system call, so that a read error is an
            exception and not a SIGBUS; ``"auto"`` takes pread on network file systems, mmap elsewhere.
        check: Compare each record with its checksum: whenever it is read, never, or with ``"first"`` only until it has
            been found sound once while this is open. With `chunks`, ``"first"`` is the same as True, because a chunk
            may go and come again.
        chunks: Where the records are, if `path` has everything but the shards; None: in its shards.
        copied: True if `path` is a copy of a dataset that was opened in an object store.
        manifest: The manifest, if it is known; a store with one does not pickle.
        index_only: True if no record is read: then the shards may lie in an object store. Such a store does not pickle.

    Raises:
        NotADataset: `path` has no manifest.
        UnsupportedVersion: It was written by a newer packtrain.
        CorruptFile: Manifest or index is damaged.
        UnreadableFile: Manifest or index cannot be read.
        StagingError: `path` was a staged copy, but has been evicted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        io: str = "auto",
        check: Check = True,
        chunks: ChunkCache | None = None,
        copied: bool = False,
        manifest: Manifest | None = None,
        index_only: bool = False,
    ) -> None:
        choice("io", io, IO)
        self.path = local_path(path)
        # Held as long as this object lives, also by processes that are forked from this one.
        self._lease: Final = lease_on(self.path)
        try:
            manifest, index = _loaded(self.path) if manifest is None else (manifest, Index.of(self.path, manifest))
        except CorruptFile as error:
            if self._lease is None:
                raise
            command = f"packtrain staged repair {shlex.quote(os.fspath(self.path))}"
            raise CorruptFile(f"{error}: `{command}` copies once more what is damaged", file=error.file) from error
        self.manifest: Final = manifest
        self.schema = self.manifest.schema
        self.name = os.fspath(self.path) if chunks is None else str(chunks.url)
        self.identity = self.manifest.identity
        self.chunks, self._copied = chunks, copied
        self.remote = copied or chunks is not None
        self.compares_again = check is True and chunks is None
        self._shards: Final[Shards] = (
            DatasetShards(self.path, self.manifest, io, unread=index_only)
            if chunks is None
            else ChunkedShards(chunks, self.path, self.manifest, io)
        )
        self.io = self._shards.io
        self.check = check
        self.index: Final = index
        self._faults: Final = DatasetFaults(
            self.name,
            self.manifest,
            self.index,
            staged=self._lease is not None,
            cache=None if chunks is None else self.path.parent,
        )
        self._length = self.manifest.records
        self._take_labels(self)
        self._fields: dict[str, FieldRecords | IndexedValues] = {}
        self._sound: dict[str, SoundRows] = {}

    @override
    def __len__(self) -> int:
        return self._length

    @cached_property
    def chunk_table(self) -> ChunkTable:
        """The chunks by which the dataset is streamed, or would be.

        Raises:
            CorruptFile: The index is damaged.
        """
        from packtrain._storage.streams.chunks import ChunkTable

        return ChunkTable.of(self.manifest, self.index) if self.chunks is None else self.chunks.table

    @override
    def expect(self, rows: npt.NDArray[np.int64], fields: Sequence[str]) -> None:
        if self.chunks is not None:
            for name in fields:
                self.field(name).expect(rows)

    @override
    def close_unused(self) -> None:
        self._shards.close_removed()

    @override
    def field(self, name: str) -> FieldRecords | IndexedValues:
        """The records of a field; its part of the index is opened when it is first asked for.

        Raises:
            UsageError: There is no such field.
            CorruptFile: Its part of the index is damaged.
            UnreadableFile: Its part of the index cannot be read.
        """
        records = self._fields.get(name)
        if records is None:
            field, bare = self.schema[name], self.manifest.bare
            if field.indexed:
                return self._fields.setdefault(name, IndexedValues(field, self.index, self._faults))
            sound = self._sound.get(name)
            if sound is None and self.check == "first" and self.chunks is None:
                sound = self._sound.setdefault(name, SoundRows(self._length))
            records = FieldRecords(
                field, self.index, self._shards, self._faults, check=bool(self.check), bare=bare, sound=sound
            )
            # Another thread may have been faster.
            records = self._fields.setdefault(name, records)
        return records

    def records(self, name: str) -> FieldRecords:
        """The records of a field that has some; raises what `field` raises."""
        found = self.field(name)
        if not isinstance(found, FieldRecords):
            raise UsageError(f"{self.name}: {name} lies in the index and has no records")
        return found

    @override
    def record(self, row: int, field: str = IMAGE) -> memoryview:
        # What is read most often, without the call of `field`.
        records = self._fields.get(field)
        data = None if records is None else records.read(row)
        return super().record(row, field) if data is None else data

    def sha256(self) -> str:
        """Digest of all that says what the records are, in hexadecimal digits."""
        return hashlib.sha256(self.manifest.dump()).hexdigest()

    @property
    @override
    def read_bytes(self) -> int:
        return sum(records.read_bytes for records in tuple(self._fields.values()))

    @property
    @override
    def waited_ns(self) -> int:
        return self._shards.waited_ns

    def _take_labels(self, store: RecordStore) -> None:
        """Takes the labels of a store, which has the same rows."""
        self.label_columns: Index | None = store.index if store.manifest.labels.kind != "none" else None
        if self.label_columns is not None:
            column = self.label_columns["label"]
            self._labels: Any = column if column.ndim > 1 else native(column).data

    @override
    def label(self, row: int) -> Label:
        if not 0 <= row < self._length:
            row = counted(row, self._length)
        if self.label_columns is None:
            return NO_LABEL
        self.label_columns.check(row)
        value = self._labels[row]
        # A memoryview gives plain numbers, a two-dimensional array its rows.
        return value.copy() if isinstance(value, np.ndarray) else value

    @override
    def checked_row(self, row: int) -> int:
        if not 0 <= row < self._length:
            row = counted(row, self._length)
        self.index.check(row)
        return row

    @override
    def all_labels(self) -> npt.NDArray[Any]:
        assert self.label_columns is not None, "a dataset without labels has none to give"
        self.label_columns.check_all()
        return self.label_columns["label"]

    @override
    def column(self, name: str, rows: npt.NDArray[np.int64], field: str | None = None) -> npt.NDArray[Any]:
        columns = self.index if field is None else self.index.field(field)
        columns.check_rows(rows)
        found: npt.NDArray[Any] = columns[name][rows]
        return found

    @override
    def texts(self, field: str, rows: npt.NDArray[np.int64]) -> list[str]:
        return self.index.field(field).texts("value", rows)

    @override
    def line(self, row: int) -> int:
        return int(self.index["line"][self.checked_row(row)])

    @override
    def filename(self, row: int) -> str:
        return self.index.text("path", self.checked_row(row))

    @override
    def filenames(self, rows: npt.NDArray[np.int64]) -> list[str]:
        return self.index.texts("path", rows)

    @override
    def describe(self, row: int) -> str:
        return self._faults.describe(row)

    @override
    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.index.rows_at(places)

    @override
    def places(self) -> npt.NDArray[np.int64]:
        return self.index.places()

    @override
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        if self.remote:
            return self.chunk_table.bounds
        self.index.check_all()
        for field in self.schema.fields:
            self.index.field(field.name).check_all()
        return chunk_bounds(self._space())

    def _space(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield how many bytes the records of each shard take up, in physical order."""
        fields = [self.index.field(field.name) for field in self.schema.stored]
        start = 0
        for shard in self.manifest.shards:
            rows = self.index.rows_at(np.arange(start, start + shard.records))
            offsets, sizes = (
                np.array([columns[name][rows] for columns in fields], np.int64).reshape(len(fields), len(rows))
                for name in ("offset", "length")
            )
            # A length that cannot be is refused when it is read.
            yield space_of(offsets, np.minimum(sizes, shard.bytes))
            start += shard.records

    def close(self) -> None:
        """Closes the shards. Views that were handed out stay valid; the next read opens the shards again."""
        self._shards.close()
        # The shards that are opened next may be other files. Processes that share this memory still have these.
        self._sound = {name: SoundRows(self._length) for name in self._sound}
        for name, sound in self._sound.items():
            if isinstance(records := self._fields.get(name), FieldRecords):
                records.sound = sound

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., RecordStore], tuple[Any, ...]]:
        known = (self.manifest.columns, self._sound) if self._sound and starting_process() else None
        return _reopen, (os.fspath(self.path), self.io, self.check, self.chunks, self._copied, known)


def _reopen(
    path: str,
    io: str,
    check: Check,
    chunks: ChunkCache | None,
    copied: bool,
    known: tuple[tuple[ColumnInfo, ...], dict[str, SoundRows]] | None,
) -> RecordStore:
    store = RecordStore(path, io=io, check=check, chunks=chunks, copied=copied)
    # Their checksums include the checksum of each record, so that other columns mean other records.
    if known is not None and store.manifest.columns == known[0]:
        store._sound = known[1]
    return store


def _loaded(folder: Path) -> tuple[Manifest, Index]:
    manifest = Manifest.load(folder)
    try:
        return manifest, Index.of(folder, manifest)
    except CorruptFile:
        # `packtrain index --update` may have put another dataset here between the two.
        now = Manifest.load(folder)
        if now == manifest:
            raise
        return now, Index.of(folder, now)
