"""What every back end other than Pillow has in common: Pillow behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .pillow import DECODER as PILLOW
from .pillow import Encoded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from ..geometry import Box


class BackEnd(ABC):
    """A decoder that hands to Pillow what it refuses; arguments are as in `packtrain._codec.decoders.Decoder`."""

    name: str

    @property
    @abstractmethod
    def version(self) -> str:
        """What decodes, and which version of it."""

    @abstractmethod
    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image:
        """Decodes without Pillow's help.

        Raises:
            ValueError, OSError: The back end cannot decode this, or does not know how to do it exactly.
        """

    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        """Decodes a rectangle of an image."""
        try:
            return self.attempt(data, mode, box, scale)
        except (ValueError, OSError):
            return PILLOW.decode(data, mode, box, scale)

    def pixels(self, data: Encoded, box: Box | None = None) -> npt.NDArray[np.uint8] | None:
        """See `packtrain._codec.decoders.Decoder`."""
        return None

    def __repr__(self) -> str:
        return f"<decoder {self.name}: {self.version}>"
