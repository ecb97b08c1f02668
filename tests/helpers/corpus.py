"""Encoded pictures of many kinds, and ways to damage them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from helpers.support import encoded, picture
from PIL import Image

ORIENTATION: Final = 0x0112
XMP: Final = b"http://ns.adobe.com/xap/1.0/\0"


def exif(orientation: int, order: str = "<", *entries: tuple[int, int, int, int]) -> bytes:
    """The body of an EXIF segment, made by hand.

    Args:
        orientation: Value of the orientation tag.
        order: Byte order, as `struct` names it.
        entries: More entries (tag, type, count, value), placed before the orientation.
    """
    directory = [*(struct.pack(f"{order}HHII", *entry) for entry in entries)]
    directory.append(struct.pack(f"{order}HHIHH", ORIENTATION, 3, 1, orientation, 0))
    magic = {"<": b"II*\0", ">": b"MM\0*"}[order]
    head = struct.pack(f"{order}IH", 8, len(directory))
    return b"Exif\0\0" + magic + head + b"".join(directory) + bytes(4)


def with_segment(jpeg: bytes, marker: int, body: bytes) -> bytes:
    """A JPEG file with one more segment, placed before all others."""
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body + jpeg[2:]


def jpegs() -> Iterator[bytes]:
    """JPEG files of all common kinds, and of some uncommon ones."""
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        for progressive in (False, True):
            yield encoded(picture(1, 70, 50), quality=80, subsampling=subsampling, progressive=progressive)
    for progressive in (False, True):
        yield encoded(picture(2, 70, 50, "L"), progressive=progressive)
    yield encoded(picture(3, 70, 50), restart_marker_rows=1, optimize=True)
    yield encoded(picture(4, 70, 50), comment=b"hello", dpi=(72, 72), icc_profile=bytes(200))
    yield encoded(picture(5, 33, 17), keep_rgb=True)
    for orientation in range(10):
        for order in "<>":
            yield encoded(picture(orientation, 40, 30), exif=exif(orientation, order))
    yield with_segment(encoded(picture(6)), 0xE1, XMP + b'<x tiff:Orientation="6"/>')


def chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of(width: int, height: int, depth: int, colour: int, pixels: bytes, palette: bytes = b"") -> bytes:
    """A PNG file written by the standard alone (ISO/IEC 15948)."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    colours = chunk(b"PLTE", palette) if palette else b""
    return b"\x89PNG\r\n\x1a\n" + header + colours + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def wide_grey() -> Image.Image:
    """A grey picture of 16 bits: the brightest pixel is 65,535."""
    return Image.fromarray(np.asarray(picture(8, 40, 30, "L")).astype(np.uint16) * 257)


def pngs() -> Iterator[bytes]:
    """PNG files of every mode of 8 bits or fewer."""
    for mode in ("RGB", "L", "P", "RGBA", "1", "LA"):
        yield encoded(picture(7, 40, 30, mode), "PNG")
    tags = Image.Exif()
    tags[ORIENTATION] = 6
    yield encoded(picture(9, 40, 30), "PNG", exif=tags)


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    """The file with one to three kinds of damage, most of it in the headers."""
    changed = bytearray(data)
    header = max(data.find(b"\xff\xda"), 60)
    for _ in range(random.integers(1, 4)):
        end = min(header, len(changed)) if random.random() < 0.6 else len(changed)
        ACCIDENTS[random.integers(len(ACCIDENTS))](changed, int(random.integers(2, max(3, end))), random)
    return bytes(changed)


def _set(data: bytearray, at: int, random: np.random.Generator) -> None:
    data[at : at + 1] = random.bytes(1)


def _flip(data: bytearray, at: int, random: np.random.Generator) -> None:
    if at < len(data):
        data[at] ^= 1 << int(random.integers(8))


def _clear(data: bytearray, at: int, random: np.random.Generator) -> None:
    data[at : at + 64] = bytes(len(data[at : at + 64]))


def _mark(data: bytearray, at: int, random: np.random.Generator) -> None:
    data[at : at + 2] = bytes([0xFF, random.integers(0xC0, 0x100)])


def _delete(data: bytearray, at: int, random: np.random.Generator) -> None:
    del data[at : at + int(random.choice([1, 2, 4, 16, 100]))]


def _insert(data: bytearray, at: int, random: np.random.Generator) -> None:
    data[at:at] = random.bytes(int(random.choice([1, 2, 8])))


def _repeat(data: bytearray, at: int, random: np.random.Generator) -> None:
    start = int(random.integers(len(data) + 1))
    data[at:at] = data[start : start + int(random.choice([2, 20, 200]))]


def _cut(data: bytearray, at: int, random: np.random.Generator) -> None:
    ending = bytes(data[-12:] if random.random() < 0.5 else b"")
    data[at:] = ending


ACCIDENTS: Final[list[Callable[[bytearray, int, np.random.Generator], None]]] = [
    _set,
    _flip,
    _clear,
    _mark,
    _delete,
    _insert,
    _repeat,
    _cut,
]


def decoded(data: bytes) -> Image.Image | None:
    """The image that training code gets from a file; None if Pillow refuses it, or clips its pixels to 8 bits."""
    try:
        image = Image.open(io.BytesIO(data))
        return None if image.mode in ("I", "F", "LAB") or image.mode.startswith("I;") else image.convert("RGB")
    except Exception:
        return None
