"""packtrain's own C extension, on top of the libjpeg that it was built with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..geometry import Box
from ..native import extension
from ..pillow import require_pillow
from .fallback import BackEnd
from .rgbx import rgb_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from .pillow import Encoded

if extension is None:
    raise ImportError("packtrain's C extension was not built")
_extension: Final = extension

# SOF0 to SOF15, without the three codes in this range that have another meaning.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN: Final = 0xDA


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
    def pixels(self, data: Encoded, box: Box | None = None) -> npt.NDArray[np.uint8] | None:
        try:
            rectangle = box or Box(0, 0, *frame_size(data))
            pixels, start, stride = _extension.decode(data, rectangle, 3, 1)
        except ValueError:
            return None
        return np.ndarray((rectangle.height, rectangle.width, 3), np.uint8, pixels, start, (stride, 3, 1))


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


DECODER: Final = ExtensionDecoder()
