"""Between the pixels of records and arrays, three bytes each, and those of PIL images, four bytes each.

With the C extension one pass over the pixels does it; without, Pillow and numpy do, in two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .decoders.rgbx import rgb_image
from .geometry import Box, Scale
from .native import extension
from .pillow import require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image


def rgb_from_pixels(pixels: memoryview, row: int, box: Box) -> Image:
    """A PIL image, RGB or RGBX, of a rectangle.

    Args:
        pixels: uint8 [height * row * 3].
        row: Pixels from one row to the next.
        box: The rectangle, inside the image.
    """
    if extension is not None:
        return rgb_image(extension.rgb_to_rgbx(pixels, row, *box), box.width, box.height, 4 * box.width)
    image = require_pillow().frombuffer(
        "RGB", (row, box.height), pixels[3 * row * box.top : 3 * row * (box.top + box.height)], "raw", "RGB", 3 * row, 1
    )
    return image.crop((box.left, 0, box.left + box.width, box.height))  # type: ignore[no-any-return]


def array_from_image(
    image: Image, *, mirrored: bool = False, into: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.uint8]:
    """The pixels of an image of mode RGB, RGBX or L as an array, uint8 [height, width, channels].

    Args:
        image: The image.
        mirrored: Whether to exchange left and right.
        into: A contiguous array to be filled and returned, if the image has its shape; a new one is made otherwise.
    """
    width, height = image.size
    if into is not None and into.shape != (height, width, 1 if image.mode == "L" else 3):
        into = None
    capsule = _exported(image)
    if extension is None or capsule is None:
        if mirrored:
            image = image.transpose(require_pillow().Transpose.FLIP_LEFT_RIGHT)
        packed = bytearray(image.tobytes("raw", "L" if image.mode == "L" else "RGB"))
        unpacked = np.frombuffer(packed, np.uint8).reshape(height, width, -1)
        if into is None:
            return unpacked
        np.copyto(into, unpacked)
        return into
    pixels = np.empty((height, width, 3), np.uint8) if into is None else into
    extension.rgbx_to_rgb(capsule, width, height, mirrored, pixels)
    return pixels


def array_from_pixels(
    pixels: npt.NDArray[np.uint8], *, mirrored: bool = False, into: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.uint8]:
    """A copy of pixels that lie elsewhere, uint8 [height, width, channels]; see `array_from_image`."""
    out = np.empty(pixels.shape, np.uint8) if into is None or into.shape != pixels.shape else into
    if extension is None:
        np.copyto(out, pixels[:, ::-1] if mirrored else pixels)
    else:
        # What goes to a place of the caller's choice is for another process as a rule.
        extension.copy_pixels(pixels, mirrored, out is into, out)
    return out


def array_resized(
    pixels: npt.NDArray[np.uint8],
    scale: Scale,
    style: int,
    *,
    mirrored: bool = False,
    into: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """Pixels resized by the C extension, uint8 [height, width, 3]; see `array_from_image`.

    Args:
        pixels: uint8 [height, width, 3]; its rows may lie apart.
        scale: To what size, by which filter.
        style: See `packtrain._codec.resizing`.
        mirrored: Whether to exchange left and right at last.
        into: As in `array_from_image`.
    """
    assert extension is not None
    shape = (scale.height, scale.width, 3)
    out = np.empty(shape, np.uint8) if into is None or into.shape != shape else into
    extension.resize_pixels(pixels, scale.resample, style, mirrored, out is into, out)
    return out


def _exported(image: Image) -> Any:
    """Where the four-byte pixels of an image lie, in Arrow's C data interface; None if they are not in one piece."""
    # Pillow 12 ends with a segmentation fault here for an image over memory of others, which it keeps read-only.
    if image.readonly or image.mode == "L":
        return None
    try:
        # What Image.__arrow_c_array__, of Pillow 11.2 and later, returns beside a schema that nobody needs here.
        return image.im.__arrow_c_array__()
    except (AttributeError, ValueError):
        return None
