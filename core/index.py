"""The index: one memory-mapped `.npy` file per column, so that a reader's memory does not grow with the dataset.

Row columns hold one entry per row, in list order (`by_place` is the exception: entry p is the row at place p). A text
column is a pair: ``<name>_bytes`` (uint8, all texts one after the other) and ``<name>_offsets`` (int64, rows + 1).

``blocks.npy`` (uint32) holds one checksum per block of R = `ROWS_PER_BLOCK` rows. The checksum of block b is the crc32c
of the bytes of its entries, concatenated over the columns in the order of the manifest: entries [b * R, (b + 1) * R) of
a row column, entries [b * R, (b + 1) * R] of an offsets column, and for a bytes column the bytes between the first and
the last of these offsets. A block is checked when one of its rows is first used, so that opening costs nothing per row
and damage is never taken for data.

From version 2 of the format on, each field other than the image has columns of its own, such as ``field.NAME.offset``,
with checksums in ``field.NAME.blocks``. They are neither opened nor checked unless the field is asked for.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from .errors import CorruptFile
from .files import write_file
from .manifest import HEADER_BYTES, INDEX, MANIFEST, ColumnInfo, Manifest
from .npy import npy_header
from .opening import open_regular
from .problems import reading
from .schema import IMAGE, Field

ROWS_PER_BLOCK: Final = 1024
_ROWS_AT_ONCE: Final = 1 << 20
BLOCKS: Final = "blocks"
_APART: Final = 64
"""Up to this distance on average, searching the texts in between as well takes less time than taking each by itself."""
_OFFSETS: Final = "_offsets"
_BYTES: Final = "_bytes"

FIELD: Final = "field."

ROW_COLUMNS: Final = {"line": "<i8", "shard": "<u4", "by_place": "<i8"}
"""Columns of every index and their dtypes. There are also the text column ``path``, with labels ``label``, and the
columns of the fields, see `packtrain._core.schema.Field.columns`."""

Array = npt.NDArray[Any]


class IndexWriter:
    """Writes the columns of an index one after the other, so that only one at a time is in memory, or a piece of it.

    Args:
        folder: The ``index`` folder; it must exist.
        rows: Number of rows.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._rows = rows
        self._columns: list[ColumnInfo] = []
        self._blocks: dict[str, Array] = {"": np.zeros(_block_count(rows), "<u4")}

    def add(self, name: str, values: Array) -> None:
        """Writes a row column: `values` [rows, ...]."""
        self.add_pieces(name, values.dtype.str, values.shape[1:], [values])

    def add_pieces(self, name: str, dtype: str, shape: tuple[int, ...], pieces: Iterable[Array]) -> None:
        """Writes a row column that comes in pieces.

        Args:
            name: Name of the column.
            dtype: numpy type string of its values.
            shape: Shape of an entry.
            pieces: Arrays [some, *shape] of this type, together all rows.
        """
        stride = ROWS_PER_BLOCK * np.dtype(dtype).itemsize * math.prod(shape)
        bounds = np.arange(_block_count(self._rows) + 1) * stride
        self._write(name, name, dtype, (self._rows, *shape), pieces, bounds[:-1], bounds[1:])

    def add_text(self, name: str, offsets: Array, texts: Array) -> None:
        """Writes a text column: `offsets` int64 [rows + 1] into `texts` uint8."""
        self.add_text_pieces(name, [offsets], [texts], len(texts))

    def add_text_pieces(self, name: str, offsets: Iterable[Array], texts: Iterable[Array], size: int) -> None:
        """Writes a text column that comes in pieces.

        Args:
            name: Name of the column.
            offsets: Where the texts begin, and where the last one ends, int64 [some], together rows + 1.
            texts: Their bytes, uint8 [some].
            size: Number of all these bytes.
        """
        # Where the texts of each block begin; those of the last one end at the last offset.
        bounds = np.zeros(_block_count(self._rows) + 1, np.int64)

        def noted() -> Iterator[Array]:
            row = 0
            for piece in offsets:
                found = piece[-row % ROWS_PER_BLOCK :: ROWS_PER_BLOCK]
                first = _block_count(row)
                bounds[first : first + len(found)] = found[: len(bounds) - first]
                row += len(piece)
                if len(piece):
                    bounds[-1] = piece[-1]
                yield piece

        starts = np.arange(len(bounds) - 1) * ROWS_PER_BLOCK * 8
        stops = np.minimum(starts + (ROWS_PER_BLOCK + 1) * 8, (self._rows + 1) * 8)
        self._write(name, name + _OFFSETS, "<i8", (self._rows + 1,), noted(), starts, stops)
        self._write(name, name + _BYTES, "|u1", (size,), texts, bounds[:-1], bounds[1:])

    def finish(self) -> tuple[ColumnInfo, ...]:
        """Writes the checksums of the blocks. Returns what the manifest has to say about the columns."""
        nothing = np.empty(0, np.int64)
        for prefix, blocks in list(self._blocks.items()):
            self._write("", prefix + BLOCKS, blocks.dtype.str, blocks.shape, [blocks], nothing, nothing)
        return tuple(self._columns)

    def _write(
        self,
        name: str,
        file: str,
        dtype: str,
        shape: tuple[int, ...],
        pieces: Iterable[Array],
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
    ) -> None:
        """Writes a file of the column `name`, of whose data block b covers bytes [starts[b], stops[b])."""
        blocks = self._blocks.setdefault(_prefix(name), np.zeros(_block_count(self._rows), "<u4"))
        header = npy_header(dtype, shape)
        checksum, position = crc32c(header), 0

        def content() -> Iterator[bytes | memoryview]:
            nonlocal checksum, position
            yield header
            for piece in pieces:
                data = _byte_view(piece)
                checksum = crc32c(data, checksum)
                _chain(blocks, starts, stops, position, data)
                position += len(data)
                yield data

        write_file(self._folder / f"{file}.npy", content())
        self._columns.append(ColumnInfo(file, len(header) + position, checksum, dtype, shape))


