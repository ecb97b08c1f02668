"""Records by row, straight from the bytes of the shards. Does not import torch."""

from __future__ import annotations

import mmap
import os
import resource
import shlex
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._codec.decode import EncodedImage
from packtrain._codec.native import extension
from packtrain._codec.native.places import CROP, PLACE
from packtrain._codec.stages import CHECK, READ, OnStage, untimed
from packtrain._core.arguments import choice
from packtrain._core.errors import CorruptFile, CorruptRecord, DatasetError
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, Manifest, ShardInfo
from packtrain._core.mounts import is_network
from packtrain._core.opening import open_regular
from packtrain._core.paths import local_path
from packtrain._core.problems import error_kind, reason
from packtrain._staging.locks import lease_on

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..transforms.batched import BatchPlan

IO: Final = ("auto", "mmap", "pread")

Label = int | float | npt.NDArray[Any]
NO_LABEL: Final = -1
"""Label of every row of a dataset without labels, as in torchvision's unlabelled STL10."""
# What Linux reads ahead by default. No device cuts a request shorter than that, unless its read-ahead was turned down.
_PIECE: Final = 128 << 10


class RecordStore:
    """The records of a dataset, by row.

    If `path` is a staged copy, it is not evicted while this object lives.

    It pickles as its arguments, and can be used on both sides of a fork, because it holds no state that two processes
    could disturb.

    Args:
        path: The dataset's folder.
        io: ``"mmap"`` maps shards; ``"pread"`` copies each record with one system call, so that a read error is an
            exception and not a SIGBUS; ``"auto"`` takes pread on network file systems, mmap elsewhere.
        check: Compare each record with its checksum when it is read.

    Raises:
        NotADataset: `path` has no manifest.
        UnsupportedVersion: It was written by a newer packtrain.
        CorruptFile: Manifest or index is damaged.
        UnreadableFile: Manifest or index cannot be read.
        StagingError: `path` was a staged copy, but has been evicted.
    """

    def __init__(self, path: str | os.PathLike[str], *, io: str = "auto", check: bool = True) -> None:
        choice("io", io, IO)
        self.path: Final = local_path(path)
        # Held as long as this object lives, also by processes that are forked from this one.
        self._lease: Final = lease_on(self.path)
        self.manifest: Final = Manifest.load(self.path)
        self.io: Final[Literal["mmap", "pread"]] = (
            "pread" if io == "pread" or (io == "auto" and self._on_network()) else "mmap"
        )
        self.check: Final = check
        self.index: Final = Index.of(self.path, self.manifest)
        self.read_bytes = 0
        """Bytes of records read since this was opened."""
        self._length = self.manifest.records
        self._check_row = self.index.check
        # A memoryview yields a Python int in a third of the time that a numpy scalar takes.
        self._shard = _native(self.index["shard"]).data
        self._offset = _native(self.index["offset"]).data
        self._size = _native(self.index["length"]).data
        self._crc32c = _native(self.index["crc32c"]).data
        self._width = _native(self.index["width"]).data
        self._height = _native(self.index["height"]).data
        self._labels = _labels(self.index) if self.manifest.labels.kind != "none" else None
        self._shards: dict[int, _MappedShard | _OpenShard] = {}
        self._most_shards = _descriptor_budget()

    def __len__(self) -> int:
        return self._length

    def record(self, row: int) -> memoryview:
        """The stored bytes of `row` as a read-only memoryview; with mmap, no byte is copied.

        Raises:
            IndexError: There is no such row.
            CorruptFile: The shard is missing or has the wrong size, or the index is damaged at this row.
            UnreadableFile: The shard cannot be opened or read.
            CorruptRecord: The bytes differ from what was written.
        """
        return self._read(self.checked_row(row))

    def image(self, row: int, on_stage: OnStage = untimed) -> EncodedImage:
        """The image of `row` as it is stored; raises what `record` raises."""
        row = self.checked_row(row)
        width, height = self._width[row], self._height[row]
        if width < 1 or height < 1:
            raise self.corrupt(row, f"its index entry says {width} x {height} pixels")
        return EncodedImage(self._read(row, on_stage), width, height)

    def copy_crops(
        self,
        rows: npt.NDArray[np.int64],
        plan: BatchPlan,
        out: npt.NDArray[np.uint8],
        at: npt.NDArray[np.int64],
        names: npt.NDArray[np.int64],
        current: Buffer,
    ) -> bool:
        """Runs a plan on raw records: copies a rectangle of each, resized if the plan says so.

        Args:
            rows: Rows of the records, int64 [records]; `check_rows` must have been called for them.
            plan: The rectangles.
            out: The results, uint8 [any, height, width, channels].
            at: Index in `out` for each record, int64 [records].
            names: Number by which the caller knows each record, int64 [records].
            current: int64 [1]; the number of the record that is being read is written here.

        Returns:
            True if all records were copied. False if something is wrong with one of them, which `record` will name, or
            if records cannot be copied this way here.
        """
        if extension is None or self.io != "mmap":
            return False
        numbers, shards = np.unique(self.index["shard"][rows], return_inverse=True)
        try:
            opened = [self._shards.get(number) or self._open_shard(number, int(rows[0])) for number in numbers.tolist()]
        except DatasetError:
            return False
        places = np.empty(len(rows), PLACE)
        places["target"], places["row"], places["shard"] = at, names, shards
        for name in ("offset", "length", "crc32c", "width", "height"):
            places[name] = self.index[name][rows]
        for name, column in zip(CROP, plan.boxes.T, strict=True):
            places[name] = column
        views = [shard.read(0, shard.bytes) for shard in opened]
        if not extension.copy_records(views, places, self.check, plan.resample, plan.style, out, current):
            return False
        self.read_bytes += int(places["length"].sum())
        return True

    def will_need(self, row: int) -> int:
        """Asks the system to read the record of `row` into memory, without waiting for it.

        Returns:
            The record's size in bytes; 0 if it cannot be read, in which case `record` raises the reason.
        """
        try:
            shard, offset, size = self._place(self.checked_row(row))
            shard.will_need(offset, size)
        except (IndexError, DatasetError, OSError):
            return 0
        return size

    def _read(self, row: int, on_stage: OnStage = untimed) -> memoryview:
        shard, offset, size = self._place(row)
        try:
            data = shard.read(offset, size)
        except OSError as error:
            raise self._unreadable(row, error, "read") from error
        self.read_bytes += size
        on_stage(READ)
        if self.check and crc32c(data) != self._crc32c[row]:
            raise self.corrupt(row, f"crc32c is {crc32c(data):08x}, {self._crc32c[row]:08x} was written")
        on_stage(CHECK)
        return data

    def _place(self, row: int) -> tuple[_MappedShard | _OpenShard, int, int]:
        """Shard, offset and size in bytes of a record."""
        number = self._shard[row]
        shard = self._shards.get(number) or self._open_shard(number, row)
        offset, size = self._offset[row], self._size[row]
        if offset < 0 or size < 0 or offset + size > shard.bytes:
            raise self.corrupt(
                row, f"its index entry points outside the shard ({offset} + {size} of {shard.bytes} bytes)"
            )
        return shard, offset, size

    def labels(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The labels of several rows, [rows] or [rows, K]; `check_rows` must have been called for them."""
        return np.full(len(rows), NO_LABEL) if self._labels is None else self.index["label"][rows]

    def label(self, row: int) -> Label:
        """The label of `row`: int, float, or an array [K] of int64 or float32; `NO_LABEL` without labels."""
        row = self.checked_row(row)
        if self._labels is None:
            return NO_LABEL
        value = self._labels[row]
        # A memoryview gives plain numbers, a two-dimensional array its rows.
        return value.copy() if isinstance(value, np.ndarray) else value

    def checked_row(self, row: int) -> int:
        """Checks the row number and its part of the index; a negative row is counted from the end.

        Raises:
            IndexError: There is no such row.
            CorruptFile: The index is damaged there.
        """
        if not 0 <= row < self._length:
            if not -self._length <= row < 0:
                raise IndexError(f"row {row} of a dataset of {self._length} rows")
            row += self._length
        self._check_row(row)
        return row

    def check_rows(self, rows: npt.NDArray[np.int64]) -> None:
        """Checks several row numbers, none of them negative, and their parts of the index.

        Raises:
            IndexError: There is no such row.
            CorruptFile: The index is damaged there.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < self._length):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a dataset of {self._length} rows")
        self.index.check_rows(rows)

    def describe(self, row: int) -> str:
        """The name of `row` for messages: row, line, path and shard."""
        line = int(self.index["line"][row])
        return f"row {row} (line {line}, {self.index.text('path', row)!r}, in {self._info(self._shard[row]).name})"

    def corrupt(self, row: int, how: str) -> CorruptRecord:
        """The error that says how the record of `row` is damaged."""
        try:
            what = self.describe(row)
        except DatasetError:
            what = f"row {row}"
        shard = self._shard[row]
        file = self.manifest.shards[shard].name if shard < len(self.manifest.shards) else None
        return CorruptRecord(
            f"{self.path}: {what} is damaged: {how}. `packtrain verify` lists all damage; {self._remedy}",
            file=file,
            row=row,
            line=int(self.index["line"][row]),
        )

    def close(self) -> None:
        """Closes the shards. Views that were handed out stay valid; the next read opens the shards again."""
        self._shards = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., RecordStore], tuple[str, str, bool]]:
        return _reopen, (os.fspath(self.path), self.io, self.check)

    def _on_network(self) -> bool:
        # If a dataset is staged in part, its last shards are links to the source.
        last = [self.path / shard.name for shard in self.manifest.shards[-1:]]
        return is_network(self.path) or any(path.is_symlink() and is_network(path) for path in last)

    def _info(self, number: int) -> ShardInfo:
        if number >= len(self.manifest.shards):
            raise CorruptFile(f"{self.path}: the index names shard {number} of {len(self.manifest.shards)}", file=INDEX)
        return self.manifest.shards[number]

    def _open_shard(self, number: int, row: int) -> _MappedShard | _OpenShard:
        info = self._info(number)
        if len(self._shards) >= self._most_shards:
            self._shards.pop(next(iter(self._shards)))
        try:
            shard = (_MappedShard if self.io == "mmap" else _OpenShard)(self.path / info.name)
        except OSError as error:
            raise self._unreadable(row, error, "opened") from error
        if shard.bytes != info.bytes:
            why = f"its shard has {shard.bytes} bytes, {info.bytes} were written; {self._remedy}"
            raise CorruptFile(f"{self.path}: {self.describe(row)} cannot be read: {why}", file=info.name)
        self._shards[number] = shard
        return shard

    def _unreadable(self, row: int, error: OSError, verb: str) -> DatasetError:
        """The error for a shard that cannot be opened or read."""
        kind = error_kind(error)
        why = f"its shard cannot be {verb} ({reason(error)})"
        if kind is CorruptFile:  # a sound copy would not help if, say, too many files are open
            why = f"{why}; {self._remedy}"
        file = self._info(self._shard[row]).name
        return kind(f"{self.path}: {self.describe(row)} cannot be read: {why}", file=file)

    @property
    def _remedy(self) -> str:
        if self._lease is not None:
            return f"`packtrain staged repair {shlex.quote(os.fspath(self.path))}` copies once more what is damaged"
        return "restore the shard from a sound copy, or pack again"


