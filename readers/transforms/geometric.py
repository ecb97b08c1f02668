"""Geometric transforms with torchvision's names, parameters, defaults and pixels.

Their operations are known before an image is decoded, so they say which part of it has to be decoded at all;
`open_dataset(path, transform=RandomResizedCrop(224))` makes use of that. Called with PIL images, the same objects do
what torchvision's do, also in torchvision's ``Compose``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from packtrain._codec import geometry
from packtrain._codec.geometry import FILTERS, Box, Crop, Flip, Operation, Scale, size_after
from packtrain._core.arguments import flag
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from . import arguments
from .base import Transform

_ATTEMPTS: Final = 10


class GeometricTransform(Transform):
    """A transform that moves pixels and keeps their values, except where a resize filters them."""

    geometric = True


class RandomResizedCrop(GeometricTransform):
    """Crops a part of random area and aspect ratio and resizes it to `size`.

    Args:
        size: Pixels of each side, or (height, width).
        scale: Least and greatest area of the part, relative to that of the image.
        ratio: Least and greatest width / height of the part; its logarithm is uniform.
        interpolation: ``"nearest"``, ``"nearest-exact"``, ``"bilinear"``, ``"bicubic"``, ``"box"``, ``"hamming"`` or
            ``"lanczos"``, torchvision's ``InterpolationMode``, or a value of `PIL.Image.Resampling`.
        antialias: Always on, as for all PIL images.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 2 * _ATTEMPTS + 2

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self.size: Final = arguments.size(size)
        self.scale: Final = arguments.bounds("scale", scale, zero=True)
        self.ratio: Final = arguments.bounds("ratio", ratio, zero=False)
        self.interpolation: Final = arguments.interpolation(interpolation)
        self.antialias: Final = arguments.antialias(antialias)
        self._scaled: Final = Scale(self.size[1], self.size[0], FILTERS[self.interpolation])
        # Everything that is the same for all images, so that `operations` unpacks it at once.
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        self._uniform: Final = (self.scale[0], self.scale[1] - self.scale[0], low, high - low)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        least, spread, log_least, log_spread = self._uniform
        for attempt in range(0, 2 * _ATTEMPTS, 2):
            area = width * height * (least + spread * random[attempt])
            ratio = math.exp(log_least + log_spread * random[attempt + 1])
            crop_width = round(math.sqrt(area * ratio))
            crop_height = round(math.sqrt(area / ratio))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                left = int(random[2 * _ATTEMPTS] * (width - crop_width + 1))
                top = int(random[2 * _ATTEMPTS + 1] * (height - crop_height + 1))
                return Crop(Box(left, top, crop_width, crop_height)), self._scaled
        return Crop(self._central(width, height)), self._scaled

    def _central(self, width: int, height: int) -> Box:
        """The largest part of an allowed ratio, in the middle; for images too long to find one by chance."""
        crop_width, crop_height = width, height
        if width / height < self.ratio[0]:
            crop_height = max(1, round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            crop_width = max(1, round(height * self.ratio[1]))
        return Box((width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height)


class Resize(GeometricTransform):
    """Resizes the whole image.

    Args:
        size: Pixels of the short side, or (height, width).
        interpolation: As for `RandomResizedCrop`.
        max_size: Most pixels that the long side may have. If it would have more, the short side becomes less than
            `size` (but never 0, for which torchvision fails).
        antialias: Always on, as for all PIL images.

    Raises:
        UsageError: A parameter is out of its range, or `max_size` comes with two sides.
    """

    draws = 0

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        sides = arguments.integers("size", size, (1, 2), least=1)
        self.size: Final = sides[0] if len(sides) == 1 else sides
        self.interpolation: Final = arguments.interpolation(interpolation)
        self.max_size: Final = max_size
        self.antialias: Final = arguments.antialias(antialias)
        if max_size is not None:
            if len(sides) == 2:
                raise UsageError(f"max_size={max_size} with size={sides}: it limits the long side of size=<short side>")
            if arguments.integers("max_size", max_size, (1,), least=1)[0] <= sides[0]:
                raise UsageError(f"max_size={max_size} must be greater than the short side, size={sides[0]}")

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        size = self._size_for(width, height)
        return () if size == (width, height) else (Scale(*size, FILTERS[self.interpolation]),)

    def _size_for(self, width: int, height: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size[1], self.size[0]
        new_short, new_long = self.size, int(self.size * max(width, height) / min(width, height))
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = max(1, int(self.max_size * new_short / new_long)), self.max_size
        return (new_short, new_long) if width <= height else (new_long, new_short)


class CenterCrop(GeometricTransform):
    """Crops the middle of the image; around an image smaller than that, pixels are 0.

    Args:
        size: Pixels of each side, or (height, width).

    Raises:
        UsageError: `size` is out of its range.
    """

    draws = 0

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size: Final = arguments.size(size)

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        crop_height, crop_width = self.size
        return (Crop(Box(_middle(width, crop_width), _middle(height, crop_height), crop_width, crop_height)),)


class RandomCrop(GeometricTransform):
    """Crops a part of `size` at a random place.

    Args:
        size: Pixels of each side, or (height, width).
        padding: Pixels added before the crop: on all sides, or (left and right, top and bottom), or (left, top, right,
            bottom).
        pad_if_needed: True to pad an image that is smaller than the part by the missing pixels, on both sides.
        fill: Value of the pixels added by the padding mode ``"constant"``: one for all channels or one for each.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 2

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] | None = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size: Final = arguments.size(size)
        self.padding: Final = padding
        self.pad_if_needed: Final = flag("pad_if_needed", pad_if_needed)
        self.fill: Final = fill
        self.padding_mode: Final = arguments.pad_mode(padding_mode)
        self._style: Final = (arguments.fill(fill), self.padding_mode)
        sides = () if padding is None else arguments.integers("padding", padding, (1, 2, 4), least=0)
        self._padding: Final = (sides * 4)[:4]
        self.pads: Final = any(self._padding)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        crop_height, crop_width = self.size
        operations = self._pads(width, height)
        width, height = size_after(operations, width, height)
        if width < crop_width or height < crop_height:
            raise UsageError(
                f"a crop of {crop_width} x {crop_height} pixels (width x height) from an image of {width} x {height}: "
                "set pad_if_needed=True, or put a Resize before it"
            )
        left = int(random[0] * (width - crop_width + 1))
        top = int(random[1] * (height - crop_height + 1))
        return *operations, Crop(Box(left, top, crop_width, crop_height))

    def _pads(self, width: int, height: int) -> list[Operation]:
        # One after the other as in torchvision, since a reflection of a reflection is not one wider reflection.
        pads: list[Operation] = []
        if self.pads:
            left, top, right, bottom = self._padding
            pads.append(geometry.Pad(left, top, right, bottom, *self._style))
            width, height = pads[0].size_after(width, height)
        if self.pad_if_needed and width < self.size[1]:
            pads.append(geometry.Pad(self.size[1] - width, 0, self.size[1] - width, 0, *self._style))
        if self.pad_if_needed and height < self.size[0]:
            pads.append(geometry.Pad(0, self.size[0] - height, 0, self.size[0] - height, *self._style))
        return pads


class Pad(GeometricTransform):
    """Adds pixels on the sides of the image.

    Args:
        padding: Pixels on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
        fill: Value of the pixels added by the padding mode ``"constant"``: one for all channels or one for each.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 0

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: float | Sequence[float] | None = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.padding: Final = tuple(padding) if isinstance(padding, Iterable) else padding
        self.fill: Final = fill
        self.padding_mode: Final = arguments.pad_mode(padding_mode)
        left, top, right, bottom = (arguments.integers("padding", padding, (1, 2, 4), least=0) * 4)[:4]
        self._operation: Final = geometry.Pad(left, top, right, bottom, arguments.fill(fill), self.padding_mode)

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        return (self._operation,)


class _RandomFlip(GeometricTransform):
    draws = 1
    _horizontal: bool

    def __init__(self, p: float = 0.5) -> None:
        self.p: Final = arguments.probability("p", p)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        return (Flip(self._horizontal),) if random[0] < self.p else ()


class RandomHorizontalFlip(_RandomFlip):
    """Swaps left and right with probability `p`.

    Raises:
        UsageError: `p` is not a probability.
    """

    _horizontal = True


class RandomVerticalFlip(_RandomFlip):
    """Swaps top and bottom with probability `p`.

    Raises:
        UsageError: `p` is not a probability.
    """

    _horizontal = False


def _middle(side: int, crop: int) -> int:
    """Return the first pixel of a crop from the middle; negative if the crop is larger than the image."""
    return -((crop - side) // 2) if crop > side else round((side - crop) / 2)
