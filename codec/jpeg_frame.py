"""The frame header of a JPEG: its size, and how it is coded."""

from __future__ import annotations

from typing import Final, NamedTuple

# SOF0 to SOF15, without the three codes in this range that have another meaning.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LOSSLESS: Final = (0xC3, 0xC7, 0xCB, 0xCF)
_START_OF_SCAN: Final = 0xDA
# TEM, RST0 to RST7, SOI and EOI have no segment (T.81, table B.1), and 0xFF00 is no marker.
_BARE: Final = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))


class FrameHeader(NamedTuple):
    """What a frame header says.

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
    place = 2
    try:
        while data[place] == 0xFF:
            while data[place + 1] == 0xFF:  # fill bytes (T.81, B.1.1.2)
                place += 1
            marker = data[place + 1]
            if marker == _START_OF_SCAN or marker in _BARE:
                break
            if marker in _FRAMES:
                return FrameHeader(
                    marker, data[place + 7] << 8 | data[place + 8], data[place + 5] << 8 | data[place + 6]
                )
            place += 2 + (data[place + 2] << 8 | data[place + 3])
    except IndexError:
        return None
    return None
