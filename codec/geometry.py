"""The operations that transforms are made of, and which part of the source they need.

An operation does not say where the pixels come from. `apply` runs operations on a whole PIL image, and `needed` tells
which rectangle of the source their result depends on, so that a decoder may skip the rest. Every operation gives, bit
for bit, what torchvision gives for PIL images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from .effects.operation import PixelOperation
from .pillow import require_pillow
from .pixels import Box as Box

if TYPE_CHECKING:
    from PIL.Image import Image

PadMode = Literal["constant", "edge", "reflect", "symmetric"]

# Pillow's filters by torchvision's names; the values are those of `PIL.Image.Resampling`.
FILTERS: Final = {
    "nearest": 0,
    "nearest-exact": 0,
    "bilinear": 2,
    "bicubic": 3,
    "box": 4,
    "hamming": 5,
    "lanczos": 1,
}
_NEAREST: Final = 0
# How far each filter reaches to either side, in source pixels at scale 1 (`struct filter` in Pillow's
# src/libImaging/Resample.c).
_SUPPORT: Final = {1: 3.0, 2: 1.0, 3: 2.0, 4: 0.5, 5: 1.0}
# In pixels. Far more than Pillow's arithmetic can differ from ours: a build may fuse a multiplication with an addition,
# and the nearest filter adds up its positions.
_ROUNDING: Final = 1 / 1024


# Operations are made for every image: a named tuple takes a third of the time of a frozen dataclass.
class Crop(NamedTuple):
    """Takes the rectangle `box`; pixels outside the image are 0."""

    box: Box

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the result for an image of `width` x `height` pixels."""
        return self.box[2:]

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on; may reach outside."""
        return Box(box.left + self.box.left, box.top + self.box.top, box.width, box.height)

    def apply(self, image: Image) -> Image:
        """Runs the operation on a PIL image."""
        left, top, width, height = self.box
        return image.crop((left, top, left + width, top + height))


class Scale(NamedTuple):
    """Resizes to `width` x `height` by Pillow's antialiased filter `resample`, a value of `PIL.Image.Resampling`."""

    width: int
    height: int
    resample: int

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the result for an image of `width` x `height` pixels."""
        return self.width, self.height

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on; may reach outside."""
        left, right = _window(box.left, box.left + box.width, width, self.width, self.resample)
        top, bottom = _window(box.top, box.top + box.height, height, self.height, self.resample)
        return Box(left, top, right - left, bottom - top)

    def apply(self, image: Image) -> Image:
        """Runs the operation on a PIL image."""
        return image.resize((self.width, self.height), self.resample)


class Flip(NamedTuple):
    """Swaps left and right (`horizontal`), or top and bottom."""

    horizontal: bool

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the result for an image of `width` x `height` pixels."""
        return width, height

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on."""
        if self.horizontal:
            return box._replace(left=width - box.left - box.width)
        return box._replace(top=height - box.top - box.height)

    def apply(self, image: Image) -> Image:
        """Runs the operation on a PIL image."""
        methods = require_pillow().Transpose
        return image.transpose(methods.FLIP_LEFT_RIGHT if self.horizontal else methods.FLIP_TOP_BOTTOM)


class Pad(NamedTuple):
    """Adds pixels on each side.

    In mode ``"constant"``, `fill` is the value of the new pixels, for all channels or for each. The other modes are
    those of `numpy.pad`.
    """

    left: int
    top: int
    right: int
    bottom: int
    fill: int | tuple[int, ...] = 0
    mode: PadMode = "constant"

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the result for an image of `width` x `height` pixels."""
        return self.left + width + self.right, self.top + height + self.bottom

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on; may reach outside."""
        moved = Box(box.left - self.left, box.top - self.top, box.width, box.height)
        if self.mode == "constant" or _clipped(moved, width, height) == moved:
            return moved
        return Box(0, 0, width, height)

    def apply(self, image: Image) -> Image:
        """Runs the operation on a PIL image.

        Raises:
            ValueError: The number of values in `fill` differs from the image's channels.
        """
        if self.mode == "constant":
            require_pillow()
            from PIL import ImageOps

            return ImageOps.expand(image, self[:4], _color(self.fill, image))
        pixels = np.asarray(image)
        margins = [(self.top, self.bottom), (self.left, self.right), (0, 0)][: pixels.ndim]
        size = self.size_after(*image.size)
        # Not Image.fromarray: it would read four channels as RGBA and palette indices as grey.
        result: Image = require_pillow().frombytes(image.mode, size, np.pad(pixels, margins, self.mode).tobytes())
        if image.mode == "P":
            result.putpalette(image.getpalette() or b"")
        return result


