"""Steps that a geometric transform comes down to for one image, and what they ask of the source.

A step says nothing about how pixels are come by: `apply` carries steps out on a whole PIL image, and `needed` tells
which rectangle of the source they depend on, so that a decoder may leave the rest out. Every step gives, bit for bit,
what torchvision gives for PIL images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from .pillow import require_pillow

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
# How far each reaches to either side, in source pixels at scale 1 (`struct filter` in src/libImaging/Resample.c).
_SUPPORT: Final = {1: 3.0, 2: 1.0, 3: 2.0, 4: 0.5, 5: 1.0}
# Pixels. Far more than Pillow's arithmetic can differ from ours: a build may fuse a multiplication with an addition,
# and the nearest filter sums up its positions.
_ROUNDING: Final = 1 / 1024


# The steps are named tuples and not dataclasses since they are made for every image, in a third of the time.
class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: int
    top: int
    width: int
    height: int


class Crop(NamedTuple):
    """The rectangle `box`; where it lies outside the image, the pixels are 0."""

    box: Box

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Size of the result for an image of `width` x `height`."""
        return self.box[2:]

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on; may reach outside."""
        return Box(box.left + self.box.left, box.top + self.box.top, box.width, box.height)

    def apply(self, image: Image) -> Image:
        """Carries the step out."""
        left, top, width, height = self.box
        return image.crop((left, top, left + width, top + height))


class Scale(NamedTuple):
    """Resizes to `width` x `height` by Pillow's antialiased filter `resample`, a value of `PIL.Image.Resampling`."""

    width: int
    height: int
    resample: int

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Size of the result for an image of `width` x `height`."""
        return self.width, self.height

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on; may reach outside."""
        left, right = _window(box.left, box.left + box.width, width, self.width, self.resample)
        top, bottom = _window(box.top, box.top + box.height, height, self.height, self.resample)
        return Box(left, top, right - left, bottom - top)

    def apply(self, image: Image) -> Image:
        """Carries the step out."""
        return image.resize((self.width, self.height), self.resample)


class Flip(NamedTuple):
    """Swaps left and right (`horizontal`), or top and bottom."""

    horizontal: bool

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Size of the result for an image of `width` x `height`."""
        return width, height

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on."""
        if self.horizontal:
            return box._replace(left=width - box.left - box.width)
        return box._replace(top=height - box.top - box.height)

    def apply(self, image: Image) -> Image:
        """Carries the step out."""
        methods = require_pillow().Transpose
        return image.transpose(methods.FLIP_LEFT_RIGHT if self.horizontal else methods.FLIP_TOP_BOTTOM)


class Pad(NamedTuple):
    """Adds so many pixels on each side.

    `fill` is the value of the new pixels, for all channels or for each, in the mode ``"constant"``; the other modes are
    those of `numpy.pad`.
    """

    left: int
    top: int
    right: int
    bottom: int
    fill: int | tuple[int, ...] = 0
    mode: PadMode = "constant"

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Size of the result for an image of `width` x `height`."""
        return self.left + width + self.right, self.top + height + self.bottom

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on; may reach outside."""
        moved = Box(box.left - self.left, box.top - self.top, box.width, box.height)
        if self.mode == "constant" or _clipped(moved, width, height) == moved:
            return moved
        return Box(0, 0, width, height)

    def apply(self, image: Image) -> Image:
        """Carries the step out.

        Raises:
            ValueError: `fill` has not as many values as the image has channels.
        """
        if self.mode == "constant":
            require_pillow()
            from PIL import ImageOps

            return ImageOps.expand(image, self[:4], _color(self.fill, image))
        pixels = np.asarray(image)
        margins = [(self.top, self.bottom), (self.left, self.right), (0, 0)][: pixels.ndim]
        size = self.size_after(*image.size)
        # Not Image.fromarray, which would take four channels for RGBA and palette indices for grey.
        result: Image = require_pillow().frombytes(image.mode, size, np.pad(pixels, margins, self.mode).tobytes())
        if image.mode == "P":
            result.putpalette(image.getpalette() or b"")
        return result


Step = Crop | Scale | Flip | Pad


def size_after(steps: Sequence[Step], width: int, height: int) -> tuple[int, int]:
    """Width and height of the result of `steps` for an image of `width` x `height` pixels.

    >>> size_after([Scale(341, 256, FILTERS["bilinear"]), Crop(Box(58, 16, 224, 224))], 500, 375)
    (224, 224)
    """
    for step in steps:
        width, height = step.size_after(width, height)
    return width, height


def first_crop(steps: tuple[Step, ...], width: int, height: int) -> tuple[Box, tuple[Step, ...]]:
    """The rectangle that crops at the beginning leave, and the other steps."""
    box = Box(0, 0, width, height)
    while steps and type(steps[0]) is Crop:
        left, top, wide, high = steps[0].box
        if left < 0 or top < 0 or left + wide > box.width or top + high > box.height:
            break
        box = Box(box.left + left, box.top + top, wide, high)
        steps = steps[1:]
    return box, steps


def apply(image: Image, steps: Sequence[Step]) -> Image:
    """The result of `steps`; `image` itself if there are none.

    Raises:
        ValueError: A `Pad` does not suit the image's mode.
    """
    for step in steps:
        image = step.apply(image)
    return image


def needed(steps: Sequence[Step], width: int, height: int) -> Box:
    """The rectangle that the result of `steps` can depend on in an image of `width` x `height` pixels.

    It lies inside the image and is not empty: of a result that depends on no pixel of the source it is any one pixel.
    It is exact for crops, flips and constant padding; for a scale it is what Pillow's filter reads or a little more.

    >>> needed([Crop(Box(400, 300, 224, 224)), Scale(64, 64, FILTERS["bilinear"])], 500, 375)
    Box(left=400, top=300, width=100, height=75)
    """
    sizes = [(width, height)]
    for step in steps:
        sizes.append(step.size_after(*sizes[-1]))
    box = Box(0, 0, *sizes.pop())
    for step in reversed(steps):
        width, height = sizes.pop()
        box = _clipped(step.source(box, width, height), width, height)
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
    """The source pixels that the result pixels `first` to `end` - 1 of one axis are made of; may reach outside.

    `xmin` of the first and `xmax` of the last pixel as in `precompute_coeffs` of Pillow's src/libImaging/Resample.c;
    pillow-simd has the same.
    """
    if source == target:
        # Pillow leaves out the pass over an axis that keeps its size.
        return first, end
    if end - first == target:
        return 0, source
    scale = source / target
    # The nearest filter takes the pixel that the centre lies in: a box of one pixel.
    support = 0.5 if resample == _NEAREST else _SUPPORT[resample] * max(scale, 1.0)
    low = (first + 0.5) * scale - support + 0.5
    high = (end - 0.5) * scale + support + 0.5
    return int(low - _ROUNDING), int(high + _ROUNDING)


def _color(fill: int | tuple[int, ...], image: Image) -> int | tuple[int, ...]:
    """`fill` as Pillow asks for it, which would take a single number for red alone."""
    channels = len(image.getbands())
    if isinstance(fill, int):
        return fill if channels == 1 else (fill,) * channels
    if image.mode == "RGBX" and len(fill) == 3:
        # An RGB picture with a byte between its pixels, which means nothing.
        return (*fill, 255)
    if len(fill) not in (1, channels):
        raise ValueError(f"a fill of {len(fill)} values for an image of {channels} channels ({image.mode})")
    return fill * channels if len(fill) == 1 else fill
