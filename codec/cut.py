"""The cut: a small JPEG for a rectangle of a larger one, made from its compressed bytes.

A crop-ready record (docs/format.md) has restart markers and a table that says where they are. A restart interval, the
data between two markers, can be decoded without the data before it. So a cut consists of the intervals that a rectangle
touches, one after another, under a frame header with their size: an ordinary baseline JPEG that any decoder reads. The
rest of the record is never read.

The C extension does the same in a tenth of the time; a test compares the two.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from .geometry import Box
from .native import extension

_HEADER: Final = struct.Struct("<10sHIIII")
_NAME: Final = b"packtrain\0"
_APP0: Final = b"\xff\xe0"
_APP9: Final = b"\xff\xe9"
_FRAMES: Final = (b"\xff\xc0", b"\xff\xc1")
_ENTRIES: Final = {2: "<u2", 4: "<u4"}
_FRAME_BYTES: Final = {1: 13, 3: 19}
# The second bytes of the restart markers RST0 to RST7.
_RESTARTS: Final = np.arange(0xD0, 0xD8, dtype=np.uint8)


class Cut(NamedTuple):
    """A small JPEG.

    Attributes:
        data: The bytes of the JPEG.
        left: Number of pixels of the whole image to the left of the cut.
        top: Number of pixels of the whole image above the cut.
    """

    data: bytes | bytearray
    left: int
    top: int


class _Table(NamedTuple):
    """A record's restart intervals, and the contents of its frame header.

    Attributes:
        head: Offset of the first segment that a cut copies, in bytes.
        frame: Offset of the frame header, in bytes.
        scan: Offset of the coded data, in bytes.
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        mcu_width: Width of an MCU, in pixels.
        mcu_height: Height of an MCU, in pixels.
        step: Width of an interval, in pixels.
        ends: Offset of the end of each interval, in bytes, int64 [MCU rows, intervals in a row].
    """

    head: int
    frame: int
    scan: int
    width: int
    height: int
    mcu_width: int
    mcu_height: int
    step: int
    ends: np.ndarray[tuple[int, int], np.dtype[np.int64]]


def cut(record: bytes | memoryview, box: Box) -> Cut | None:
    """Cuts a rectangle out of a crop-ready record.

    Args:
        record: The bytes of the record.
        box: A rectangle inside the image, in pixels.

    Returns:
        The cut, or None if `record` is not a JPEG with a valid table of restart intervals.

    Raises:
        ValueError: `box` is not inside the image.
    """
    if extension is None:
        return python_cut(record, box)
    found = extension.cut(record, box)
    return None if found is None else Cut(*found)


def has_table(record: memoryview) -> bool:
    """True if a record has a table of restart intervals, valid or not."""
    start = _table_start(record)
    return bytes(record[start : start + 2]) == _APP9 and bytes(record[start + 4 : start + 4 + len(_NAME)]) == _NAME


def python_cut(record: bytes | memoryview, box: Box) -> Cut | None:
    """Does what `cut` does, without the C extension; see there for arguments, result and errors."""
    table = _read_table(memoryview(record))
    if table is None:
        return None
    left, top, width, height = box
    if not (0 <= left < left + width <= table.width and 0 <= top < top + height <= table.height):
        raise ValueError(f"the rectangle is not inside an image of {table.width} x {table.height} pixels")
    # Where chroma has fewer samples than luma, libjpeg interpolates between neighbours, so one more sample is needed on
    # each side. It does so only in images that are wider than two samples, so a cut must be wider too.
    beside = table.mcu_width // 8 if table.mcu_width > 8 else 0
    above = table.mcu_height // 8 if table.mcu_height > 8 else 0
    first = max(left - beside, 0) // table.step
    last = -(-min(left + width + beside, table.width) // table.step)
    first_row = max(top - above, 0) // table.mcu_height
    last_row = -(-min(top + height + above, table.height) // table.mcu_height)
    if beside and first and table.width - first * table.step < table.mcu_width:
        first -= 1
    data = _assemble(memoryview(record), table, slice(first_row, last_row), slice(first, last))
    return None if data is None else Cut(data, first * table.step, first_row * table.mcu_height)


def _read_table(record: memoryview) -> _Table | None:
    """The table of a record; None if there is none, or if it does not fit the record."""
    try:
        start = _table_start(record)
        _, wide, head, frame, scan, interval = _HEADER.unpack_from(record, start + 4)
        end = start + 2 + int.from_bytes(record[start + 2 : start + 4])
        components = record[frame + 9]
    except (IndexError, struct.error):
        return None
    if not has_table(record) or wide not in _ENTRIES or components not in _FRAME_BYTES or scan > len(record):
        return None
    if not end <= head <= frame <= scan - _FRAME_BYTES[components] or bytes(record[frame : frame + 2]) not in _FRAMES:
        return None
    height, width = struct.unpack_from(">HH", record, frame + 5)
    samplings = record[frame + 11 : frame + 11 + 3 * components : 3].tolist() if components == 3 else [0x11]
    mcu_width = 8 * max(1, *(sampling >> 4 for sampling in samplings))
    mcu_height = 8 * max(1, *(sampling & 15 for sampling in samplings))
    columns, rows = -(-width // mcu_width), -(-height // mcu_height)
    lengths_at = start + 4 + _HEADER.size
    if interval < 1 or interval > columns or columns % interval:
        return None
    count = rows * (columns // interval)
    if count < 1 or end - lengths_at != count * wide:
        return None
    ends = np.frombuffer(record, _ENTRIES[wide], count, lengths_at).cumsum(dtype=np.int64)
    ends += scan
    if ends[-1] != len(record):
        return None
    return _Table(head, frame, scan, width, height, mcu_width, mcu_height, interval * mcu_width, ends.reshape(rows, -1))


def _table_start(record: memoryview) -> int:
    """Offset of the segment that may hold a table: after the start of the image and JFIF."""
    return 2 if bytes(record[2:4]) != _APP0 else 4 + int.from_bytes(record[4:6])


def _assemble(record: memoryview, table: _Table, rows: slice, columns: slice) -> bytearray | None:
    """The JPEG of some intervals; None if a restart marker is not where the table says it is."""
    starts = np.concatenate(([table.scan], table.ends.ravel()[:-1])).reshape(table.ends.shape)[rows, columns]
    ends = table.ends[rows, columns]
    lengths = (ends - starts).ravel()
    if lengths.min() < 2:
        return None
    parts: list[bytes | memoryview] = [b"\xff\xd8", record[table.head : table.scan]]
    parts += map(record.__getitem__, map(slice, starts[:, 0].tolist(), ends[:, -1].tolist()))
    data = bytearray().join(parts)
    header = table.scan - table.head
    struct.pack_into(
        ">HH",
        data,
        2 + table.frame - table.head + 5,
        min(rows.stop * table.mcu_height, table.height) - rows.start * table.mcu_height,
        min(columns.stop * table.step, table.width) - columns.start * table.step,
    )
    flat = np.frombuffer(data, np.uint8)
    markers = lengths.cumsum()
    markers += 1 + header
    if (flat[markers - 1] != 0xFF).any():
        return None
    flat[markers] = np.resize(_RESTARTS, len(markers))
    data[-1] = 0xD9
    return data
