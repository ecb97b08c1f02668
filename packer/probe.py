"""A quick look at an encoded image: is it beyond doubt, and what are its dimensions?

Decoding every file would make packing ten times slower. `probe` reads headers alone and vouches only for what it fully
understands; everything else is a suspect, which the caller decodes.

JPEG: ITU-T T.81, annex B. PNG: ISO/IEC 15948. EXIF orientation: CIPA DC-008, tag 0x0112.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_SOF: Final = (0xC0, 0xC1, 0xC2)
_PNG_MAGIC: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = b"\0\0\0\0IEND\xae\x42\x60\x82"
_PNG_DEPTHS: Final = {0: (1, 2, 4, 8, 16), 2: (8, 16), 4: (8, 16), 6: (8, 16)}


@dataclass(frozen=True)
class Header:
    """What a header says.

    Attributes:
        extension: Usual file extension, without the dot.
        width: Pixels, as stored (before any orientation).
        height: Pixels.
        orientation: EXIF orientation, 1 to 8; 1 where there is none.
    """

    extension: str
    width: int
    height: int
    orientation: int


def probe(data: bytes) -> Header | None:
    """The header of an image that Pillow will decode, or None where that is not certain."""
    try:
        if data.startswith(b"\xff\xd8"):
            return _probe_jpeg(data)
        if data.startswith(_PNG_MAGIC):
            return _probe_png(data)
    except (IndexError, struct.error, _Doubt):
        pass
    return None


class _Doubt(Exception):
    pass


def _expect(condition: bool) -> None:
    if not condition:
        raise _Doubt


def _probe_jpeg(data: bytes) -> Header:
    _expect(data.endswith(b"\xff\xd9"))
    position, orientation = 2, 1
    frame: tuple[int, int] | None = None
    components: dict[int, int] = {}
    quantisers: set[int] = set()
    huffman: set[int] = set()
    while True:
        _expect(data[position] == 0xFF)
        marker = data[position + 1]
        _expect(marker >= 0xC0 and not 0xD0 <= marker <= 0xD9)
        (length,) = struct.unpack_from(">H", data, position + 2)
        body = data[position + 4 : position + 2 + length]
        _expect(length >= 2 and len(body) == length - 2)
        position += 2 + length
        if marker in _SOF:
            _expect(frame is None)
            frame, components = _frame(body)
            progressive = marker == 0xC2
        elif marker == 0xDB:
            quantisers |= _quantisers(body)
        elif marker == 0xC4:
            huffman |= _huffman(body)
        elif marker == 0xDD:
            _expect(len(body) == 2)
        elif marker == 0xE1 and body.startswith(b"Exif\0\0"):
            orientation = _orientation(body[6:])
        elif marker == 0xDA:
            break
        else:
            # Application data and comments; anything else (arithmetic coding, lossless, hierarchical) is a suspect.
            _expect(0xE0 <= marker <= 0xEF or marker == 0xFE)
    _expect(frame is not None and frame[0] * frame[1] <= 1 << 26 and set(components.values()) <= quantisers)
    _scan(body, components, huffman, progressive)
    assert frame is not None
    return Header("jpg", frame[0], frame[1], orientation)


def _frame(body: bytes) -> tuple[tuple[int, int], dict[int, int]]:
    precision, height, width, count = struct.unpack_from(">BHHB", body)
    _expect(precision == 8 and height > 0 and width > 0 and count in (1, 3) and len(body) == 6 + 3 * count)
    components = {}
    for identifier, sampling, quantiser in struct.iter_unpack("BBB", body[6:]):
        _expect(sampling >> 4 in (1, 2) and sampling & 15 in (1, 2))
        components[identifier] = quantiser
    _expect(len(components) == count)
    return (width, height), components


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
        values = body[position + 17 : position + 17 + sum(counts)]
        _expect(_prefix_code(counts) and len(values) == sum(counts) <= 256)
        _expect(kind >= 16 or all(value <= 15 for value in values))
        position += 17 + len(values)
        found.add(kind)
    _expect(position == len(body))
    return frozenset(found)


def _prefix_code(counts: bytes) -> bool:
    """Whether codes of these lengths (1 to 16 bits) fit, all-ones codes left free (T.81, annex C)."""
    free = 1
    for count in counts:
        free = 2 * free - count
        if free < 0:
            return False
    return free > 0


def _scan(body: bytes, components: dict[int, int], huffman: set[int], progressive: bool) -> None:
    count = body[0]
    _expect(len(body) == 4 + 2 * count and 1 <= count <= len(components))
    first, last, approximation = body[-3:]
    selected = dict(struct.iter_unpack("BB", body[1:-3]))
    _expect(len(selected) == count and set(selected) <= set(components))
    if progressive:
        _expect(first == 0 and last == 0 and approximation >> 4 == 0 and approximation & 15 <= 13)
    else:
        _expect(count == len(components) and (first, last, approximation) == (0, 63, 0))
    for tables in selected.values():
        _expect(tables >> 4 in huffman and (progressive or 16 | tables & 15 in huffman))


def _orientation(tiff: bytes) -> int:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    _expect(order is not None)
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (entries,) = struct.unpack_from(f"{order}H", tiff, start)
    for number in range(entries):
        tag, kind, count = struct.unpack_from(f"{order}HHI", tiff, start + 2 + 12 * number)
        if tag == 0x0112:
            _expect(kind == 3 and count == 1)
            (value,) = struct.unpack_from(f"{order}H", tiff, start + 10 + 12 * number)
            return value if 1 <= value <= 8 else 1
    return 1


def _probe_png(data: bytes) -> Header:
    _expect(data.endswith(_PNG_END) and data[8:16] == b"\0\0\0\rIHDR")
    width, height, depth, colour, *methods = struct.unpack_from(">IIBBBBB", data, 16)
    _expect(width > 0 and height > 0 and width * height <= 1 << 26 and methods == [0, 0, 0])
    _expect(depth in _PNG_DEPTHS.get(colour, ()))
    position, pixels = 8, False
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        _expect(position + 12 + length <= len(data) and kind not in (b"eXIf", b"acTL"))
        (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
        _expect(zlib.crc32(data[position + 4 : position + 8 + length]) == checksum)
        pixels = pixels or kind == b"IDAT"
        position += 12 + length
    _expect(pixels)
    return Header("png", width, height, 1)
