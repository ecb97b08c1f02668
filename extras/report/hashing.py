"""Small grey versions of images, and their perceptual hashes: 64 bits that hardly change when one is encoded again."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

SIDE: Final = 32
"""Width and height of the grey image that is hashed."""
_THUMB: Final = 16
_LOW: Final = 8
_LOBES: Final = 3
_UNSHARED: Final = 1 << 17
"""Products of a matrix product for which OpenBLAS begins no threads: they would wait busily beside other workers."""
_AT_ONCE: Final = 128
"""Images whose pixels stay in the cache of a core."""
_GREY: Final = np.array([19595, 38470, 7471], np.float32) / 65536
"""Pillow's weights of red, green and blue."""
_KEPT: Final = 0.925
"""Width and height of a part over those of the whole: between a crop of 95 % and one of 90 %, so that it finds both."""
Greys = npt.NDArray[np.uint8]
T = TypeVar("T", np.float32, np.float64)


class View(NamedTuple):
    """A square of a grey image, in pixels, perhaps mirrored."""

    left: float = 0.0
    top: float = 0.0
    side: float = float(SIDE)
    mirrored: bool = False


WHOLE: Final = View()
_REST: Final = SIDE * (1 - _KEPT)
VIEWS: Final = tuple(
    View(x * _REST, y * _REST, side, mirrored)
    for x, y, side in ((0, 0, SIDE), *((x, y, SIDE - _REST) for x, y in ((0.5, 0.5), (0, 0), (1, 0), (0, 1), (1, 1))))
    for mirrored in (False, True)
)
"""The whole image, its middle and its corners, each also mirrored: what is compared with other whole images."""


def small_grey(pixels: npt.NDArray[np.uint8]) -> Greys:
    """Shrink an image to a grey square as Pillow's Lanczos filter does, which rounds once more: values differ by 1.

    Args:
        pixels: uint8 [height, width, 1 or 3].

    Returns:
        uint8 [SIDE, SIDE].
    """
    height, width, channels = pixels.shape
    values = np.moveaxis(pixels.astype(np.float32), 2, 0)
    grey = values[0] if channels == 1 else values[0] * _GREY[0] + values[1] * _GREY[1] + values[2] * _GREY[2]
    weights, rows = _lanczos(width, SIDE).T, max(1, _UNSHARED // (width * SIDE))
    across = np.concatenate([grey[start : start + rows] @ weights for start in range(0, height, rows)])
    # Pillow, too, clips in between, which shows where black meets white.
    down: npt.NDArray[np.float32] = _lanczos(height, SIDE) @ np.clip(across, 0, 255)
    return np.clip(np.rint(down), 0, 255).astype(np.uint8)


def hashes(greys: Greys, view: View = WHOLE) -> npt.NDArray[np.uint64]:
    """Hash a view of each image; of the whole, to the bits of ``imagehash.phash``, the first one highest.

    Args:
        greys: uint8 [images, SIDE, SIDE].
        view: What is hashed of each.

    Returns:
        uint64 [images].
    """
    waves = 2 * np.cos(np.pi * np.arange(_LOW)[:, None] * (2 * np.arange(SIDE) + 1) / (2 * SIDE))
    low = _seen(greys, view, waves).reshape(-1, _LOW * _LOW)
    if view.mirrored:
        # Waves that are odd from left to right change their sign.
        low *= np.tile((-1.0) ** np.arange(_LOW), _LOW)
    bits = np.packbits(low > np.median(low, axis=1, keepdims=True), axis=1)
    return bits.view(">u8")[:, 0].astype(np.uint64)


def thumbs(greys: Greys, view: View = WHOLE) -> npt.NDArray[np.float32]:
    """Shrink a view of each image so that the product of two is their correlation: float32 [images, pixels]."""
    small = _seen(greys, view, np.repeat(np.eye(_THUMB, dtype=np.float32), SIDE // _THUMB, axis=1))
    flat = (small[:, :, ::-1] if view.mirrored else small).reshape(-1, _THUMB * _THUMB)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.sqrt(np.einsum("ij,ij->i", flat, flat)), 1e-9)[:, None]
    return flat


def _seen(greys: Greys, view: View, into: npt.NDArray[T]) -> npt.NDArray[T]:
    """The result of a linear map, [any, SIDE], of rows and columns of each view: [images, any, any]."""
    down, across = (into, into)
    if view.side != SIDE:
        down, across = (
            (into @ _lanczos(SIDE, SIDE, start, view.side)).astype(into.dtype) for start in (view.top, view.left)
        )
    found = np.empty((len(greys), len(into), len(into)), into.dtype)
    for start in range(0, len(greys), _AT_ONCE):
        found[start : start + _AT_ONCE] = down @ greys[start : start + _AT_ONCE].astype(into.dtype) @ across.T
    return found


@functools.lru_cache(1024)
def _lanczos(source: int, target: int, start: float = 0.0, size: float | None = None) -> npt.NDArray[np.float32]:
    """The weight of each pixel in each of `target` that `size` pixels from `start` become, float32 [target, source]."""
    scale = (source if size is None else size) / target
    centre = start + (np.arange(target)[:, None] + 0.5) * scale
    x = (np.arange(source) + 0.5 - centre) / max(scale, 1.0)
    weights = np.where(np.abs(x) < _LOBES, np.sinc(x) * np.sinc(x / _LOBES), 0)
    shares: npt.NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares
