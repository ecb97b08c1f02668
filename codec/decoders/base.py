"""Decoders: Pillow, and back ends that leave to Pillow what they cannot decode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from packtrain._core.overriding import override

from ..jpeg_markers import frame_header
from ..pillow import Encoded as Encoded
from ..pillow import exceeds_limit, open_image, pillow_version
from ..record_forms import header_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from ..pixels import Box


class Decoder(ABC):
    """A decoder. It has no state, so it can be used in any thread or process."""

    name: str
    """The decoder's name in `DECODERS`."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The library that decodes, and its version."""

    @abstractmethod
    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        """Decode a rectangle of an image.

        Args:
            data: A whole JPEG, or a file of any other format that Pillow reads.
            mode: ``"RGB"`` or ``"L"``.
            box: A rectangle inside the image, in pixels of the scaled image; None for the whole image.
            scale: 1, 2, 4 or 8: width and height are divided by it and rounded up. A JPEG is decoded to that size from
                its DCT coefficients; the pixels of any other image are averaged.

        Returns:
            An image of mode `mode`. Its mode may be RGBX in place of RGB; only the first three bands count then.

        Raises:
            ValueError: `box` is not inside the image.
            Exception: Whatever Pillow raises on an image it refuses.
        """

    def pixels(self, data: Encoded, box: Box | None = None, scale: int = 1) -> npt.NDArray[np.uint8] | None:
        """Decode a rectangle of an image to the pixels that `decode` gives in mode RGB.

        Returns:
            Pixels, uint8 [height, width, 3]; there may be gaps between rows. None if only `decode` can decode `data`.
        """
        return None

    def __repr__(self) -> str:
        return f"<decoder {self.name}: {self.version}>"


class PillowDecoder(Decoder):
    """Pillow or pillow-simd, whichever is installed. All other decoders must give its pixels.

    It decodes all formats in `packtrain._codec.pillow.FORMATS`.
    """

    name: Final = "pillow"

    @property
    @override
    def version(self) -> str:
        return pillow_version()

    @override
    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        image = open_image(data)
        size = tuple(-(-side // scale) for side in image.size)
        frame = frame_header(data) if scale > 1 else None
        if frame is not None and not frame.is_lossless:
            # draft() takes the largest scale at which the image is not smaller than this size. Given exact fractions,
            # that is our scale. It does not get the mode: libjpeg's grey of a colour image is not that of convert().
            image.draft(None, (image.width / scale, image.height / scale))  # type: ignore[arg-type]
        image.load()
        if image.size != size:
            image = image.convert(mode).reduce(scale)
        if box is not None:
            left, top, right, bottom = box.left, box.top, box.left + box.width, box.top + box.height
            if not (0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]):
                raise ValueError(f"{box} is not inside an image of {size[0]} x {size[1]} pixels")
            if (right - left, bottom - top) != size:
                image = image.crop((left, top, right, bottom))
        # convert() copies the pixels even if the mode stays the same.
        return image if image.mode == mode else image.convert(mode)


PILLOW: Final = PillowDecoder()


class BackEnd(Decoder):
    """A decoder that hands to Pillow what it cannot decode itself."""

    @abstractmethod
    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image:
        """Decode without Pillow.

        Raises:
            ValueError, OSError: The back end cannot decode `data`, or not to exactly the same pixels as Pillow.
        """

    @override
    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        try:
            size_within_limit(data)
            return self.attempt(data, mode, box, scale)
        except (ValueError, OSError):
            return PILLOW.decode(data, mode, box, scale)


def size_within_limit(data: Encoded) -> tuple[int, int]:
    """Return width and height of a JPEG that does not exceed Pillow's limit: Pillow is to warn of all others.

    Raises:
        ValueError: The image exceeds the limit, or has no frame header.
    """
    width, height = frame_size(data)
    if exceeds_limit(width, height):
        raise ValueError("the image has more pixels than Pillow's limit")
    return width, height


def frame_size(data: Encoded) -> tuple[int, int]:
    """Return width and height of a JPEG in pixels, from its frame header.

    Raises:
        ValueError: There is no frame header where one should be.
    """
    found = frame_header(header_file(data))
    if found is None:
        raise ValueError("no frame header")
    return found.width, found.height
