"""What moves pixels along lines: affine maps, rotations and perspective, as `PIL.Image` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._core.errors import UsageError

from ..pillow import require_pillow
from .operation import PixelOperation, Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Fill = tuple[int, ...]
"""A value for each channel, or a single one for all of them."""


@dataclass(frozen=True, slots=True)
class Affine(PixelOperation):
    """Takes pixel (x, y) of the result from (a x + b y + c, d x + e y + f); the size stays.

    Attributes:
        matrix: a, b, c, d, e, f, for the centres of pixels as `PIL.Image.Image.transform` takes them.
        resample: 0 for the nearest pixel, 2 for bilinear, 3 for bicubic.
        fill: Colour outside the image.
    """

    matrix: tuple[float, float, float, float, float, float]
    resample: int = 0
    fill: Fill = (0,)
    styles: ClassVar[tuple[int, ...]] = ()
    in_place: ClassVar[bool] = False
    moves: ClassVar[bool] = True

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        matrix = (0.9, 0.3, -4.5, -0.2, 1.1, 2.25)
        return [cls(matrix, resample, (9,)) for resample in (0, 2, 3)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        method = require_pillow().Transform.AFFINE
        return image.transform(image.size, method, self.matrix, self.resample, fillcolor=colour_of(self.fill, image))

    @override
    def on_mask(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return _moved(self, mask)


@dataclass(frozen=True, slots=True)
class Rotate(PixelOperation):
    """Rotates counter-clockwise by `angle` in degrees, as `PIL.Image.Image.rotate`.

    Attributes:
        angle: Degrees.
        resample: See `Affine`.
        expand: True to make the result large enough for the whole image.
        center: Centre in pixels; None for the middle of the image.
        fill: Colour outside the image.
    """

    angle: float
    resample: int = 0
    expand: bool = False
    center: tuple[float, float] | None = None
    fill: Fill = (0,)
    styles: ClassVar[tuple[int, ...]] = ()
    in_place: ClassVar[bool] = False
    moves: ClassVar[bool] = True

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(17.0, resample, fill=(9,)) for resample in (0, 2, 3)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        fill = colour_of(self.fill, image)
        resample = require_pillow().Resampling(self.resample)
        return image.rotate(self.angle, resample, self.expand, self.center, fillcolor=fill)

    @override
    def size_after(self, width: int, height: int) -> tuple[int, int]:
        if not self.expand:
            return width, height
        # Pillow's own arithmetic decides, which rounds coordinates of corners.
        image = require_pillow().new("1", (width, height))
        size: tuple[int, int] = image.rotate(self.angle, 0, True, self.center).size
        return size

    @override
    def on_mask(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return _moved(self, mask)


@dataclass(frozen=True, slots=True)
class Perspective(PixelOperation):
    """Takes pixel (x, y) of the result from ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1)).

    Attributes:
        coefficients: a to h.
        resample: See `Affine`.
        fill: Colour outside the image.
    """

    coefficients: tuple[float, ...]
    resample: int = 2
    fill: Fill = (0,)
    styles: ClassVar[tuple[int, ...]] = ()
    in_place: ClassVar[bool] = False
    moves: ClassVar[bool] = True

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        coefficients = (0.9, 0.3, -4.5, -0.2, 1.1, 2.25, 0.002, -0.001)
        return [cls(coefficients, resample, (9,)) for resample in (0, 2, 3)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        method, fill = require_pillow().Transform.PERSPECTIVE, colour_of(self.fill, image)
        return image.transform(image.size, method, self.coefficients, self.resample, fillcolor=fill)

    @override
    def on_mask(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return _moved(self, mask)


def colour_of(fill: Fill, image: Image) -> Fill | int:
    """`fill` in the form that Pillow wants for an image of this mode."""
    channels = len(image.getbands())
    return fill[0] if channels == 1 else fill * channels if len(fill) == 1 else fill


def _moved(warp: Affine | Rotate | Perspective, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A label map moved as the image, with the nearest value.

    Raises:
        UsageError: The warp fills with several values.
    """
    if len(warp.fill) > 1:
        raise UsageError(f"fill={warp.fill} for a mask, which has one channel: give one value")
    height, width = mask.shape
    mode = "L" if mask.dtype == np.uint8 else "I"
    image = require_pillow().frombytes(mode, (width, height), np.ascontiguousarray(mask).tobytes())
    return np.array(replace(warp, resample=0).through_pillow(image), mask.dtype)
