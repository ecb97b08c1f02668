"""Affine maps, rotations and perspective, as `PIL.Image` does them."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from ..native import Extension, extension
from ..pillow import require_pillow
from .operation import PixelOperation, Pixels, style_of

if TYPE_CHECKING:
    from PIL.Image import Image

Fill = tuple[int, ...]
"""A value for each channel, or a single one for all of them."""
NEAREST, BILINEAR, BICUBIC = 0, 2, 3
"""Filters, as in `PIL.Image.Resampling`."""
_RESAMPLES: Final = (NEAREST, BILINEAR, BICUBIC)
_UNMOVED: Final = (1, 0, 0, 0, 1, 0)


class Way(NamedTuple):
    """Arguments of `Image.transform`: where the pixels of the result come from."""

    width: int
    height: int
    coefficients: tuple[float, ...]
    resample: int


class Warp(PixelOperation):
    """Takes each pixel of the result from another place of the image."""

    resample: int
    fill: Fill
    moves: ClassVar[bool] = True

    @abstractmethod
    def way(self, width: int, height: int) -> Way:
        """Return where the pixels come from in an image of `width` x `height` pixels."""

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> Pixels | None:
        height, width, channels = pixels.shape
        way = self.way(width, height)
        if way == (width, height, _UNMOVED, NEAREST):
            return None
        colour = colour_of(self.fill, channels)
        ink = bytes(min(max(value, 0), 255) for value in (colour if isinstance(colour, tuple) else (colour,)))
        return _warped(native, pixels, way, ink)

    @override
    def on_mask(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A label map moved as the image, with the nearest value.

        Raises:
            UsageError: The warp fills with several values.
        """
        if len(self.fill) > 1:
            raise UsageError(f"fill={self.fill} for a mask, which has one channel: give one value")
        nearest = replace(self, resample=NEAREST)  # type: ignore[type-var]
        height, width = mask.shape
        mask = np.ascontiguousarray(mask)
        if extension is None or style_of(type(self)) is None:
            mode = "L" if mask.dtype == np.uint8 else "I"
            image = require_pillow().frombytes(mode, (width, height), mask.tobytes())
            return np.array(nearest.through_pillow(image), mask.dtype)
        if mask.dtype == np.uint8:
            moved = nearest.change(extension, mask[..., None], 0)
            return mask if moved is None else moved[..., 0]
        parts = mask.view(np.uint8).reshape(height, width, mask.itemsize)
        moved = _warped(extension, parts, nearest.way(width, height), mask.dtype.type(self.fill[0]).tobytes())
        return moved.view(mask.dtype)[..., 0]


@dataclass(frozen=True, slots=True)
class Affine(Warp):
    """Takes pixel (x, y) of the result from (a x + b y + c, d x + e y + f); the size stays.

    Attributes:
        coefficients: a, b, c, d, e, f, for the centres of pixels as `PIL.Image.Image.transform` takes them.
        resample: 0 for the nearest pixel, 2 for bilinear, 3 for bicubic.
        fill: Colour outside the image.
    """

    coefficients: tuple[float, ...]
    resample: int = NEAREST
    fill: Fill = (0,)
    method: ClassVar[str] = "AFFINE"
    """The name in `PIL.Image.Transform`."""
    tried = tuple(product(((0.9, 0.3, -4.5, -0.2, 1.1, 2.25), (1.2, 0.0, -7.3, 0.0, 0.8, 5.1)), _RESAMPLES, ((9,),)))

    @override
    def way(self, width: int, height: int) -> Way:
        return Way(width, height, self.coefficients, self.resample)

    @override
    def through_pillow(self, image: Image) -> Image:
        method, fill = getattr(require_pillow().Transform, self.method), colour_of(self.fill, len(image.getbands()))
        return image.transform(image.size, method, self.coefficients, self.resample, fillcolor=fill)


class Perspective(Affine):
    """Takes pixel (x, y) of the result from ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1)).

    Its coefficients are a to h.
    """

    method = "PERSPECTIVE"
    tried = tuple(product(((0.9, 0.3, -4.5, -0.2, 1.1, 2.25, 0.002, -0.001),), _RESAMPLES, ((9,),)))


@dataclass(frozen=True, slots=True)
class Rotate(Warp):
    """Rotates counter-clockwise by `angle` in degrees, as `PIL.Image.Image.rotate`.

    Attributes:
        angle: Degrees.
        resample: See `Affine`.
        expand: True to make the result large enough for the whole image.
        center: Centre in pixels; None for the middle of the image.
        fill: Colour outside the image.
    """

    angle: float
    resample: int = NEAREST
    expand: bool = False
    center: tuple[float, float] | None = None
    fill: Fill = (0,)
    tried = (
        *product((17.0,), _RESAMPLES, (False,), (None,), ((9,),)),
        (90.0, BILINEAR, True),
        (180.0, BILINEAR),
        (-33.0, NEAREST, True),
    )

    @override
    def size_after(self, width: int, height: int) -> tuple[int, int]:
        return self.way(width, height)[:2] if self.expand else (width, height)

    @override
    def way(self, width: int, height: int) -> Way:
        # The arithmetic of `Image.rotate`, with its roundings.
        angle = self.angle % 360.0
        if not self.center:
            if angle == 0:
                return Way(width, height, _UNMOVED, NEAREST)
            if angle == 180:
                return Way(width, height, (-1, 0, width, 0, -1, height), NEAREST)
            if angle in (90, 270) and (self.expand or width == height):
                turned = (0, -1, width, 1, 0, 0) if angle == 90 else (0, 1, 0, -1, 0, height)
                return Way(height, width, turned, NEAREST)
        radians = -math.radians(angle)
        cosine, sine = round(math.cos(radians), 15), round(math.sin(radians), 15)
        opposite = round(-math.sin(radians), 15)
        x, y = self.center or (width / 2, height / 2)
        # Pillow subtracts a translation that is 0 here, and adds 0.0 before it adds the centre.
        right, down = cosine * -x + sine * -y + 0.0 + x, opposite * -x + cosine * -y + 0.0 + y
        if not self.expand:
            return Way(width, height, (cosine, sine, right, opposite, cosine, down), self.resample)
        corners = (0, 0), (width, 0), (width, height), (0, height)
        columns = [cosine * x + sine * y + right for x, y in corners]
        rows = [opposite * x + cosine * y + down for x, y in corners]
        wide = math.ceil(max(columns)) - math.floor(min(columns))
        high = math.ceil(max(rows)) - math.floor(min(rows))
        x, y = -(wide - width) / 2.0, -(high - height) / 2.0
        right, down = cosine * x + sine * y + right, opposite * x + cosine * y + down
        return Way(wide, high, (cosine, sine, right, opposite, cosine, down), self.resample)

    @override
    def through_pillow(self, image: Image) -> Image:
        fill = colour_of(self.fill, len(image.getbands()))
        resample = require_pillow().Resampling(self.resample)
        return image.rotate(self.angle, resample, self.expand, self.center, fillcolor=fill)


def colour_of(fill: Fill, channels: int) -> Fill | int:
    """`fill` in the form that Pillow wants for an image with `channels` channels."""
    return fill[0] if channels == 1 else fill * channels if len(fill) == 1 else fill


def _warped(native: Extension, pixels: Pixels, way: Way, ink: bytes) -> Pixels:
    out = np.empty((way.height, way.width, pixels.shape[2]), np.uint8)
    native.warp(pixels, way.coefficients, way.resample, ink, out)
    return out
