"""The limit of scans in a JPEG: one of a few bytes takes as long to decode as one of the whole image."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

_START_OF_SCAN: Final = 0xDA
_END_OF_IMAGE: Final = 0xD9
_START_OF_IMAGE: Final = 0xD8
# Neither a stuffed zero, nor a restart marker, nor a byte that only fills (T.81, B.1.1.2). Markers below 0xC0 have no
# segment: libjpeg passes over them where a restart marker is due, and ends with an error elsewhere.
_MARKER: Final = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# The same two numbers are in codec/native/jpeg_input.c. A progressive JPEG has about ten scans, seldom a few dozen.
_ALWAYS: Final = 32
_MOST_PIXELS: Final = 1 << 30


def too_many_scans(data: bytes | bytearray | memoryview, width: int, height: int) -> str | None:
    """Says why a JPEG of this size is not decoded: it has too many scans. None if it has not.

    Up to 32 scans are always allowed, and more as long as scans times pixels do not exceed 2^30: decoding that takes
    about a second. libjpeg-turbo's fuzzers and DALI stop at 500 scans, whatever the size.
    """
    most = max(_ALWAYS, _MOST_PIXELS // max(width * height, 1))
    if _most_markers(data) <= most or (scans := _count(data)) <= most:
        return None
    return (
        f"a JPEG with {scans} scans of {width} x {height} pixels, which would take very long to decode: at most {most} "
        "scans of an image of this size are decoded. Give it a single one: `jpegtran OLD > NEW`"
    )


def _most_markers(data: bytes | bytearray | memoryview) -> int:
    """Counts markers of scans, and what looks like them elsewhere. Takes a twentieth of the time of `_count`."""
    values = np.frombuffer(data, np.uint8)
    return int(np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == _START_OF_SCAN)))


def _count(data: bytes | bytearray | memoryview) -> int:
    """The scans up to the end of the image, where libjpeg stops. As libjpeg, it passes over what is no marker."""
    place, scans = 2, 0
    while (found := _MARKER.search(data, place)) is not None:
        place, marker = found.end(), data[found.end() - 1]
        if marker == _END_OF_IMAGE:
            break
        scans += marker == _START_OF_SCAN
        if marker != _START_OF_IMAGE:
            place += int.from_bytes(data[place : place + 2])
    return scans