Operation = Crop | Scale | Flip | Pad | PixelOperation


def size_after(operations: Sequence[Operation], width: int, height: int) -> tuple[int, int]:
    """Width and height of the result of `operations` for an image of `width` x `height` pixels.

    >>> size_after([Scale(341, 256, FILTERS["bilinear"]), Crop(Box(58, 16, 224, 224))], 500, 375)
    (224, 224)
    """
    for operation in operations:
        width, height = operation.size_after(width, height)
    return width, height


def apply(image: Image, operations: Sequence[Operation]) -> Image:
    """The result of `operations`; `image` itself if there are none.

    Raises:
        ValueError: A `Pad` does not suit the image's mode.
    """
    for operation in operations:
        image = operation.apply(image)
    return image


def needed(operations: Sequence[Operation], width: int, height: int) -> Box:
    """The rectangle that the result of `operations` can depend on in an image of `width` x `height` pixels.

    It lies inside the image and is never empty: if the result depends on no pixel of the source, it is a single pixel.
    It is exact for crops, flips and constant padding. For a scale it is what Pillow's filter reads, or a little more.

    >>> needed([Crop(Box(400, 300, 224, 224)), Scale(64, 64, FILTERS["bilinear"])], 500, 375)
    Box(left=400, top=300, width=100, height=75)
    """
    sizes = [(width, height)]
    for operation in operations:
        sizes.append(operation.size_after(*sizes[-1]))
    box = Box(0, 0, *sizes.pop())
    for operation in reversed(operations):
        width, height = sizes.pop()
        box = _clipped(operation.source(box, width, height), width, height)
        if box.width <= 0 or box.height <= 0:
            return Box(0, 0, 1, 1)
    return box


def _clipped(box: Box, width: int, height: int) -> Box:
    left, top, box_width, box_height = box
    right, bottom = left + box_width, top + box_height
    if left >= 0 and top >= 0 and right <= width and bottom <= height:
        return box
    left, top = max(left, 0), max(top, 0)
    return Box(left, top, min(right, width) - left, min(bottom, height) - top)


def _window(first: int, end: int, source: int, target: int, resample: int) -> tuple[int, int]:
    """The source pixels from which the result pixels `first` to `end` - 1 of one axis are made; may reach outside.

    These are `xmin` of the first and `xmax` of the last pixel in `precompute_coeffs` of Pillow's
    src/libImaging/Resample.c; pillow-simd has the same.
    """
    if source == target:
        # Pillow skips the pass over an axis that keeps its size.
        return first, end
    if end - first == target:
        return 0, source
    scale = source / target
    # The nearest filter takes the pixel that contains the centre: a box of one pixel.
    support = 0.5 if resample == _NEAREST else _SUPPORT[resample] * max(scale, 1.0)
    low = (first + 0.5) * scale - support + 0.5
    high = (end - 0.5) * scale + support + 0.5
    return int(low - _ROUNDING), int(high + _ROUNDING)


def _color(fill: int | tuple[int, ...], image: Image) -> int | tuple[int, ...]:
    """`fill` in the form that Pillow wants; it would take a single number as the value of red only."""
    channels = len(image.getbands())
    if isinstance(fill, int):
        return fill if channels == 1 else (fill,) * channels
    if image.mode == "RGBX" and len(fill) == 3:
        # An RGB picture with an unused byte after each pixel.
        return (*fill, 255)
    if len(fill) not in (1, channels):
        raise ValueError(f"a fill of {len(fill)} values for an image of {channels} channels ({image.mode})")
    return fill * channels if len(fill) == 1 else fill
