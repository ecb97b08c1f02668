"""The records of one field, by row. Does not import torch."""

from __future__ import annotations

import os
import shlex
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._codec.decode import EncodedImage
from packtrain._codec.stages import CHECK, DECODE, READ, OnStage, untimed
from packtrain._codec.values import decode_value
from packtrain._core.errors import (
    CorruptFile,
    CorruptRecord,
    DatasetError,
    MissingDependency,
    PacktrainError,
    RemoteError,
    StagingError,
)
from packtrain._core.index import ROWS_PER_BLOCK, Index
from packtrain._core.manifest import Manifest
from packtrain._core.overriding import override
from packtrain._core.problems import error_kind, reason
from packtrain._core.schema import IMAGE, Field

from .shards import OtherTime, ShardFile, Shards, WrongShard
from .sound import SoundRows


class Faults(ABC):
    """Says which row is meant and what is wrong with it, in errors.

    Args:
        path: The dataset's folder, or its address.

    Attributes:
        path: The same.
    """

    def __init__(self, path: Path | str) -> None:
        self.path: Final = path

    @abstractmethod
    def describe(self, row: int) -> str:
        """The name of `row` for messages."""

    @abstractmethod
    def line(self, row: int) -> int:
        """The 0-based line of `row` in the list."""

    @abstractmethod
    def file(self, row: int) -> str | None:
        """The name of the shard of `row`; None if the index names one that is not there."""

    @abstractmethod
    def remedy(self, error: Exception | None = None) -> str:
        """Advice about damage, or about a shard that cannot be used because of an error."""

    def damaged(self, row: int, field: str, how: str) -> CorruptRecord:
        """The error that says how the record of `row` is damaged."""
        try:
            what = self.describe(row)
        except DatasetError:
            what = f"row {row}"
        return CorruptRecord(
            f"{self.path}: {_of(field)}{what} is damaged: {how}. {self.remedy()}",
            file=self.file(row),
            row=row,
            line=self.line(row),
        )

    def unread(self, row: int, field: str, error: Exception, verb: str = "read") -> PacktrainError:
        """Return the error for a record whose shard cannot be opened or read, is another file, or cannot be fetched."""
        what = f"{self.path}: {_of(field)}{self.describe(row)} cannot be"
        if isinstance(error, PacktrainError):
            return type(error)(f"{what} fetched: {error}")
        if isinstance(error, OSError):
            kind, why = error_kind(error), f"its shard cannot be {verb} ({reason(error)})"
        else:
            kind, why = CorruptFile, f"its shard {error}"
        if kind is CorruptFile:  # a sound copy would not help if, say, too many files are open
            why = f"{why}; {self.remedy(error)}"
        return kind(f"{what} read: {why}", file=self.file(row))


class DatasetFaults(Faults):
    """Faults of a packed dataset.

    Args:
        path: The dataset's folder, or its address.
        manifest: Its manifest.
        index: Its index.
        staged: True if `path` is a staged copy.
        cache: The folder of the cache that its records are read from, None without one.
    """

    def __init__(
        self, path: Path | str, manifest: Manifest, index: Index, *, staged: bool, cache: Path | None = None
    ) -> None:
        super().__init__(path)
        self._manifest = manifest
        self._index = index
        self._staged = staged
        self._cache = cache

    @override
    def describe(self, row: int) -> str:
        where = f"line {self.line(row)}, {self._index.text('path', row)!r}, in {self.file(row) or 'no shard'}"
        return f"row {row} ({where})"

    @override
    def line(self, row: int) -> int:
        return int(self._index["line"][row])

    @override
    def file(self, row: int) -> str | None:
        number = int(self._index["shard"][row])
        return self._manifest.shards[number].name if number < len(self._manifest.shards) else None

    @override
    def remedy(self, error: Exception | None = None) -> str:
        if error is None and self._cache is None:
            return f"`packtrain verify` lists all damage; {self._mend}"
        cause, options = None, ""
        if isinstance(error, OtherTime):
            cause = "only its time changed, as by copying"
        elif isinstance(error, FileNotFoundError):
            cause, options = "the shards were moved", "--base DIR "
        if cause is None or self._staged or self._manifest.base is None:
            return self._mend
        update = f"packtrain index --update {options}{shlex.quote(os.fspath(self.path))}"
        return f"if {cause}, run `{update}`; if not, {self._mend}"

    @property
    def _mend(self) -> str:
        if self._cache is not None:
            return (
                f"`packtrain verify {shlex.quote(os.fspath(self.path))}` says whether it is damaged in the store; "
                f"if not, the disk has changed it: `packtrain staged evict {shlex.quote(os.fspath(self._cache))}` "
                "removes the cache, and what is needed is fetched again"
            )
        if self._staged:
            return f"`packtrain staged repair {shlex.quote(os.fspath(self.path))}` copies once more what is damaged"
        if self._manifest.base is not None:
            return "restore the shard from a sound copy, or index again if it was changed on purpose"
        return "restore the shard from a sound copy, or pack again"


class FieldColumns(Protocol):
    """The columns of one field, by name; `packtrain._core.index.Columns` says what each member does."""

    unchecked: bytearray

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A column."""

    def check(self, row: int) -> None:
        """Checks the block that holds `row`."""


class RowIndex(FieldColumns, Protocol):
    """The part of an index that records need; see `packtrain._core.index.Index`."""

    def field(self, name: str) -> FieldColumns:
        """The columns of a field."""


class Records(Protocol):
    """The values of one field, by row."""

    @property
    def field(self) -> Field:
        """The field."""

    def read(self, row: int, on_stage: OnStage = untimed) -> memoryview | None:
        """The stored bytes of `row` as a read-only memoryview; with mmap, no byte is copied. None if it is missing.

        Raises:
            IndexError: There is no such row.
            CorruptFile: The shard is missing or has the wrong size, or the index is damaged at this row.
            UnreadableFile: The shard cannot be opened or read.
            CorruptRecord: The bytes differ from what was written.
        """

    def image(self, row: int, on_stage: OnStage = untimed) -> EncodedImage | None:
        """The image of `row` as it is stored, None if it is missing; raises what `read` raises. For images only."""

    def value(self, row: int, on_stage: OnStage = untimed) -> Any:
        """The value of `row`, see `packtrain._codec.values.decode_value`; None if it is missing. Not for images.

        Raises:
            CorruptRecord: As `read`, or the record holds something else.
        """

    def size(self, row: int) -> tuple[int, int]:
        """Width and height of the image or mask of `row` in pixels, as stored; (0, 0) if it is missing.

        Raises:
            IndexError: There is no such row.
            CorruptFile: The index is damaged there.
            CorruptRecord: The index was never sound there.
        """

    def length(self, row: int) -> int:
        """Size of the record of `row` in bytes; -1 if it is missing. Raises IndexError and CorruptFile as `read`."""

    def will_need(self, row: int) -> int:
        """Asks the system to read the record of `row` into memory, without waiting for it.

        Returns:
            The record's size in bytes; 0 if it is missing or cannot be read, in which case `read` raises the reason.
        """

    def damaged(self, row: int, how: str) -> CorruptRecord:
        """The error that says how the record of `row` is damaged."""

    def undecodable(self, row: int, error: Exception) -> CorruptRecord:
        """The error for a record that holds something else. Pillow's plugins raise whatever their parsers run into.

        An error that says nothing of the record is raised as it is.
        """


class IndexedRecords:
    """The values of one field, as the index of a dataset has them.

    Args:
        field: The field.
        index: The index.
        faults: Makes errors.

    Attributes:
        columns: Its columns.
    """

    def __init__(self, field: Field, index: RowIndex, faults: Faults) -> None:
        self.field: Final = field
        self.columns: Final = index.field(field.name)
        self._faults = faults
        self._length = len(index["shard"])
        self._unchecked = self.columns.unchecked
        # Blocks are of the same rows in all of them.
        self._checked = (index, self.columns)

    def checked_row(self, row: int) -> int:
        """Checks the row number and its part of the index; a negative row is counted from the end.

        Raises:
            IndexError: There is no such row.
            CorruptFile: The index is damaged there.
        """
        if not 0 <= row < self._length:
            row = counted(row, self._length)
        if self._unchecked[row // ROWS_PER_BLOCK]:
            self._check(row)
        return row

    def damaged(self, row: int, how: str) -> CorruptRecord:
        """The error that says how the record of `row` is damaged."""
        return self._faults.damaged(self.checked_row(row), self.field.name, how)

    def undecodable(self, row: int, error: Exception) -> CorruptRecord:
        """The error for a record that holds something else."""
        if isinstance(error, (MissingDependency, MemoryError)):
            raise error
        return self.damaged(row, f"it cannot be decoded ({type(error).__name__}: {error})")

    def _check(self, row: int) -> None:
        for columns in self._checked:
            columns.check(row)


class FieldRecords(IndexedRecords):
    """The records of one field, by row.

    Args:
        field: The field.
        index: The index of the dataset.
        shards: Where the records lie.
        faults: Makes errors.
        check: Compare each record with its checksum when it is read.
        bare: True if raw values are stored without the header of an `.npy` file.
        sound: The rows whose records need not be compared any more; None if all are compared again and again.

    Attributes:
        read_bytes: Bytes of records read since this was opened.
        compares: Whether records are compared with their checksums.
        sound: The rows whose records are not compared any more; None if all are compared again and again.

    Raises:
        CorruptFile: The field's columns of the index are damaged.
        UnreadableFile: They cannot be read.
    """

    def __init__(
        self,
        field: Field,
        index: RowIndex,
        shards: Shards,
        faults: Faults,
        *,
        check: bool,
        bare: bool = False,
        sound: SoundRows | None = None,
    ) -> None:
        super().__init__(field, index, faults)
        self.read_bytes = 0
        self.compares: Final = check
        self.sound = sound
        self._bare = bare
        self.shards: Final = shards
        self._opened = shards.opened
        # A memoryview yields a Python int in a third of the time that a numpy scalar takes.
        self._shard = native(index["shard"]).data
        self._offset = native(self.columns["offset"]).data
        self._size = native(self.columns["length"]).data
        self._crc32c = native(self.columns["crc32c"]).data
        self._sized = field.has_pixels
        sizes = ("width", "height") if self._sized else ("length", "length")
        self._width, self._height = (native(self.columns[name]).data for name in sizes)

    def read(self, row: int, on_stage: OnStage = untimed) -> memoryview | None:
        """The stored bytes of `row`; None if it is missing."""
        # What `checked_row` does, without a call.
        if not 0 <= row < self._length:
            row = counted(row, self._length)
        if self._unchecked[row // ROWS_PER_BLOCK]:
            self._check(row)
        return self._read(row, on_stage)

    def image(self, row: int, on_stage: OnStage = untimed) -> EncodedImage | None:
        """The image of `row` as it is stored; None if it is missing."""
        row = self.checked_row(row)
        width, height = self._width[row], self._height[row]
        if width < 1 or height < 1:
            width, height = self.size(row)
        data = self._read(row, on_stage)
        return None if data is None else EncodedImage(data, width, height)

    def _read(self, row: int, on_stage: OnStage) -> memoryview | None:
        offset, size = self._offset[row], self._size[row]
        if offset < 0 or size < 0:
            self._check_missing(row)
            return None
        number = self._shard[row]
        shard = self._opened.get(number) or self._open(number, row)
        if offset + size > shard.bytes:
            raise self._outside(row, shard)
        try:
            data = shard.read(offset, size)
        except (OSError, RemoteError, StagingError, WrongShard) as error:
            raise self._faults.unread(row, self.field.name, error) from error
        self.read_bytes += size
        on_stage(READ)
        if self.compares:
            sound = self.sound
            if sound is None:
                if crc32c(data) != self._crc32c[row]:
                    data = self._replaced(row, data)
            elif not sound.bits[row >> 3] >> (row & 7) & 1:
                if crc32c(data) != self._crc32c[row]:
                    data = self._replaced(row, data)
                sound.bits[row >> 3] |= 1 << (row & 7)
        on_stage(CHECK)
        return data

    def _replaced(self, row: int, data: memoryview) -> memoryview:
        """The bytes of `row` once whoever can has replaced the damaged ones.

        Raises:
            CorruptRecord: Nobody can, or these are damaged, too.
        """
        number, offset, size = self._shard[row], self._offset[row], self._size[row]
        try:
            if self.shards.replace_damaged(number, offset, size):
                data = (self._opened.get(number) or self._open(number, row)).read(offset, size)
        except (OSError, RemoteError, StagingError, WrongShard) as error:
            raise self._faults.unread(row, self.field.name, error) from error
        if (found := crc32c(data)) != self._crc32c[row]:
            raise self.damaged(row, f"crc32c is {found:08x}, {self._crc32c[row]:08x} was written")
        return data

    def size(self, row: int) -> tuple[int, int]:
        """Width and height of the image or mask of `row`; (0, 0) if it is missing."""
        row = self.checked_row(row)
        width, height = self._width[row], self._height[row]
        if width < 1 or height < 1:
            if self._size[row] >= 0:
                raise self.damaged(row, f"its index entry says {width} x {height} pixels")
            self._check_missing(row)
        return width, height

    def length(self, row: int) -> int:
        """Size of the record of `row` in bytes; -1 if it is missing."""
        row = self.checked_row(row)
        if self._size[row] < 0:
            self._check_missing(row)
        return self._size[row]

    def value(self, row: int, on_stage: OnStage = untimed) -> Any:
        """The value of `row`; None if it is missing."""
        record = self.read(row, on_stage)
        if record is None:
            return None
        size = self.size(row) if self._sized else None
        try:
            value = decode_value(self.field, record, bare=self._bare, size=size)
        except Exception as error:
            raise self.undecodable(row, error) from error
        on_stage(DECODE)
        return value

    def will_need(self, row: int) -> int:
        """Asks the system to read the record of `row` into memory; returns its size."""
        try:
            row = self.checked_row(row)
            offset, size = self._offset[row], self._size[row]
            if offset < 0 or size < 0:
                return 0
            number = self._shard[row]
            shard = self._opened.get(number) or self._open(number, row)
            if offset + size > shard.bytes:
                return 0
            shard.will_need(offset, size)
        except (IndexError, PacktrainError, OSError):
            return 0
        return size

    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        """Says which rows are read soon, see `Shards.expect`. What is wrong with them shows when they are read."""
        rows = rows[(rows >= 0) & (rows < self._length)]
        rows = rows[self.columns["length"][rows] > 0]
        with suppress(PacktrainError):
            self.shards.expect(self._checked[0]["shard"][rows], self.columns["offset"][rows])

    def _check_missing(self, row: int) -> None:
        """Makes sure that a row without a record may be without one.

        Raises:
            CorruptRecord: It may not, or its place makes no sense.
        """
        offset, size = self._offset[row], self._size[row]
        if not (self.field.optional and (offset, size, self._crc32c[row]) == (0, -1, 0)):
            raise self.damaged(row, f"its index entry points outside the shard ({offset} + {size} bytes)")

    def _outside(self, row: int, shard: ShardFile) -> CorruptRecord:
        where = f"{self._offset[row]} + {self._size[row]} of {shard.bytes} bytes"
        return self.damaged(row, f"its index entry points outside the shard ({where})")

    def _open(self, number: int, row: int) -> ShardFile:
        try:
            return self.shards.open(number)
        except (OSError, WrongShard) as error:
            raise self._faults.unread(row, self.field.name, error, "opened") from error


def counted(row: int, length: int) -> int:
    """A row number that may be counted from the end, counted from the beginning.

    Raises:
        IndexError: There is no such row.
    """
    if not -length <= row < length:
        raise IndexError(f"row {row} of a dataset of {length} rows")
    return row + length if row < 0 else row


def native(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A column in this machine's byte order."""
    return column if sys.byteorder == "little" else column.astype(column.dtype.newbyteorder("="))


def _of(field: str) -> str:
    """Return the words that name a field in front of a row; none for the image."""
    return "" if field == IMAGE else f"field {field} of "
