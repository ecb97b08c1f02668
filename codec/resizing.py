"""Whose arithmetic the C extension's resize has to follow, so that its pixels are those of the Pillow that is here."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from .geometry import FILTERS
from .native import extension
from .pillow import require_pillow

NAMES: Final = ("bilinear", "bicubic")
"""Filters that the extension has."""
RESAMPLES: Final = frozenset(FILTERS[name] for name in NAMES)
_STYLES: Final = (0, 1, 2)
# Both sides smaller, the height by far; both larger; one of each.
_SIZES: Final = ((31, 17), (61, 120), (60, 41))
_WIDTH, _HEIGHT = 40, 90


@functools.cache
def style() -> int | None:
    """Argument `style` of the extension's `copy_records`; None if it cannot give Pillow's pixels."""
    if extension is None:
        return None
    # As different as pixels can be, so that every rounding shows; the same in every process.
    pixels = np.random.Generator(np.random.Philox(0)).integers(0, 256, (_HEIGHT, _WIDTH, 3), np.uint8)
    return next((found for found in _STYLES if all(_same(pixels, size, found) for size in _SIZES)), None)


def _same(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], size: tuple[int, int], found: int) -> bool:
    assert extension is not None
    place = np.array([[0, 0, 0, 0, pixels.size, 0, _WIDTH, _HEIGHT, 0, 0, _WIDTH, _HEIGHT, 0]])
    image = require_pillow().frombytes("RGB", (_WIDTH, _HEIGHT), pixels.tobytes())
    out, row = np.empty((1, size[1], size[0], 3), np.uint8), np.empty(1, np.int64)
    return all(
        extension.copy_records([pixels], place, False, resample, found, out, row)
        and out.tobytes() == image.resize(size, resample).tobytes()
        for resample in sorted(RESAMPLES)
    )
