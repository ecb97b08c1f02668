"""packtrain's own C extension, on top of the libjpeg that it was built with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.overriding import override

from ..native import absence, extension
from ..pillow import require_pillow
from ..pixels import Box, rgb_image
from .base import BackEnd, frame_size, size_within_limit

if TYPE_CHECKING:
    from PIL.Image import Image

    from .base import Encoded

if extension is None:
    raise ImportError(absence)
_extension: Final = extension


class ExtensionDecoder(BackEnd):
    """Decodes little more than the rectangle, to four bytes per pixel, which a PIL image then uses without a copy.

    It stops reading at the end of the rectangle. Damage after that, which Pillow might refuse, goes unnoticed.
    """

    name: Final = "extension"

    @property
    @override
    def version(self) -> str:
        return f"packtrain, {_extension.LIBJPEG}"

    @override
    def attempt(self, data: Encoded, mode: str, box: Box | None, scale: int) -> Image:
        if box is None:
            box = Box(0, 0, *(-(-side // scale) for side in frame_size(data)))
        if mode == "L":
            try:
                pixels, start, stride = _extension.decode(data, box, 1, scale)
            except ValueError:
                # It may be a colour image, of which libjpeg makes another grey than Pillow does.
                pass
            else:
                grey = memoryview(pixels)[start:]
                image: Image = require_pillow().frombuffer("L", box[2:], grey, "raw", "L", stride, 1)
                return image
        pixels, start, stride = _extension.decode(data, box, 4, scale)
        image = rgb_image(memoryview(pixels)[start:], box.width, box.height, stride)
        return image if mode == "RGB" else image.convert(mode)

    @override
    def pixels(self, data: Encoded, box: Box | None = None, scale: int = 1) -> npt.NDArray[np.uint8] | None:
        try:
            box = box or Box(0, 0, *(-(-side // scale) for side in size_within_limit(data)))
            pixels, start, stride = _extension.decode(data, box, 3, scale)
        except ValueError:
            return None
        return np.ndarray((box.height, box.width, 3), np.uint8, pixels, start, (stride, 3, 1))


DECODER: Final = ExtensionDecoder()
