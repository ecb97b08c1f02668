"""Pillow or pillow-simd, whichever is installed. All other decoders must give its pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..jpeg_frame import frame_header
from ..pillow import Encoded as Encoded
from ..pillow import open_image, pillow_version

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from ..box import Box


class PillowDecoder:
    """Decodes the images of all formats in `packtrain._codec.pillow.FORMATS`.

    Arguments and results are those of `packtrain._codec.decoders.Decoder`.
    """

    name: Final = "pillow"

    @property
    def version(self) -> str:
        """For example ``"pillow-simd 12.1.1.post0, libjpeg-turbo 2.1.5"``."""
        return pillow_version()

    def decode(self, data: Encoded, mode: str, box: Box | None = None, scale: int = 1) -> Image:
        """Decodes a rectangle of an image."""
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

    def pixels(self, data: Encoded, box: Box | None = None) -> npt.NDArray[np.uint8] | None:
        """None: Pillow decodes to its own images only."""
        return None

    def __repr__(self) -> str:
        return f"<decoder {self.name}: {self.version}>"


DECODER: Final = PillowDecoder()
