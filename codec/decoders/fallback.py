"""What all back ends other than Pillow have in common: Pillow as their fallback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from ..pillow import exceeds_limit
from .pillow import DECODER as PILLOW
from .pillow import Encoded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from ..geometry import Box

# SOF0 to SOF15, without the three codes in this range that have another meaning.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN: Final = 0xDA


class BackEnd(ABC):
    """A decoder that hands to Pillow what it cannot decode itself.

    Arguments and results are those of `packtrain._codec.decoders.Decoder`.
    """

    name: str

    @property
    @abstractmethod
    def version(self) -> str:
        """The library that decodes, and its version."""

    @abstractmethod
    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image:
        """Decodes without the fallback.

        Raises:
            ValueError, OSError: The back end cannot decode `data`, or not to exactly the same pixels as Pillow.
        """

    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        """Decodes a rectangle of an image, with Pillow if need be."""
        try:
            size_within_limit(data)
            return self.attempt(data, mode, box, scale)
        except (ValueError, OSError):
            return PILLOW.decode(data, mode, box, scale)

    def pixels(self, data: Encoded, box: Box | None = None) -> npt.NDArray[np.uint8] | None:
        """Decodes a rectangle to an array; None, unless a back end overrides this."""
        return None

    def __repr__(self) -> str:
        return f"<decoder {self.name}: {self.version}>"


def size_within_limit(data: Encoded) -> tuple[int, int]:
    """Width and height of a JPEG, if it does not exceed Pillow's limit: Pillow is to warn of all others or refuse them.

    Raises:
        ValueError: It exceeds the limit, or `frame_size` raises it.
    """
    width, height = frame_size(data)
    if exceeds_limit(width, height):
        raise ValueError("the image has more pixels than Pillow's limit")
    return width, height


def frame_size(data: Encoded) -> tuple[int, int]:
    """Width and height of a JPEG in pixels, from its frame header.

    Raises:
        ValueError: There is no frame header where one should be.
    """
    place = 2
    try:
        while data[place] == 0xFF and data[place + 1] != _START_OF_SCAN:
            if data[place + 1] in _FRAMES:
                return data[place + 7] << 8 | data[place + 8], data[place + 5] << 8 | data[place + 6]
            place += 2 + (data[place + 2] << 8 | data[place + 3])
    except IndexError:
        pass
    raise ValueError("no frame header")
