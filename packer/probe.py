"""A quick check of an encoded image: is it certainly sound, and what are its dimensions?

Decoding every file would make packing ten times slower. `probe` reads only the headers, and vouches only for what it
fully understands. Everything else is a suspect, which the caller decodes.

JPEG: ITU-T T.81, annex B. PNG: ISO/IEC 15948. EXIF orientation: CIPA DC-008, tag 0x0112.
"""

from __future__ import annotations

import re
import struct
import zlib
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from packtrain._codec.jpeg_markers import frame_header, most_scans

_LARGEST_SIDE: Final = 65500
_LARGEST_AREA: Final = 1 << 26
_SOF: Final = (0xC0, 0xC1, 0xC2)
_JPEG_END: Final = b"\xff\xd9"
# As many as packtrain's transcoder takes. A progressive JPEG has about ten.
_MOST_SCANS: Final = 500
# A scan ends at a marker that is neither a stuffed zero nor a restart marker.
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7]")
_XMP: Final = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION: Final = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# Application segments from which Pillow reads fixed fields, and the least length that this takes.
_APPLICATION_BYTES: Final = {(0xE0, b"JFIF"): 7, (0xE2, b"ICC_PROFILE\0"): 14, (0xEE, b"Adobe"): 7}
_PNG_MAGIC: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = b"\0\0\0\0IEND\xae\x42\x60\x82"
# Grey of 16 bits is left to the caller: Pillow does not reduce it to 8 bits, as it does with colours.
_PNG_DEPTHS: Final = {0: (1, 2, 4, 8), 2: (8, 16), 4: (8, 16), 6: (8, 16)}
_PNG_BYTES: Final = {b"IHDR": 13, b"IEND": 0, b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7}
_PNG_ANY_BYTES: Final = (b"IDAT", b"bKGD", b"sBIT", b"tEXt")


class ImageHeader(NamedTuple):
    """The header of an image.

    Attributes:
        extension: Usual file extension, without the dot.
        width: Width in pixels, as stored (before any EXIF orientation is applied).
        height: Height in pixels, as stored.
        orientation: EXIF orientation, 1 to 8; 1 if the file has none.
    """

    extension: str
    width: int
    height: int
    orientation: int


def probe(data: bytes) -> ImageHeader | None:
    """Returns the header of an image that Pillow will certainly decode; None if that is not certain."""
    try:
        if data.startswith(b"\xff\xd8"):
            return _probe_jpeg(data)
        if data.startswith(_PNG_MAGIC):
            return _probe_png(data)
    except (IndexError, struct.error, Doubt):
        pass
    return None


def probe_segments(data: bytes) -> ImageHeader | None:
    """Returns the header of a JPEG of which Pillow will certainly read all that comes before the coded data."""
    position = 2
    applications: list[tuple[int, bytes]] = []
    try:
        while data[position + 1] != 0xDA:
            marker, body = _segment(data, position)
            position += 4 + len(body)
            applications.append((marker, body))
        orientation = _application_data(applications)
    except (IndexError, struct.error, Doubt):
        return None
    frame = frame_header(data)
    return None if frame is None else ImageHeader("jpg", frame.width, frame.height, orientation)


class Doubt(Exception):
    """It is not certain what Pillow makes of an image."""


def _expect(condition: bool) -> None:
    if not condition:
        raise Doubt


def _probe_jpeg(data: bytes) -> ImageHeader:
    _expect(data.endswith(_JPEG_END))
    last = len(data) - len(_JPEG_END)
    position, scans = 2, 0
    frame: _Frame | None = None
    quantisers: set[int] = set()
    huffman: set[int] = set()
    applications: list[tuple[int, bytes]] = []
    while position != last:
        marker, body = _segment(data, position)
        position += 4 + len(body)
        if marker in _SOF:
            _expect(frame is None)
            frame = _frame(body, progressive=marker == 0xC2)
        elif marker == 0xDB:
            quantisers |= _quantisers(body)
        elif marker == 0xC4:
            huffman |= _huffman(body)
        elif marker == 0xDD:
            _expect(len(body) == 2)
        elif marker == 0xDA:
            scans += 1
            _expect(scans <= _MOST_SCANS)
            if frame is None or not set(frame.quantisers.values()) <= quantisers:
                raise Doubt
            (_progressive_scan if frame.progressive else _whole_scan)(body, frame, huffman)
            # Coded data may be anything except a marker: they always decode to some picture.
            position = _end_of_scan(data, position, last)
            _expect(frame.progressive or position == last)
        else:
            # Application data and comments are fine; anything else (arithmetic, lossless, hierarchical) is a suspect.
            _expect(0xE0 <= marker <= 0xEF or marker == 0xFE)
            applications.append((marker, body))
    if frame is None or not scans:
        raise Doubt
    _expect(scans <= most_scans(frame.width, frame.height))
    return ImageHeader("jpg", frame.width, frame.height, _application_data(applications))


