"""Runs operations on arrays of pixels, where an image needs more than one crop, one resize and one flip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import resizing
from .effects.operation import PixelOperation, Pixels, image_of, pixels_of
from .geometry import Crop, Flip, Operation, Pad, Scale
from .pixels import array_from_pixels


def change_pixels(pixels: Pixels, operations: Sequence[Operation]) -> Pixels:
    """The result of `operations`, with the pixels that `packtrain._codec.geometry.apply` gives.

    Args:
        pixels: uint8 [height, width, channels], contiguous and writable; may be overwritten.
        operations: The operations.

    Returns:
        `pixels`, or a new array.
    """
    for operation in operations:
        pixels = operation.on_pixels(pixels) if isinstance(operation, PixelOperation) else _moved(pixels, operation)
    return pixels


def _moved(pixels: Pixels, operation: Crop | Scale | Flip | Pad) -> Pixels:
    height, width, channels = pixels.shape
    match operation:
        case Crop((left, top, wide, high)) if min(left, top) >= 0 and left + wide <= width and top + high <= height:
            # No other view of all pixels: whoever asked for them in a certain place has to see that they are there.
            whole = (wide, high) == (width, height)
            return pixels if whole else np.ascontiguousarray(pixels[top : top + high, left : left + wide])
        case Flip(horizontal):
            # A copy even of a single row, whose strides would be negative.
            return array_from_pixels(pixels, mirrored=True) if horizontal else pixels[::-1].copy()
        case Scale(_, _, resample) if channels == 3 and resample in resizing.RESAMPLES:
            style = resizing.style()
            if style is not None:
                return resizing.array_resized(pixels, operation, style)
    return pixels_of(operation.apply(image_of(pixels)))
