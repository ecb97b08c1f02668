"""What makes pixels of their neighbours: sharpness, and two Gaussian blurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from .operation import PixelOperation, Pixels, image_of, pixels_of

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Sharpness(PixelOperation):
    """Blends the image with a smoothed one; at `factor` 1 it stays as it is."""

    factor: float
    styles: ClassVar[tuple[int, ...]] = ()
    in_place: ClassVar[bool] = False

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(0.3), cls(1.7)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageEnhance

        return ImageEnhance.Sharpness(image).enhance(self.factor)


@dataclass(frozen=True, slots=True)
class GaussianBlur(PixelOperation):
    """torchvision's Gaussian blur: a convolution over the image, mirrored at its edges.

    torchvision computes it with torch in float32, in an order that torch does not define: the values are within one of
    it.
    """

    kernel: tuple[int, int]
    """Width and height in pixels, odd."""
    sigma: tuple[float, float]
    """Horizontal and vertical standard deviation, in pixels."""
    styles: ClassVar[tuple[int, ...]] = ()
    in_place: ClassVar[bool] = False

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls((5, 3), (1.1, 0.4))]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        pixels = pixels_of(image).astype(np.float32)
        for axis, size, sigma in zip((1, 0), self.kernel, self.sigma, strict=True):
            margins = [(size // 2 if axis == each else 0,) * 2 for each in range(3)]
            padded, length = np.pad(pixels, margins, "reflect"), pixels.shape[axis]
            weights = gaussian(size, sigma)
            pixels = np.zeros_like(pixels)
            for at, weight in enumerate(weights):
                pixels += weight * np.take(padded, range(at, at + length), axis)
        return image_of(np.rint(pixels).clip(0, 255).astype(np.uint8))


@dataclass(frozen=True, slots=True)
class PillowBlur(PixelOperation):
    """Pillow's `ImageFilter.GaussianBlur` with `radius` in pixels, which timm uses."""

    radius: float
    styles: ClassVar[tuple[int, ...]] = ()
    in_place: ClassVar[bool] = False

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(0.4), cls(1.7)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(self.radius))


def gaussian(size: int, sigma: float) -> npt.NDArray[np.float32]:
    """The weights of torchvision's kernel along one axis, float32 [size]."""
    places = np.linspace(-(size - 1) / 2, (size - 1) / 2, size, dtype=np.float32)
    weights: npt.NDArray[np.float32] = np.exp(np.float32(-0.5) * (places / np.float32(sigma)) ** 2)
    weights /= weights.sum()
    return weights
