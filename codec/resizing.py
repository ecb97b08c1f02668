"""Resizing with the extension, in the style that gives the pixels of the Pillow that is installed."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt

from .geometry import FILTERS, Box, Scale
from .native import extension
from .pillow import has_pillow, require_pillow

NAMES: Final = ("bilinear", "bicubic")
"""The filters that the extension has."""
RESAMPLES: Final = frozenset(FILTERS[name] for name in NAMES)
"""The same filters, as in `PIL.Image.Resampling`."""
_STYLES: Final = (0, 1, 2)
# Width and height: both smaller, and the height much smaller; both larger; one larger, one smaller.
_SIZES: Final = ((31, 17), (61, 120), (60, 41))
_WIDTH, _HEIGHT = 40, 90


@functools.cache
def style() -> int | None:
    """The `style` with which the extension gives Pillow's pixels; None if there is none.

    Without Pillow, it is the last one, that of the newest.
    """
    if extension is None:
        return None
    # Noise, so that every rounding shows; with a fixed seed, so that all processes come to the same answer.
    pixels = np.random.Generator(np.random.Philox(0)).integers(0, 256, (_HEIGHT, _WIDTH, 3), np.uint8)
    for candidate in _STYLES if has_pillow() else _STYLES[-1:]:
        if all(_same(pixels, size, candidate) for size in _SIZES):
            return candidate
    return None


def array_resized(
    pixels: npt.NDArray[np.uint8],
    scale: Scale,
    style: int,
    *,
    part: tuple[int, int, int, int] | None = None,
    window: Box | None = None,
    mirrored: bool = False,
    into: npt.NDArray[np.uint8] | None = None,
    unfinished: bool = False,
) -> npt.NDArray[np.uint8]:
    """Pixels resized by the C extension, uint8 [height, width, 3]: those of the whole resize, or a window of it.

    Args:
        pixels: uint8 [height, width, 3]; there may be gaps between rows.
        scale: The new size and the filter.
        style: The style of resizing; see `style`.
        part: Width and height of the whole image, and left and top of `pixels` in it; None if they are all of it.
        window: The part of the resized image that is computed; None for all of it.
        mirrored: Exchange left and right of the result.
        into: See `packtrain._codec.pixels.array_from_image`.
        unfinished: See `packtrain._codec.pixels.array_from_pixels`.
    """
    assert extension is not None
    wide, high, resample = scale
    left, top, width, height = (0, 0, wide, high) if window is None else window
    shape = (height, width, 3)
    out = np.empty(shape, np.uint8) if into is None or into.shape != shape else into
    source = (pixels.shape[1], pixels.shape[0], 0, 0) if part is None else part
    past_caches = out is into and not unfinished
    extension.resize_pixels(pixels, source, (wide, high, left, top), resample, style, mirrored, past_caches, out)
    return out


def _same(pixels: npt.NDArray[np.uint8], size: tuple[int, int], candidate: int) -> bool:
    """Return True if the extension and Pillow resize `pixels` to the same bytes; `size` is (width, height)."""
    try:
        made = {resample: array_resized(pixels, Scale(*size, resample), candidate) for resample in sorted(RESAMPLES)}
    except ValueError:
        # This processor has no instructions for it.
        return False
    if not has_pillow():
        return True
    image = require_pillow().frombytes("RGB", (_WIDTH, _HEIGHT), pixels.tobytes())
    return all(each.tobytes() == image.resize(size, resample).tobytes() for resample, each in made.items())
