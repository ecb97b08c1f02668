"""Pixels: rectangles of them, and conversions between three bytes a pixel, as in records and arrays, and Pillow's four.

With the C extension they take one pass over the pixels. Without it, Pillow and numpy need two.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .native import extension
from .pillow import require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image


# One is made for every image: a named tuple takes a third of the time of a frozen dataclass.
class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: int
    top: int
    width: int
    height: int


def rgb_from_pixels(pixels: memoryview, row: int, box: Box) -> Image:
    """A PIL image of a rectangle, of mode RGB or RGBX.

    Args:
        pixels: The pixels of the whole image, uint8 [height * row * 3].
        row: Number of pixels from one row to the next.
        box: The rectangle, in pixels; it must be inside the image.
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
        mirrored: Exchange left and right.
        into: A contiguous array. If it has the shape of the image, it is filled and returned; otherwise a new array is.
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
    pixels: npt.NDArray[np.uint8],
    *,
    mirrored: bool = False,
    into: npt.NDArray[np.uint8] | None = None,
    unfinished: bool = False,
) -> npt.NDArray[np.uint8]:
    """A copy of pixels, uint8 [height, width, channels].

    Args:
        pixels: uint8 [height, width, channels]; there may be gaps between rows.
        mirrored: Exchange left and right.
        into: See `array_from_image`.
        unfinished: True if this process changes the copy next.
    """
    out = np.empty(pixels.shape, np.uint8) if into is None or into.shape != pixels.shape else into
    if extension is None:
        np.copyto(out, pixels[:, ::-1] if mirrored else pixels)
    else:
        # Pixels that the caller wants in a certain place are usually for another process, so the caches are bypassed.
        extension.copy_pixels(pixels, mirrored, out is into and not unfinished, out)
    return out


def _exported(image: Image) -> Any:
    """The four-byte pixels of an image, as an Arrow array capsule; None if they are not in one piece."""
    # Pillow 12 crashes here for images over memory that it does not own. It marks those as read-only.
    if image.readonly or image.mode == "L":
        return None
    try:
        # Since Pillow 11.2, Image.__arrow_c_array__ returns this and a schema that is not needed here.
        return image.im.__arrow_c_array__()
    except (AttributeError, ValueError):
        return None


def rgb_image(pixels: bytes | memoryview, width: int, height: int, stride: int) -> Image:
    """An image that uses the memory of `pixels`, which must not change as long as the image is in use.

    Pillow itself keeps RGB images in four bytes per pixel. Its `frombuffer` nevertheless makes an image of mode RGBX of
    such a buffer, and its resize computes all four bands of RGBX. Decoding and resizing to 224 pixels then takes 10 %
    longer with plain Pillow; with pillow-simd there is no difference. The buffer is therefore mapped as RGB if Pillow
    allows it, and as RGBX otherwise.

    Args:
        pixels: At least height * stride bytes. Each pixel is red, green, blue and a byte without meaning.
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
        stride: Number of bytes from one row to the next.

    Raises:
        ValueError: `pixels` has too few bytes.
    """
    if _maps_rgb():
        return _map_rgb(pixels, width, height, stride)
    image: Image = require_pillow().frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", stride, 1)
    return image


def _map_rgb(pixels: bytes | memoryview, width: int, height: int, stride: int) -> Image:
    pillow = require_pillow()
    image: Image = pillow.Image()._new(pillow.core.map_buffer(pixels, (width, height), "raw", 0, ("RGB", stride, 1)))
    image.readonly = 1
    return image


@functools.cache
def _maps_rgb() -> bool:
    """True if the private functions behind `frombuffer` work as `_map_rgb` expects."""
    try:
        image = _map_rgb(b"123x456x", 2, 1, 8)
        return image.mode == "RGB" and image.tobytes() == b"123456"
    except (AttributeError, TypeError, ValueError):
        return False
