"""Transforms that move pixels along lines: rotations, affine maps, perspective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from packtrain._codec.effects.warps import Affine, Perspective, Rotate
from packtrain._codec.geometry import FILTERS, Operation
from packtrain._core.arguments import flag, number
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from . import arguments
from .base import uniform
from .geometric import GeometricTransform

# In pixels. Farther away, the size of a rotated image would be lost in the rounding.
_FARTHEST: Final = 1e9
Matrix = tuple[float, float, float, float, float, float]


class WarpTransform(GeometricTransform):
    """A transform that may warp the image.

    Args:
        interpolation: ``"nearest"``, ``"bilinear"`` or ``"bicubic"``, torchvision's ``InterpolationMode``, or a value
            of `PIL.Image.Resampling`. Masks take the nearest pixel.
        fill: Colour outside the image, from 0 to 255: one value for all channels or one for each.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(self, interpolation: Any, fill: float | Sequence[float] | None) -> None:
        self.interpolation: Final = arguments.warp_interpolation(interpolation)
        self.fill: Final = 0 if fill is None else fill
        self._resample: Final = FILTERS[self.interpolation]
        self._fill: Final = arguments.warp_fill(fill)


class RandomRotation(WarpTransform):
    """Rotates by a random angle, counter-clockwise.

    Args:
        degrees: (least, greatest) angle, or the greatest to both sides.
        interpolation: ``"nearest"``, ``"bilinear"`` or ``"bicubic"``, torchvision's ``InterpolationMode``, or a value
            of `PIL.Image.Resampling`. Masks take the nearest pixel.
        expand: True to make the result large enough for the whole image.
        center: Centre of the rotation, (x, y) in pixels; None for the middle of the image.
        fill: Colour outside the image, from 0 to 255: one value for all channels or one for each.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 1

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Any = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: float | Sequence[float] | None = 0,
    ) -> None:
        super().__init__(interpolation, fill)
        self.degrees: Final = arguments.degrees("degrees", degrees, (1,))
        self.expand: Final = flag("expand", expand)
        self.center: Final = _center(center)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        angle = uniform(self.degrees, random[0])
        return (Rotate(angle, self._resample, self.expand, self.center, self._fill),)


class RandomAffine(WarpTransform):
    """Rotates, moves, scales and shears at random; the size stays.

    Args:
        degrees: (least, greatest) angle, or the greatest to both sides; 0 not to rotate.
        translate: Greatest shift, of the image's width and of its height, from 0 to 1; None not to move.
        scale: (least, greatest) factor; None to keep the scale.
        shear: (least, greatest) angle along x in degrees, or the greatest to both sides; or four numbers, for x and y.
            None not to shear.
        interpolation: As for `RandomRotation`.
        fill: As for `RandomRotation`.
        center: Centre of rotation, scale and shear, (x, y) in pixels; None for the middle of the image.
        version: Whose arithmetic: that of torchvision.transforms (1), or of its v2 (2). They round in different ways.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 6

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = 0,
        center: Sequence[float] | None = None,
        *,
        version: arguments.Version = 1,
    ) -> None:
        super().__init__(interpolation, fill)
        self.degrees: Final = arguments.degrees("degrees", degrees, (1,))
        shares = "two numbers from 0 to 1, for x and y"
        self.translate: Final = (
            None if translate is None else arguments.numbers("translate", translate, shares, (2,), 1, least=0)
        )
        self.scale: Final = None if scale is None else arguments.bounds("scale", scale, zero=False)
        self.shear: Final = None if shear is None else arguments.degrees("shear", shear, (1, 2))
        self.center: Final = _center(center)
        self.version: Final = arguments.version(version)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        angle = uniform(self.degrees, random[0])
        x, y = self.translate or (0.0, 0.0)
        shift = (round(x * width * (2 * random[1] - 1)), round(y * height * (2 * random[2] - 1)))
        scale = 1.0 if self.scale is None else uniform(self.scale, random[3])
        shear = (0.0, 0.0)
        if self.shear is not None:
            along_y = uniform(self.shear[2:], random[5]) if len(self.shear) == 4 else 0.0
            shear = (uniform(self.shear[:2], random[4]), along_y)
        center = self.center or (width * 0.5, height * 0.5)
        matrix = inverse_matrix(center, angle, shift, scale, shear, self.version)
        return (Affine(matrix, self._resample, self._fill),)


