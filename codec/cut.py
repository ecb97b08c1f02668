"""The cut: a small JPEG for a rectangle of a larger one, made from its compressed bytes.

A crop-ready record (docs/format-records.md) has restart markers and a table that says where they are. A restart
interval, the data between two markers, can be decoded without the data before it. So a cut consists of the intervals
that a rectangle touches, one after another, under a frame header with their size: an ordinary baseline JPEG that any
decoder reads. The rest of the record is never read.

The C extension does the same in a tenth of the time; a test compares the two.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .native import extension
from .pixels import Box

_TABLE: Final = struct.Struct("<10sHIIII")
_NAME: Final = b"packtrain\0"
_SCAN_FIELD: Final = 20
"""Offset in the table of the field that says where the coded data begins."""
_START: Final = b"\xff\xd8"
_APP0: Final = 0xE0
_APP9: Final = 0xE9
_APP14: Final = 0xEE
_TABLES: Final = (0xDB, 0xC4)
_FRAMES: Final = (0xC0, 0xC1)
_RESTART_INTERVAL: Final = 0xDD
_SCAN: Final = 0xDA
_METADATA: Final = (0xE1, 0xE2)
_ENTRIES: Final = {2: "<u2", 4: "<u4"}
# The second bytes of the restart markers RST0 to RST7.
_RESTARTS: Final = np.arange(0xD0, 0xD8, dtype=np.uint8)
_END: Final = 0xD9


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


class _Segment(NamedTuple):
    """A segment of a JPEG: its marker, the offsets of its marker and of what follows it, and its content."""

    marker: int
    start: int
    end: int
    body: bytes


class _Record(NamedTuple):
    """A crop-ready record, parsed and checked. All but `coded` is a copy: the record may lie in a file that changes.

    Attributes:
        header: The segments that a cut copies, from APP14 or the first DQT to SOS.
        size_at: Offset in `header` of height and width.
        coded: The coded data.
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        mcu_width: Width of an MCU, in pixels.
        mcu_height: Height of an MCU, in pixels.
        step: Width of an interval, in pixels.
        ends: Offset in `coded` of the end of each interval, int64 [MCU rows, intervals in a row].
    """

    header: bytes
    size_at: int
    coded: memoryview
    width: int
    height: int
    mcu_width: int
    mcu_height: int
    step: int
    ends: npt.NDArray[np.int64]


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


def has_table(record: bytes | memoryview) -> bool:
    """True if a record has a table of restart intervals, valid or not."""
    return _is_table(record, _table_start(record))


def without_table(data: bytes) -> bytes:
    """A JPEG without the table of restart intervals that somebody else put there: nobody knows what that says."""
    while has_table(data):
        start = end = _table_start(data)
        # All that follow each other at once: a file may have thousands.
        while _is_table(data, end) and (size := int.from_bytes(data[end + 2 : end + 4])) >= 2 + _TABLE.size:
            end += 2 + size
        if end == start:
            break
        data = data[:start] + data[end:]
    return data


def has_true_table(record: bytes | memoryview) -> bool:
    """True if `record` is crop-ready, and its table names exactly the restart intervals that a decoder will find.

    `cut` looks only at the intervals that it needs; this reads all coded data.
    """
    parsed = _parse(memoryview(record))
    if parsed is None:
        return False
    coded = np.frombuffer(parsed.coded, np.uint8)
    found = np.flatnonzero((coded[:-1] == 0xFF) & (coded[1:] != 0)) + 2
    return np.array_equal(found, parsed.ends.ravel()) and np.array_equal(coded[found - 1], _markers(len(found)))


def python_cut(record: bytes | memoryview, box: Box) -> Cut | None:
    """Does what `cut` does, without the C extension; see there for arguments, result and errors."""
    parsed = _parse(memoryview(record))
    if parsed is None:
        return None
    left, top, width, height = box
    if not (0 <= left < left + width <= parsed.width and 0 <= top < top + height <= parsed.height):
        raise ValueError(f"the rectangle is not inside an image of {parsed.width} x {parsed.height} pixels")
    # Where chroma has fewer samples than luma, libjpeg interpolates between neighbours, so one more sample is needed on
    # each side. It does so only in images that are wider than two samples, so a cut must be wider too.
    beside = parsed.mcu_width // 8 if parsed.mcu_width > 8 else 0
    above = parsed.mcu_height // 8 if parsed.mcu_height > 8 else 0
    first = max(left - beside, 0) // parsed.step
    last = -(-min(left + width + beside, parsed.width) // parsed.step)
    first_row = max(top - above, 0) // parsed.mcu_height
    last_row = -(-min(top + height + above, parsed.height) // parsed.mcu_height)
    if beside and first and parsed.width - first * parsed.step < parsed.mcu_width:
        first -= 1
    data = _assemble(parsed, slice(first_row, last_row), slice(first, last))
    return None if data is None else Cut(data, first * parsed.step, first_row * parsed.mcu_height)


def _is_table(record: bytes | memoryview, start: int) -> bool:
    """Return True if a segment that begins at `start` is a table of restart intervals, valid or not."""
    head = bytes(record[start : start + 4 + len(_NAME)])
    return head[:2] == bytes((0xFF, _APP9)) and head[4:] == _NAME


def _table_start(record: bytes | memoryview) -> int:
    """Offset of the segment that may hold a table: after the start of the image and JFIF."""
    return 2 if bytes(record[2:4]) != bytes((0xFF, _APP0)) else 4 + int.from_bytes(record[4:6])


def _parse(record: memoryview) -> _Record | None:
    """Reads and checks everything before the coded data; None if `record` is not crop-ready."""
    if not has_table(record):
        return None
    (scan,) = struct.unpack("<I", bytes(record[_table_start(record) + 4 + _SCAN_FIELD :][:4]).ljust(4, b"\xff"))
    data = bytes(record[:scan])
    segments = list(_segments(data))
    jfif = bool(segments) and segments[0].marker == _APP0
    if not segments or segments[-1].end != len(data) or len(segments) < 2 + jfif:
        return None
    table, *others = segments[jfif:]
    header = list(itertools.dropwhile(lambda each: each.marker in _METADATA, others))
    if table.marker != _APP9 or len(table.body) < _TABLE.size or not header:
        return None
    name, wide, head, frame, end, interval = _TABLE.unpack_from(table.body)
    # What is found must be what the table says, which includes that `data` ends where the coded data begins.
    if name != _NAME or wide not in _ENTRIES or (head, end) != (header[0].start, len(data)):
        return None
    if not _has_usual_segments(header, interval) or (header[0].marker == _APP14 and jfif):
        return None
    frames = [each for each in header if each.marker in _FRAMES]
    if [each.start for each in frames] != [frame] or not _is_whole_scan(header[-1].body, frames[0].body):
        return None
    found = _mcu(frames[0].body)
    if found is None:
        return None
    height, width, mcu_width, mcu_height = found
    rows, columns = -(-height // mcu_height), -(-width // mcu_width)
    lengths = table.body[_TABLE.size :]
    if not 1 <= interval <= columns or columns % interval or len(lengths) != rows * (columns // interval) * wide:
        return None
    ends = np.frombuffer(lengths, _ENTRIES[wide]).cumsum(dtype=np.int64)
    if ends[-1] != len(record) - scan:
        return None
    return _Record(
        header=data[head:],
        size_at=frame - head + 5,
        coded=record[scan:],
        width=width,
        height=height,
        mcu_width=mcu_width,
        mcu_height=mcu_height,
        step=interval * mcu_width,
        ends=ends.reshape(rows, -1),
    )


def _segments(data: bytes) -> Iterator[_Segment]:
    """The segments of a JPEG, up to its first scan header or to the first thing that is none."""
    start = len(_START)
    while data.startswith(_START) and data[start : start + 1] == b"\xff" and len(data) - start >= 4:
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4])
        if not start + 4 <= end <= len(data):
            return
        yield _Segment(data[start + 1], start, end, data[start + 4 : end])
        if data[start + 1] == _SCAN:
            return
        start = end


def _has_usual_segments(header: Sequence[_Segment], interval: int) -> bool:
    """Return True for the segments that docs/format-records.md lists, which decoders read in the same way in a cut."""
    first, *others = (each.marker for each in header)
    restarts = [each.body for each in header if each.marker == _RESTART_INTERVAL]
    return (
        first in (_APP14, _TABLES[0])
        and others[-1:] == [_SCAN]
        and {*others[:-1]} <= {*_TABLES, *_FRAMES, _RESTART_INTERVAL}
        and [int.from_bytes(body) for body in restarts if len(body) == 2] == [interval]
        and len(restarts) == 1
    )


def _mcu(frame: bytes) -> tuple[int, int, int, int] | None:
    """Height and width of the image, and width and height of an MCU; None for any other frame header than ours."""
    if len(frame) < 6 or frame[5] not in (1, 3) or len(frame) != 6 + 3 * frame[5]:
        return None
    precision, height, width, components = struct.unpack_from(">BHHB", frame)
    samplings = [(sampling >> 4, sampling & 15) for sampling in frame[7::3]]
    sound = all(1 <= side <= 4 for sampling in samplings for side in sampling)
    # Decoders derive the colour space from these numbers if JFIF's segment is missing, as in a cut.
    if precision != 8 or [*frame[6::3]] != [*range(1, components + 1)] or not sound or not height or not width:
        return None
    across, down = (max(side) for side in zip(*samplings, strict=True)) if components > 1 else (1, 1)
    return height, width, 8 * across, 8 * down


def _is_whole_scan(scan: bytes, frame: bytes) -> bool:
    """Return True if a scan header names all components of a frame, and is that of a sequential image."""
    count = frame[5] if len(frame) > 5 else 0
    return (
        len(scan) == 4 + 2 * count
        and scan[0] == count
        and [*scan[1:-3:2]] == [*range(1, count + 1)]
        and (scan[-3:] == b"\0\x3f\0")
    )


def _markers(count: int) -> npt.NDArray[np.uint8]:
    """The second bytes of the markers that end `count` intervals of an image."""
    markers = np.resize(_RESTARTS, count)
    markers[-1:] = _END
    return markers


def _assemble(record: _Record, rows: slice, columns: slice) -> bytearray | None:
    """The JPEG of some intervals; None if a restart marker is not where the table says it is."""
    starts = np.concatenate(([0], record.ends.ravel()[:-1])).reshape(record.ends.shape)[rows, columns]
    ends = record.ends[rows, columns]
    lengths = (ends - starts).ravel()
    if lengths.min() < 2:
        return None
    parts: list[bytes | memoryview] = [_START, record.header]
    parts += map(record.coded.__getitem__, map(slice, starts[:, 0].tolist(), ends[:, -1].tolist()))
    data = bytearray().join(parts)
    struct.pack_into(
        ">HH",
        data,
        len(_START) + record.size_at,
        min(rows.stop * record.mcu_height, record.height) - rows.start * record.mcu_height,
        min(columns.stop * record.step, record.width) - columns.start * record.step,
    )
    flat = np.frombuffer(data, np.uint8)
    places = lengths.cumsum() + (len(_START) + len(record.header) - 1)
    expected = _markers(record.ends.size).reshape(record.ends.shape)[rows, columns].ravel()
    if (flat[places - 1] != 0xFF).any() or (flat[places] != expected).any():
        return None
    flat[places] = _markers(len(places))
    return data
