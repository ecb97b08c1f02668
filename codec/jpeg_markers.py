"""The markers of a JPEG: the frame header, with the image's size and coding, and the limit on the number of scans."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

# SOF0 to SOF15, without the three codes in this range that have another meaning.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LOSSLESS: Final = (0xC3, 0xC7, 0xCB, 0xCF)
_START_OF_SCAN: Final = 0xDA
# TEM, RST0 to RST7, SOI and EOI have no segment (T.81, table B.1), and 0xFF00 is no marker.
_BARE: Final = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))
_END_OF_IMAGE: Final = 0xD9
_START_OF_IMAGE: Final = 0xD8
# Neither a stuffed zero, nor a restart marker, nor a byte that only fills (T.81, B.1.1.2). Markers below 0xC0 have no
# segment: libjpeg passes over them where a restart marker is due, and ends with an error elsewhere.
_MARKER: Final = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# The same two numbers are in codec/native/jpeg_input.c. A progressive JPEG has about ten scans, seldom a few dozen.
_ALWAYS: Final = 32
_MOST_PIXELS: Final = 1 << 30


class FrameHeader(NamedTuple):
    """Content of a frame header.

    Attributes:
        marker: Its marker's second byte, which names the process: 0xC0 is baseline.
        width: Width in pixels.
        height: Height in pixels.
    """

    marker: int
    width: int
    height: int

    @property
    def is_lossless(self) -> bool:
        """True if the image has no DCT coefficients, and so only one scale."""
        return self.marker in _LOSSLESS


def frame_header(data: bytes | bytearray | memoryview) -> FrameHeader | None:
    """The frame header of a JPEG; None if there is none where one should be."""
    offset = 2
    try:
        while data[offset] == 0xFF:
            while data[offset + 1] == 0xFF:  # fill bytes (T.81, B.1.1.2)
                offset += 1
            marker = data[offset + 1]
            if marker == _START_OF_SCAN or marker in _BARE:
                break
            if marker in _FRAMES:
                return FrameHeader(
                    marker, data[offset + 7] << 8 | data[offset + 8], data[offset + 5] << 8 | data[offset + 6]
                )
            offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    except IndexError:
        return None
    return None


def too_many_scans(data: bytes | bytearray | memoryview, width: int, height: int) -> str | None:
    """Says why a JPEG of this size is not decoded: it has too many scans. None if it has not.

    Up to 32 scans are always allowed, and more as long as scans times pixels do not exceed 2^30: decoding that takes
    about a second. libjpeg-turbo's fuzzers and DALI stop at 500 scans, whatever the size.
    """
    most = most_scans(width, height)
    if _most_markers(data) <= most or (scans := _count(data)) <= most:
        return None
    return (
        f"a JPEG with {scans} scans of {width} x {height} pixels, which would take very long to decode: at most {most} "
        "scans of an image of this size are decoded. Give it a single one: `jpegtran OLD > NEW`"
    )


def most_scans(width: int, height: int) -> int:
    """The number of scans of an image of this size that are decoded, see `too_many_scans`."""
    return max(_ALWAYS, _MOST_PIXELS // max(width * height, 1))


def _most_markers(data: bytes | bytearray | memoryview) -> int:
    """Counts markers of scans, and what looks like them elsewhere. Takes a twentieth of the time of `_count`."""
    values = np.frombuffer(data, np.uint8)
    return int(np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == _START_OF_SCAN)))


def _count(data: bytes | bytearray | memoryview) -> int:
    """The scans up to the end of the image, where libjpeg stops. As libjpeg, it passes over what is no marker."""
    offset, scans = 2, 0
    while (found := _MARKER.search(data, offset)) is not None:
        offset, marker = found.end(), data[found.end() - 1]
        if marker == _END_OF_IMAGE:
            break
        scans += marker == _START_OF_SCAN
        if marker != _START_OF_IMAGE:
            offset += int.from_bytes(data[offset : offset + 2])
    return scans