def _end_of_scan(data: bytes, start: int, last: int) -> int:
    """Returns the offset of the marker that ends the coded data at `start`. `last` is the offset of the EOI marker."""
    coded = np.frombuffer(data, np.uint8, last + 1 - start, start)
    # Most files have no marker before the last one. This test for it takes half the time of a search.
    marked = coded[:-1] == 0xFF
    marked &= coded[1:] != 0
    if not marked.any():
        return last
    found = _MARKER.search(data, start)
    return found.start() if found else last


def _segment(data: bytes, position: int) -> tuple[int, bytes]:
    """Returns the marker at `position` and the content of its segment."""
    _expect(data[position] == 0xFF)
    (length,) = struct.unpack_from(">H", data, position + 2)
    body = data[position + 4 : position + 2 + length]
    _expect(length >= 2 and len(body) == length - 2)
    return data[position + 1], body


class _Frame(NamedTuple):
    """A frame header; `quantisers` has the number of the quantisation table of each component."""

    width: int
    height: int
    progressive: bool
    quantisers: dict[int, int]


def _frame(body: bytes, *, progressive: bool) -> _Frame:
    precision, height, width, count = struct.unpack_from(">BHHB", body)
    _expect(precision == 8 and count in (1, 3) and len(body) == 6 + 3 * count)
    _expect(0 < width <= _LARGEST_SIDE and 0 < height <= _LARGEST_SIDE and width * height <= _LARGEST_AREA)
    quantisers, blocks = {}, 0
    for identifier, sampling, quantiser in struct.iter_unpack("BBB", body[6:]):
        _expect(sampling >> 4 in (1, 2) and sampling & 15 in (1, 2))
        blocks += (sampling >> 4) * (sampling & 15)
        quantisers[identifier] = quantiser
    _expect(len(quantisers) == count and blocks <= 10)
    return _Frame(width, height, progressive, quantisers)


@lru_cache(maxsize=256)
def _quantisers(body: bytes) -> frozenset[int]:
    found, position = set(), 0
    while position < len(body):
        wide, number = body[position] >> 4, body[position] & 15
        _expect(wide <= 1 and number <= 3)
        position += 1 + 64 * (1 + wide)
        found.add(number)
    _expect(position == len(body))
    return frozenset(found)


# Most files carry the same tables, those of T.81, annex K.
@lru_cache(maxsize=256)
def _huffman(body: bytes) -> frozenset[int]:
    found, position = set(), 0
    while position < len(body):
        kind = body[position]
        _expect(kind & 0xEC == 0)
        counts = body[position + 1 : position + 17]
        _expect(len(counts) == 16)
        total = sum(counts)
        values = body[position + 17 : position + 17 + total]
        _expect(_prefix_code(counts) and len(values) == total <= 256)
        _expect(kind >= 16 or max(values, default=0) <= 15)
        position += 17 + len(values)
        found.add(kind)
    _expect(position == len(body))
    return frozenset(found)


def _prefix_code(counts: bytes) -> bool:
    """Returns True if a prefix code can have `counts[n]` codes of n + 1 bits.

    The code of only ones must stay free (T.81, annex C).
    """
    free = 1
    for count in counts:
        free = 2 * free - count
        if free < 0:
            return False
    return free > 0


