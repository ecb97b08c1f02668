"""Makes crop-ready records of JPEGs, and says why where it cannot."""

from __future__ import annotations

import re
import struct
from typing import Final

from packtrain._codec.box import Box
from packtrain._codec.cut import cut
from packtrain._codec.native import require_extension
from packtrain._core.errors import MissingDependency
from packtrain._core.installing import build_command

# The number is raised whenever the transcoder gives other bytes for the same image.
_TRANSCODER: Final = "transcoder 1"
_PURPOSE: Final = "Store mode crop-ready"
_OTHERWISE: Final = "use --store verbatim, which keeps files as they are"


def transcoded(jpeg: bytes) -> tuple[bytes | None, str]:
    """Transcodes a JPEG that Pillow reads.

    Returns:
        The crop-ready record and an empty text; or None, and why this JPEG has no crop-ready form. Similar JPEGs get
        the same reason.

    Raises:
        MemoryError: There is not enough memory.
        MissingDependency: There is no C extension.
    """
    module = require_extension(_PURPOSE, _OTHERWISE)
    try:
        return module.transcode(jpeg), ""
    except ValueError as error:
        return None, _reason(str(error))


def transcoder() -> str:
    """Name and version of what transcodes.

    Raises:
        MissingDependency: There is no C extension, or it does not transcode a JPEG that is certainly sound.
    """
    module = require_extension(_PURPOSE, _OTHERWISE)
    jpeg = _small_jpeg()
    record, reason = transcoded(jpeg)
    # Without this, an extension that refuses everything would store a whole dataset verbatim.
    if record is None or cut(record, Box(0, 0, 8, 8)) is None:
        reason = reason or "the record has no table of restart intervals"
        raise MissingDependency(
            f"packtrain's C extension ({module.LIBJPEG}) does not work here: it fails on a small JPEG ({reason}). "
            f"Build it again: `{build_command()}`; or {_OTHERWISE}"
        )
    return f"{_TRANSCODER} ({module.LIBJPEG})"


def _reason(message: str) -> str:
    # libjpeg's messages begin with a capital letter, and hold numbers that differ from image to image.
    if message[:1].isupper():
        return f"libjpeg: {re.sub(r'0x[0-9a-f]+|[0-9]+', 'N', message)}"
    return message


def _small_jpeg() -> bytes:
    """A grey JPEG of 8 x 8 pixels, made by hand: T.81, annex B."""
    segments = [
        (0xDB, bytes([0]) + bytes([1]) * 64),
        (0xC0, struct.pack(">BHHBBBB", 8, 8, 8, 1, 1, 0x11, 0)),
        # One code of one bit: "no difference" for DC, "end of block" for AC.
        (0xC4, bytes([0x00, 1]) + bytes(15) + bytes([0])),
        (0xC4, bytes([0x10, 1]) + bytes(15) + bytes([0])),
        (0xDA, bytes([1, 1, 0x00, 0, 63, 0])),
    ]
    head = b"".join(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for marker, body in segments)
    return b"\xff\xd8" + head + b"\x3f\xff\xd9"