class Columns:
    """Columns that are checked together, memory-mapped and checked as they are used.

    Args:
        folder: The ``index`` folder.
        columns: What the manifest says about them.
        rows: Number of rows.
        dtypes: Types of the row columns that must be there.
        prefix: What their names begin with; it is left out wherever a name is given.

    Attributes:
        unchecked: For each block of `ROWS_PER_BLOCK` rows, 1 until it has been checked.

    Raises:
        CorruptFile: A column is missing, or its size or header differs from what the manifest says.
        UnreadableFile: A column cannot be read.
    """

    def __init__(
        self, folder: Path, columns: Sequence[ColumnInfo], rows: int, dtypes: Mapping[str, str], prefix: str = ""
    ) -> None:
        self._folder = folder
        self._rows = rows
        self._prefix = prefix
        self._dtypes = dtypes
        described = {column.name.removeprefix(prefix): column for column in columns}
        self._arrays = {name: map_column(folder, column) for name, column in described.items()}
        blocks = self._arrays.pop(BLOCKS, None)
        if blocks is None or (blocks.dtype.str, blocks.shape) != ("<u4", (_block_count(rows),)):
            raise CorruptFile(
                f"{folder}: the manifest describes no usable column {prefix + BLOCKS!r}",
                file=f"index/{prefix}{BLOCKS}.npy",
            )
        header = npy_header(described[BLOCKS].dtype, described[BLOCKS].shape)
        if crc32c(_byte_view(blocks), crc32c(header)) != described[BLOCKS].crc32c:
            raise _damaged(self._file(BLOCKS), "its checksum differs from the manifest's")
        for name, array in self._arrays.items():
            self._check_form(name, array)
        self.require(*dtypes)
        self._blocks = blocks
        self._bytes = [self._bytes_of(name) for name in self._arrays]
        self.unchecked = bytearray(b"\1") * len(blocks)

    def _file(self, name: str) -> Path:
        return self._folder / f"{self._prefix}{name}.npy"

    def _check_form(self, name: str, array: Array) -> None:
        offsets = name.endswith(_OFFSETS)
        known = "<i8" if offsets else "|u1" if name.endswith(_BYTES) else self._dtypes.get(name)
        if known is not None and (array.dtype.str != known or array.ndim != 1):
            how = f"it holds {array.dtype.str} {array.shape}, not {known} in one dimension"
            raise _damaged(self._file(name), how)
        if name.endswith(_BYTES):
            self.require(name.removesuffix(_BYTES) + _OFFSETS)
        elif array.shape[:1] != (self._rows + offsets,):
            raise _damaged(self._file(name), f"it has shape {array.shape} in a dataset of {self._rows} rows")
        elif offsets:
            self.require(name.removesuffix(_OFFSETS) + _BYTES)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> Array:
        """Returns the column `name`, mapped read-only and not checked: call `check` before you use a row of it.

        Raises:
            CorruptFile: There is no such column.
        """
        if name not in self._arrays:
            self.require(name)
        return self._arrays[name]

    def require(self, *names: str) -> None:
        """Makes sure that there are columns with these names.

        Raises:
            CorruptFile: There is no column with one of them.
        """
        for name in names:
            if name not in self._arrays:
                raise CorruptFile(
                    f"{self._folder} has no column {self._prefix + name!r}", file=f"index/{self._prefix}{name}.npy"
                )

    def check(self, row: int) -> None:
        """Checks the block that holds `row`, unless it has been checked before.

        Raises:
            CorruptFile: The block differs from what was written.
        """
        block = row // ROWS_PER_BLOCK
        if self.unchecked[block]:
            self._check_block(block)

    def check_rows(self, rows: npt.NDArray[np.int64]) -> None:
        """Checks the blocks that hold `rows`, int64 [n].

        Raises:
            CorruptFile: A block differs from what was written.
        """
        if 1 not in self.unchecked:
            return
        blocks = rows // ROWS_PER_BLOCK
        # Of rows in order, few are left to be sorted.
        for block in np.unique(blocks[np.diff(blocks, prepend=-1) != 0]).tolist():
            self.check(block * ROWS_PER_BLOCK)

    def check_all(self) -> None:
        """Checks every block. Call it before you read whole columns.

        Raises:
            CorruptFile: A block differs from what was written.
        """
        for block in range(len(self._blocks)):
            self.check(block * ROWS_PER_BLOCK)

    def check_offsets(self) -> None:
        """Checks the offsets of all texts.

        Raises:
            CorruptFile: They do not ascend, or are outside.
        """
        for name in [name for name in self._arrays if name.endswith(_OFFSETS)]:
            offsets, size = self[name], len(self[name.removesuffix(_OFFSETS) + _BYTES])
            ascending = all(
                (np.diff(offsets[start : start + _ROWS_AT_ONCE + 1]) >= 0).all()
                for start in range(0, self._rows, _ROWS_AT_ONCE)
            )
            if not ascending or offsets[0] < 0 or offsets[-1] > size:
                raise _damaged(self._file(name), f"its offsets do not ascend from 0 to {size}")

    def text(self, name: str, row: int) -> str:
        """Returns entry `row` of a text column. Bytes that are not UTF-8 become surrogate escapes (`os.fsdecode`)."""
        self.check(row)
        offsets, texts = self[name + _OFFSETS], self[name + _BYTES]
        start, stop = int(offsets[row]), int(offsets[row + 1])
        if not 0 <= start <= stop <= len(texts):
            path = self._file(name + _OFFSETS)
            raise _damaged(path, f"row {row} is said to be bytes {start} to {stop} of {len(texts)}")
        return os.fsdecode(texts[start:stop].tobytes())

    def texts(self, name: str, rows: npt.NDArray[np.int64]) -> list[str]:
        """Returns some entries, int64 [n], of a text column. What is not UTF-8 becomes U+FFFD."""
        self.check_rows(rows)
        offsets, texts = self[name + _OFFSETS], self[name + _BYTES]
        starts, stops = offsets[rows], offsets[rows + 1]
        sound = (starts >= 0) & (starts <= stops) & (stops <= len(texts))
        if not sound.all():
            self.text(name, int(rows[sound.argmin()]))
        if len(rows) and (starts[1:] == stops[:-1]).all():
            # Decoded and taken apart in one call each; an entry that holds a zero itself makes them too many.
            joined = np.insert(texts[starts[0] : stops[-1]], stops[:-1] - starts[0], 0)
            found = joined.tobytes().decode(errors="replace").split("\0")
            if len(found) == len(rows):
                return found
        view = _byte_view(texts)
        return [
            str(view[start:stop], "utf-8", "replace")
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]

    def having(self, name: str, part: bytes, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns which of some entries, int64 [n], ascending, have bytes in them; capitals of ASCII count as small."""
        self.check_rows(rows)
        offsets, texts = self[name + _OFFSETS], self[name + _BYTES]
        part = part.lower()
        if len(rows) and rows[-1] - rows[0] >= len(rows) * _APART:
            spans = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
            return np.array([part in texts[start:stop].tobytes().lower() for start, stop in spans], bool)
        # Of rows that lie close together, all that lies between them is searched at once.
        first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
        bounds = offsets[first : last + 2].astype(np.int64) - int(offsets[first])
        data, hits = (
            texts[int(offsets[first]) :][: max(0, int(bounds[-1]))].tobytes().lower(),
            np.zeros(last + 1 - first, bool),
        )
        at = data.find(part)
        while at >= 0:
            row = min(int(np.searchsorted(bounds, at, "right")), len(hits)) - 1
            end = int(bounds[row + 1])
            hits[row] |= at + len(part) <= end
            at = data.find(part, max(end, at + 1) if hits[row] else at + 1)
        found: npt.NDArray[np.bool_] = hits[rows - first]
        return found

    def _check_block(self, block: int) -> None:
        start, stop = block * ROWS_PER_BLOCK, min(self._rows, (block + 1) * ROWS_PER_BLOCK)
        checksum = 0
        for data, row_bytes, more, offsets in self._bytes:
            if offsets is None:
                begin, end = start * row_bytes, stop * row_bytes + more
            else:
                # The offsets may be damaged. If they are, the slice is cut at the end of the column or empty.
                begin, end = max(0, int(offsets[start])), max(0, int(offsets[stop]))
            checksum = crc32c(data[begin:end], checksum)
        if checksum != int(self._blocks[block]):
            of = f" (field {self._prefix[len(FIELD) : -1]})" if self._prefix else ""
            raise CorruptFile(
                f"{self._folder}{of} is damaged in rows {start} to {stop - 1}: checksum mismatch. `packtrain verify` "
                "names the file",
                file="index",
            )
        self.unchecked[block] = 0

    def _bytes_of(self, name: str) -> tuple[memoryview, int, int, Array | None]:
        """Bytes of a column, those of a row, and those that a block shares with the next; offsets if they are texts."""
        array = self._arrays[name]
        offsets = self._arrays[name.removesuffix(_BYTES) + _OFFSETS] if name.endswith(_BYTES) else None
        row_bytes = array.itemsize * math.prod(array.shape[1:])
        return _byte_view(array), row_bytes, row_bytes if name.endswith(_OFFSETS) else 0, offsets


class Index(Columns):
    """The index of a dataset: the columns of all rows, and those of fields as they are asked for.

    Args:
        folder: The ``index`` folder.
        columns: What the manifest says about the columns.
        rows: Number of rows.
        fields: The stored fields.

    Raises:
        CorruptFile: A column is missing, or its size or header differs from what the manifest says.
        UnreadableFile: A column cannot be read.
    """

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> Self:
        """Opens the index of the dataset in `folder`; raises what the class raises."""
        if not manifest.records:
            raise CorruptFile(f"{folder}: a dataset without a record", file=MANIFEST)
        index = cls(folder / INDEX, manifest.columns, manifest.records, manifest.schema.fields)
        index.require("path" + _OFFSETS)
        if manifest.labels.kind != "none":
            label, shape = index["label"], manifest.labels.shape(manifest.records)
            if (label.dtype.str, label.shape) != (manifest.labels.dtype, shape):
                path, what = folder / INDEX / "label.npy", f"{manifest.labels.dtype} {shape}"
                raise _damaged(path, f"it holds {label.dtype.str} {label.shape}, not {what}")
        return index

    def __init__(self, folder: Path, columns: Sequence[ColumnInfo], rows: int, fields: Sequence[Field] = ()) -> None:
        self._fields = {field.name: field for field in fields}
        self._described: dict[str, list[ColumnInfo]] = {"": []}
        self._opened: dict[str, Columns] = {}
        for column in columns:
            self._described.setdefault(_prefix(column.name), []).append(column)
        image = self._fields[IMAGE].columns() if IMAGE in self._fields else {}
        super().__init__(folder, self._described[""], rows, ROW_COLUMNS | image)

    def field(self, name: str) -> Columns:
        """Returns the columns of a field, called ``offset``, ``length`` and so on; opens them if they are not open.

        Raises:
            KeyError: There is no such field.
            CorruptFile: A column is missing, or its size or header differs from what the manifest says.
            UnreadableFile: A column cannot be read.
        """
        field = self._fields[name]
        if name == IMAGE:
            return self
        if name not in self._opened:
            dtypes = {column.removeprefix(field.prefix): dtype for column, dtype in field.columns().items()}
            described = self._described.get(field.prefix, [])
            opened = Columns(self._folder, described, self._rows, dtypes, field.prefix)
            if field.text_column is not None:
                opened.require(field.text_column.removeprefix(field.prefix) + _OFFSETS)
            self._opened[name] = opened
        return self._opened[name]

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the rows whose records lie at these places, both int64 [n].

        Raises:
            CorruptFile: The index is damaged there, or names a row outside the dataset.
        """
        self.check_rows(places)
        return self._inside(self["by_place"][places])

    def places(self) -> npt.NDArray[np.int64]:
        """Returns the place of each row, int64 [rows]: the inverse of ``by_place``. Reads the whole index.

        Raises:
            CorruptFile: The index is damaged, or ``by_place`` does not hold each row once.
        """
        self.check_all()
        result = np.full(self._rows, -1, np.int64)
        result[self._inside(self["by_place"])] = np.arange(self._rows)
        if result.min(initial=0) < 0:
            raise _damaged(self._file("by_place"), "it names a row twice")
        return result

    def check_content(self) -> None:
        """Checks every block of all fields, and what readers check row by row: ``by_place`` and the offsets of texts.

        Raises:
            CorruptFile: The index is damaged, or was never sound.
        """
        for name in self._fields:
            self.field(name).check_all()
            if name != IMAGE:
                self.field(name).check_offsets()
        self.check_all()
        seen = np.zeros(self._rows, bool)
        for start in range(0, self._rows, _ROWS_AT_ONCE):
            seen[self._inside(self["by_place"][start : start + _ROWS_AT_ONCE])] = True
        if not seen.all():
            raise _damaged(self._file("by_place"), "it names a row twice")
        self.check_offsets()

    def _inside(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if len(rows) and not (rows.min() >= 0 and rows.max() < self._rows):
            raise _damaged(self._file("by_place"), f"it names a row outside the {self._rows} rows")
        return rows


def text_column(texts: Iterable[bytes], rows: int) -> tuple[Array, Array]:
    """Return arguments for `IndexWriter.add_text`: offsets, int64 [rows + 1], and the bytes of all texts, uint8."""
    data, offsets = bytearray(), np.zeros(rows + 1, "<i8")
    for row, text in enumerate(texts):
        data += text
        offsets[row + 1] = len(data)
    return offsets, np.frombuffer(data, np.uint8)


def _chain(
    blocks: Array, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], position: int, data: memoryview
) -> None:
    """Continues the checksums of the blocks that `data`, which begins at `position`, belongs to."""
    first = int(np.searchsorted(stops, position, "right"))
    last = int(np.searchsorted(starts, position + len(data)))
    begins = np.maximum(starts[first:last] - position, 0).tolist()
    ends = (stops[first:last] - position).tolist()
    for block, begin, end in zip(range(first, last), begins, ends, strict=True):
        blocks[block] = crc32c(data[begin:end], int(blocks[block]))


def _prefix(name: str) -> str:
    """Return the prefix of the columns of a column's field; empty for the columns of all rows."""
    parts = name.split(".", 2)
    return f"{FIELD}{parts[1]}." if len(parts) == 3 and name.startswith(FIELD) else ""


def _block_count(rows: int) -> int:
    return -(-rows // ROWS_PER_BLOCK)


def _byte_view(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view("u1").data) if array.size else memoryview(b"")


def _damaged(path: Path, how: str) -> CorruptFile:
    return CorruptFile(f"{path} is damaged: {how}", file=f"{path.parent.name}/{path.name}")


def map_column(folder: Path, column: ColumnInfo) -> Array:
    """Maps a column whose file is in `folder`.

    Raises:
        CorruptFile: It is missing, or its size or header differs from what `column` says.
        UnreadableFile: It cannot be read.
    """
    path = folder / f"{column.name}.npy"
    try:
        dtype = np.dtype(column.dtype)
        expected = HEADER_BYTES + dtype.itemsize * math.prod(column.shape)
        header = npy_header(column.dtype, column.shape)
    except (TypeError, ValueError) as error:
        raise _damaged(path, f"the manifest describes it as {column.dtype} {column.shape}") from error
    if dtype.hasobject or expected != column.bytes:
        raise _damaged(path, f"the manifest describes it as {column.dtype} {column.shape} in {column.bytes} bytes")
    with reading(path, file=f"{folder.name}/{path.name}"), os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected:
            raise _damaged(path, f"it has {size} bytes, not {expected}")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if mapped[:HEADER_BYTES] != header:
        raise _damaged(path, "its header differs from the manifest's description")
    return np.frombuffer(mapped, dtype, offset=HEADER_BYTES).reshape(column.shape)