def _scan(body: bytes, frame: _Frame) -> tuple[dict[int, int], tuple[int, int, int, int]]:
    """Returns the Huffman tables of each component in a scan, and the parameters Ss, Se, Ah and Al."""
    count = body[0]
    _expect(len(body) == 4 + 2 * count and 1 <= count <= len(frame.quantisers))
    tables = dict(struct.iter_unpack("BB", body[1:-3]))
    _expect(len(tables) == count and set(tables) <= set(frame.quantisers))
    return tables, (body[-3], body[-2], body[-1] >> 4, body[-1] & 15)


def _whole_scan(body: bytes, frame: _Frame, huffman: set[int]) -> None:
    tables, parameters = _scan(body, frame)
    _expect(len(tables) == len(frame.quantisers) and parameters == (0, 63, 0, 0))
    for table in tables.values():
        _expect(table >> 4 in huffman and 16 | table & 15 in huffman)


def _progressive_scan(body: bytes, frame: _Frame, huffman: set[int]) -> None:
    tables, (first, last, high, low) = _scan(body, frame)
    _expect(last == 0 if first == 0 else first <= last <= 63 and len(tables) == 1)
    _expect(low <= 13 and high in (0, low + 1))
    for table in tables.values():
        _expect(table >> 4 in huffman if first == 0 else 16 | table & 15 in huffman)


def _application_data(segments: list[tuple[int, bytes]]) -> int:
    """Checks what Pillow reads from application segments. Returns the EXIF orientation."""
    exif: int | None = None
    xmp: int | None = None
    metadata = [body for marker, body in segments if marker == 0xE1 and body.startswith(b"Exif\0\0")]
    # Pillow joins several EXIF segments.
    _expect(len(metadata) <= 1)
    for body in metadata:
        exif = exif_orientation(body[6:])
    for marker, body in segments:
        for (kind, name), least in _APPLICATION_BYTES.items():
            _expect(marker != kind or not body.startswith(name) or len(body) >= least)
        # A second picture in the file; a truncated resource, which Pillow does not expect.
        _expect(not (marker == 0xE2 and body.startswith(b"MPF\0")))
        _expect(not (marker == 0xED and body[-6:-2] == b"8BIM"))
        if marker == 0xE1 and body.startswith(_XMP):
            found = _XMP_ORIENTATION.search(body)
            xmp = int(found[1]) if found else None
    value = xmp if exif is None else exif
    return value if value is not None and 1 <= value <= 8 else 1


def exif_orientation(tiff: bytes) -> int | None:
    """Returns tag 0x0112 of the first directory, or None if it is not there.

    Raises:
        Doubt: That is not certain.
        struct.error: The directory is cut off.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    _expect(order is not None)
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (entries,) = struct.unpack_from(f"{order}H", tiff, start)
    values: dict[int, int] = {}
    for number in range(entries):
        tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * number)
        _expect(tag not in values)  # which of the two counts depends on the version of Pillow
        values[tag] = value
        # Pillow reads the values of only these tags: orientation, resolution and its unit.
        _expect((kind, count) == {0x0112: (3, 1), 0x011A: (5, 1), 0x0128: (3, 1)}.get(tag, (kind, count)))
    return values.get(0x0112)


def _probe_png(data: bytes) -> ImageHeader:
    _expect(data.endswith(_PNG_END) and len(data) <= _LARGEST_AREA)
    width, height, depth, colour, *methods = struct.unpack_from(">IIBBBBB", data, 16)
    _expect(width > 0 and height > 0 and width * height <= _LARGEST_AREA and methods == [0, 0, 0])
    _expect(depth in _PNG_DEPTHS.get(colour, ()))
    kinds: list[bytes] = []
    position = len(_PNG_MAGIC)
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
        _expect(zlib.crc32(body, zlib.crc32(kind)) == checksum)
        _expect(length == _PNG_BYTES[kind] if kind in _PNG_BYTES else kind in _PNG_ANY_BYTES)
        # Some tools put EXIF and XMP into text chunks, and Pillow looks for them there.
        _expect(kind != b"tEXt" or not re.search(b"exif|xmp", body, re.IGNORECASE))
        if kinds[-1:] != [kind]:
            kinds.append(kind)
        position += 12 + length
    _expect(kinds[0] == b"IHDR" and kinds[-1] == b"IEND" and len(set(kinds)) == len(kinds) and b"IDAT" in kinds)
    return ImageHeader("png", width, height, 1)
