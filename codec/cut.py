"""The cut: a small JPEG for a rectangle of a larger one, made from its compressed bytes.

A crop-ready record (docs/format.md) has restart markers, between which nothing depends on what lies before, and a table
of where they are. The restart intervals that a rectangle touches, one after the other under a frame header of their
size, are an ordinary baseline JPEG that any decoder reads; the rest of the record is never looked at.

The C extension does the same in a tenth of the time; a test holds the two against each other.
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
# Last bytes of the restart markers.
_RESTARTS: Final = np.arange(0xD0, 0xD8, dtype=np.uint8)


class Cut(NamedTuple):
    """A small JPEG.

    Attributes:
        data: Its bytes.
        left: How many pixels of the whole image lie to the left of it.
        top: How many lie above it.
    """

    data: bytes | bytearray
    left: int
    top: int


class _Table(NamedTuple):
    """A record's restart intervals, and what its frame header says.

    Attributes:
        head: Offset of the first segment that a cut takes over.
        frame: Offset of the frame header.
        scan: Offset of the coded data.
        width: Of the image, in pixels.
        height: Likewise.
        mcu_width: Pixels that one MCU is wide.
        mcu_height: Pixels that it is high.
        step: Pixels that one interval is wide.
        ends: Offset behind each interval, int64 [MCU rows, intervals in a row].
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
        record: The record's bytes.
        box: A rectangle inside the image, in pixels.

    Returns:
        The cut, or None if `record` is no JPEG with a sound table of restart intervals.

    Raises:
        ValueError: `box` is not inside the image.
    """
    if extension is None:
        return python_cut(record, box)
    found = extension.cut(record, box)
    return None if found is None else Cut(*found)


def has_table(record: memoryview) -> bool:
    """Whether a record has a table of restart intervals, sound or not."""
    start = _table_start(record)
    return bytes(record[start : start + 2]) == _APP9 and bytes(record[start + 4 : start + 4 + len(_NAME)]) == _NAME


def python_cut(record: bytes | memoryview, box: Box) -> Cut | None:
    """What `cut` does where the C extension is missing."""
    table = _read_table(memoryview(record))
    if table is None:
        return None
    left, top, width, height = box
    if not (0 <= left < left + width <= table.width and 0 <= top < top + height <= table.height):
        raise ValueError(f"the rectangle is not inside an image of {table.width} x {table.height} pixels")
    # Chroma that has fewer samples than luma is interpolated between neighbours, so that one sample more counts on each
    # side. libjpeg does so only in images that are wider than two samples: a cut must not be narrower.
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
    """The table of a record, None if it has none or one that does not fit it."""
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
    """Where the segment lies that may hold a table: behind the start of the image and JFIF."""
    return 2 if bytes(record[2:4]) != _APP0 else 4 + int.from_bytes(record[4:6])


def _assemble(record: memoryview, table: _Table, rows: slice, columns: slice) -> bytearray | None:
    """The JPEG of some intervals; None if a restart marker is not where the table says."""
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