class _MappedShard:
    """A mapped shard; the last view of it that is dropped unmaps it."""

    def __init__(self, path: Path) -> None:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            # An empty file cannot be mapped.
            empty = os.fstat(file.fileno()).st_size == 0
            self._map = None if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map or b"")
        self.bytes = len(self._view)

    def read(self, offset: int, size: int) -> memoryview:
        return self._view[offset : offset + size]

    def will_need(self, offset: int, size: int) -> None:
        if self._map is not None:
            for start, length in _pieces(offset, size):
                self._map.madvise(mmap.MADV_WILLNEED, start, length)


class _OpenShard:
    """A shard read with pread. It is closed when it is dropped, and so never in the middle of another thread's read."""

    def __init__(self, path: Path) -> None:
        self._descriptor = open_regular(path)
        weakref.finalize(self, os.close, self._descriptor)
        self.bytes = os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> memoryview:
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size:
            buffer = bytearray(data)
            while piece := os.pread(self._descriptor, size - len(buffer), offset + len(buffer)):
                buffer += piece
            data = bytes(buffer)
        return memoryview(data)

    def will_need(self, offset: int, size: int) -> None:
        for start, length in _pieces(offset, size):
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_WILLNEED)


def _pieces(offset: int, size: int) -> Iterator[tuple[int, int]]:
    """The pages around a range, in pieces that the kernel reads ahead in full; it truncates longer requests."""
    end = offset + size
    for start in range(offset - offset % mmap.PAGESIZE, end, _PIECE):
        yield start, min(_PIECE, end - start)


def _reopen(path: str, io: str, check: bool) -> RecordStore:
    return RecordStore(path, io=io, check=check)


def _native(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column if sys.byteorder == "little" else column.astype(column.dtype.newbyteorder("="))


def _labels(index: Index) -> Any:
    column = index["label"]
    return column if column.ndim > 1 else _native(column).data


def _descriptor_budget() -> int:
    """How many shards may be open at once: half of the descriptors this process may have (each map holds one)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else max(16, soft // 2)
