"""timm's transforms that move pixels, where they differ from torchvision's.

Their random numbers mean what timm draws itself, so that both give the same pixels for the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from packtrain._codec.geometry import FILTERS, Box, Crop, Operation, Pad, Scale, size_after
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from . import arguments
from .base import uniform
from .geometric import CenterCrop, GeometricTransform


class ResizeKeepRatio(GeometricTransform):
    """Resizes so that one side, or a weighted mean of both, fits `size`; only random changes alter the ratio.

    Args:
        size: (height, width).
        longest: 0 to make the side that needs less shrinking fit, so that the image covers `size`; 1 for the other
            one, so that the image lies inside; numbers between weight the two.
        interpolations: Filters to choose from at random, each as for `RandomResizedCrop`.
        scale_p: Probability of a random change of scale.
        scale: Least and greatest factor of the scale.
        scale_area: True if `scale` is the area of a crop: less than 1 enlarges.
        aspect_p: Probability of a random change of the ratio.
        aspect: Least and greatest factor of the ratio; its logarithm is uniform.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 5

    def __init__(
        self,
        size: Sequence[int],
        longest: float = 0.0,
        interpolations: Sequence[object] = ("bilinear",),
        scale_p: float = 0.0,
        scale: Sequence[float] = (0.85, 1.05),
        scale_area: bool = False,
        aspect_p: float = 0.0,
        aspect: Sequence[float] = (0.9, 1.11),
    ) -> None:
        self.size: Final = arguments.size(size)
        self.longest: Final = longest
        self.interpolations: Final = tuple(map(arguments.interpolation, interpolations))
        self.scale_p: Final = arguments.probability("scale_p", scale_p)
        self.scale: Final = arguments.bounds("scale", scale, zero=False)
        self.scale_area: Final = scale_area
        self.aspect_p: Final = arguments.probability("aspect_p", aspect_p)
        self.aspect: Final = arguments.bounds("aspect", aspect, zero=False)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        high, wide = height / self.size[0], width / self.size[1]
        ratio = max(high, wide) * self.longest + min(high, wide) * (1.0 - self.longest)
        if ratio <= 0:
            raise UsageError(f"longest={self.longest} leaves nothing of an image of {width} x {height} pixels")
        vertical, horizontal = self._factors(random)
        size = max(1, round(width * horizontal / ratio)), max(1, round(height * vertical / ratio))
        if size == (width, height):
            return ()
        name = self.interpolations[int(random[4] * len(self.interpolations))]
        return (Scale(*size, FILTERS[name]),)

    def _factors(self, random: Sequence[float]) -> tuple[float, float]:
        """Return how many times higher and wider than planned the result is."""
        scale = 1.0
        if random[0] < self.scale_p:
            scale = uniform(self.scale, random[1])
            if self.scale_area:
                scale = 1.0 / math.sqrt(scale)
        if random[2] >= self.aspect_p:
            return scale, scale
        log_aspect = [math.log(bound) for bound in self.aspect]
        aspect = math.sqrt(math.exp(uniform(log_aspect, random[3])))
        return scale / aspect, scale * aspect


class _CropOrPad(GeometricTransform):
    def __init__(
        self, size: int | Sequence[int], fill: float | Sequence[float] = 0, padding_mode: str = "constant"
    ) -> None:
        self.size: Final = arguments.size(size)
        self.fill: Final = arguments.fill(fill)
        self.padding_mode: Final = arguments.pad_mode(padding_mode)

    def _padded(self, left: int, top: int, right: int, bottom: int) -> tuple[Operation, ...]:
        pad = Pad(left, top, right, bottom, self.fill, self.padding_mode)
        return (pad,) if left or top or right or bottom else ()


class CenterCropOrPad(_CropOrPad):
    """Crops the middle of the image where it is too large, and pads it equally on both sides where it is too small.

    Args:
        size: Pixels of each side, or (height, width).
        fill: Value of the pixels added by the padding mode ``"constant"``: one for all channels or one for each.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 0

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        wide, high = max(self.size[1] - width, 0), max(self.size[0] - height, 0)
        pads = self._padded(wide // 2, high // 2, (wide + 1) // 2, (high + 1) // 2)
        return *pads, *CenterCrop(self.size).operations(*size_after(pads, width, height))


class RandomCropOrPad(_CropOrPad):
    """Crops a random part where the image is too large, and puts it at a random place where it is too small.

    Args:
        size: As for `CenterCropOrPad`.
        fill: As for `CenterCropOrPad`.
        padding_mode: As for `CenterCropOrPad`.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 2

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        crop_height, crop_width = self.size
        down, across = height - crop_height, width - crop_width
        top, left = int(random[0] * (abs(down) + 1)), int(random[1] * (abs(across) + 1))
        margins = (
            left if across < 0 else 0,
            top if down < 0 else 0,
            -across - left if across < 0 else 0,
            -down - top if down < 0 else 0,
        )
        box = Box(left if across > 0 else 0, top if down > 0 else 0, crop_width, crop_height)
        return *self._padded(*margins), Crop(box)


class TrimBorder(GeometricTransform):
    """Takes away `border` pixels on each side.

    Raises:
        UsageError: `border` is not a whole number >= 0.
    """

    draws = 0

    def __init__(self, border: int) -> None:
        self.border: Final = arguments.integers("border", border, (1,), least=0)[0]

    @override
    def operations(self, width: int, height: int, random: Sequence[float] = ()) -> tuple[Operation, ...]:
        inner = Box(self.border, self.border, width - 2 * self.border, height - 2 * self.border)
        if min(inner.width, inner.height) < 1:
            raise UsageError(f"a border of {self.border} pixels leaves nothing of an image of {width} x {height}")
        return (Crop(inner),)