class RandomPerspective(WarpTransform):
    """Moves the four corners inwards by random distances, with probability `p`; the size stays.

    Args:
        distortion_scale: Greatest distance, of half the width and of half the height, from 0 to 1.
        p: The probability.
        interpolation: As for `RandomRotation`.
        fill: As for `RandomRotation`.

    Raises:
        UsageError: A parameter is out of its range.
    """

    draws = 9

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: Any = "bilinear",
        fill: float | Sequence[float] | None = 0,
    ) -> None:
        super().__init__(interpolation, fill)
        self.distortion_scale: Final = number("distortion_scale", distortion_scale, 0, 1, "a number from 0 to 1")
        self.p: Final = arguments.probability("p", p)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        if random[0] >= self.p:
            return ()
        wide, high = (int(self.distortion_scale * (side // 2)) + 1 for side in (width, height))
        left, top, right, bottom = 0, 0, width - wide, height - high
        # From the top left corner clockwise.
        corners = ((left, top), (right, top), (right, bottom), (left, bottom))
        moved = [
            (x + int(random[at] * wide), y + int(random[at + 1] * high))
            for at, (x, y) in zip(range(1, 9, 2), corners, strict=True)
        ]
        coefficients = perspective(moved, width, height)
        return (Perspective(coefficients, self._resample, self._fill),)


def inverse_matrix(
    center: tuple[float, float],
    angle: float,
    shift: tuple[float, float],
    scale: float,
    shear: tuple[float, float],
    version: arguments.Version = 1,
) -> Matrix:
    """Return the map from pixels of the result to those of the image, to the last digit of torchvision.

    Args:
        center: Centre of rotation, scale and shear in pixels.
        angle: Degrees, clockwise.
        shift: Pixels.
        scale: The factor.
        shear: Degrees, along x and y.
        version: Whose roundings.
    """
    rotated, shear_x, shear_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    (x, y), turned = center, rotated - shear_y
    a = math.cos(turned) / math.cos(shear_y)
    c = math.sin(turned) / math.cos(shear_y)
    from_x, from_y = x + shift[0], y + shift[1]
    if version == 2:
        b = -(a * math.tan(shear_x) + math.sin(rotated))
        d = math.cos(rotated) - c * math.tan(shear_x)
        a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
        return a, b, 0.0 + (x - a * from_x - b * from_y), c, d, 0.0 + (y - c * from_x - d * from_y)
    b = -math.cos(turned) * math.tan(shear_x) / math.cos(shear_y) - math.sin(rotated)
    d = -math.sin(turned) * math.tan(shear_x) / math.cos(shear_y) + math.cos(rotated)
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    # torchvision subtracts the shift from the negative centre, which rounds as their sum does.
    return a, b, 0.0 + (a * -from_x + b * -from_y) + x, c, d, 0.0 + (c * -from_x + d * -from_y) + y


def perspective(corners: Sequence[tuple[int, int]], width: int, height: int) -> tuple[float, ...]:
    """The coefficients of the map from `corners` to those of the image, clockwise from the top left.

    torchvision solves for them by least squares and rounds them to float32. So does this, with the same function of
    torch: another one would round otherwise now and then.

    Raises:
        UsageError: No map does it; the image is a single row or column.
    """
    import torch

    right, bottom = width - 1, height - 1
    rows: list[list[float]] = []
    targets = ((0, 0), (right, 0), (right, bottom), (0, bottom))
    for (x, y), (to_x, to_y) in zip(corners, targets, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -to_x * x, -to_x * y])
        rows.append([0, 0, 0, x, y, 1, -to_y * x, -to_y * y])
    wanted = [float(value) for target in targets for value in target]
    try:
        found = torch.linalg.lstsq(
            torch.tensor(rows, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64), driver="gels"
        )
    except RuntimeError:
        raise UsageError(f"RandomPerspective of an image of {width} x {height} pixels: it is too small") from None
    return tuple(found.solution.to(torch.float32).tolist())


def _center(value: Sequence[float] | None) -> tuple[float, float] | None:
    if value is None:
        return None
    expected = f"(x, y) in pixels, each from {-_FARTHEST:g} to {_FARTHEST:g}"
    x, y = arguments.numbers("center", value, expected, (2,), _FARTHEST)
    return x, y
