"""Content of a member of a foreign shard, as far as an index needs it: from the first bytes where they are enough."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple, cast

from packtrain._codec.jpeg_markers import frame_header, too_many_scans
from packtrain._codec.masks import png_header
from packtrain._codec.pillow import open_image
from packtrain._codec.values import decode_json, parse_npy
from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.schema import Field, check_array

from ..lists.labels import LARGEST_FLOAT32, BadLine, parse_int
from ..probe import Doubt, exif_orientation
from ..sources import Refused
from .shard_files import LARGEST_VIEW

_ORIENTATION: Final = 0x0112
_MOST_LABEL: Final = 64 * 1024
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_INT64: Final = range(-(1 << 63), 1 << 63)

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Label = int | float | str


class ImageFacts(NamedTuple):
    """Size of an image or mask as stored, and its EXIF orientation, 1 to 8; `wide` is True for a mask of 16 bits."""

    width: int
    height: int
    orientation: int = 1
    wide: bool = False


def image_facts(data: memoryview) -> ImageFacts:
    """Reads the header of an image.

    Raises:
        Refused: It is no image that packtrain opens.
    """
    if _starts(data, b"\xff\xd8") and (frame := frame_header(data)) and frame.width and frame.height:
        if reason := too_many_scans(data, frame.width, frame.height):
            raise Refused(reason)
        exif = _jpeg_exif(data)
        if (orientation := 1 if exif is None else _exif_orientation(exif)) is not None:
            return ImageFacts(frame.width, frame.height, orientation)
    elif _is_png(data):
        width, height = struct.unpack_from(">II", data, 16)
        if width and height and b"eXIf" not in bytes(data[33:4096]):
            return ImageFacts(width, height)
    return _opened_facts(data)


def _starts(data: memoryview, magic: bytes) -> bool:
    return bytes(data[: len(magic)]) == magic


def _is_png(data: memoryview) -> bool:
    """True if a PNG begins with a whole header."""
    return _starts(data, _PNG) and bytes(data[12:16]) == b"IHDR" and len(data) >= 33


def _opened_facts(data: memoryview) -> ImageFacts:
    try:
        with open_image(data) as image:
            exif = image.info.get("exif") or image.info.get("xmp")
            # Not `getexif` of an image without EXIF data: Pillow would decode a PNG to look behind its pixels.
            orientation = image.getexif().get(_ORIENTATION, 1) if exif else 1
            return ImageFacts(image.width, image.height, orientation if orientation in range(1, 9) else 1)
    except (MissingDependency, MemoryError):
        raise
    except Exception as error:
        # Pillow's plugins raise any kind of error on a damaged header.
        raise Refused(f"its header cannot be read ({error})") from error


def _jpeg_exif(data: memoryview) -> memoryview | None:
    """The TIFF structure of the EXIF segment of a JPEG; None if there is neither that nor XMP, which may stand in."""
    place = 2
    while place + 10 <= len(data) and data[place] == 0xFF and data[place + 1] not in (0xC0, 0xC2, 0xDA):
        length = data[place + 2] << 8 | data[place + 3]
        if data[place + 1] == 0xE1 and bytes(data[place + 4 : place + 8]) in (b"Exif", b"http"):
            return data[place + 10 : place + 2 + length]
        place += 2 + length
    return None


def _exif_orientation(tiff: memoryview) -> int | None:
    """The orientation that the first directory says, 1 if it says none; None if that is not certain."""
    try:
        found = exif_orientation(bytes(tiff))
    except (Doubt, struct.error):
        return None
    return 1 if found is None else found if 1 <= found <= 8 else None


def mask_facts(data: memoryview) -> ImageFacts:
    """Reads the header of a mask: a PNG of one channel, grey or with a palette.

    Raises:
        Refused: It is something else.
    """
    try:
        header = png_header(data)
    except ValueError as error:
        raise Refused(str(error)) from error
    if not header.width or not header.height:
        raise Refused(f"its header says {header.width} x {header.height} pixels")
    return ImageFacts(header.width, header.height, wide=header.dtype != "|u1")


def check_text(data: memoryview) -> None:
    """Checks that a text is UTF-8.

    Raises:
        Refused: It is not.
    """
    try:
        str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"a text must be UTF-8 ({error})") from error


def parse_json(data: memoryview) -> object:
    """Reads a JSON text.

    Raises:
        Refused: It is none.
    """
    try:
        return decode_json(data)
    except ValueError as error:
        raise Refused(f"it is not JSON that can be read ({error})") from error


def plain_label(data: memoryview) -> int:
    """Reads a label in decimal.

    Raises:
        Refused: It is something else.
    """
    text = bytes(data[:_MOST_LABEL]).strip()
    try:
        return parse_int(text)
    except BadLine:
        found = text.decode("utf-8", "backslashreplace")[:40]
        raise Refused(f"a label must be a whole number, and this is {found!r}") from None


def json_label(value: object, key: str) -> Label:
    """Takes a label out of a JSON object: a number, or the name of a class. Dots in `key` lead into inner objects.

    Raises:
        Refused: It is not there, or something else.
    """
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise Refused(f"it has no {key!r}, which is to be the label")
        value = cast("dict[str, object]", value)[part]
    if isinstance(value, bool):
        # The name of a class, as in a list.
        return str(value).lower()
    if not isinstance(value, int | float | str):
        raise Refused(f"its {key!r}, which is to be the label, is neither a number nor a text")
    if isinstance(value, str) and _SURROGATE.search(value):
        raise Refused(f"its {key!r}, which is to be the label, holds half of a surrogate pair")
    if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT32:
        raise Refused(f"its {key!r}, which is to be the label, is not a finite number that float32 holds")
    if isinstance(value, int) and value not in _INT64:
        raise Refused(f"its {key!r}, which is to be the label, does not fit 64 bits")
    return value


def array_field(data: memoryview, size: int) -> Field:
    """Reads the header of an `.npy` file of `size` bytes, of which `data` is the beginning. Never unpickles.

    Returns:
        A field of such arrays, or of bytes if readers cannot take them for arrays.
    """
    try:
        dtype, shape, _ = parse_npy(data, size)
        check_array("array", dtype, shape)
    except (UsageError, ValueError):
        return Field("array", "bytes")
    return Field("array", "array", dtype=dtype, shape=shape)


def check_viewable(size: int) -> None:
    """Raises `Refused` if a member is larger than what is looked at as a whole."""
    if size > LARGEST_VIEW:
        raise Refused(f"it has {size} bytes, more than the {LARGEST_VIEW} that can be checked")
