"""What all back ends other than Pillow have in common: Pillow as their fallback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ..jpeg_frame import frame_header
from ..pillow import exceeds_limit
from .pillow import DECODER as PILLOW
from .pillow import Encoded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from ..box import Box


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
    found = frame_header(data)
    if found is None:
        raise ValueError("no frame header")
    return found.width, found.height
