"""PIL images that use the pixels of a decoder without a copy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..pillow import require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image


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
