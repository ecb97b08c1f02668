"""Filters over neighbouring pixels: sharpness, and two Gaussian blurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from packtrain._core.overriding import override

from ..native import Extension
from .colour import Enhancement
from .operation import PixelOperation, Pixels, image_of, pixels_of

if TYPE_CHECKING:
    from PIL.Image import Image


class Sharpness(Enhancement):
    """Blends the image with a smoothed one."""

    enhancer = "Sharpness"
    tried = ((0.0,), (0.3,), (1.7,))

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> Pixels:
        out = np.empty_like(pixels)
        native.sharpness(pixels, self.factor, out)
        return out


@dataclass(frozen=True, slots=True)
class GaussianBlur(PixelOperation):
    """torchvision's Gaussian blur: a convolution over the image, mirrored at its edges.

    torchvision computes it with torch in float32, in an order that torch does not define: the values are within one of
    it. Here the order is defined, and the values are the same on all processors.
    """

    kernel: tuple[int, int]
    """Width and height in pixels, odd."""
    sigma: tuple[float, float]
    """Horizontal and vertical standard deviation, in pixels."""
    tried = (((5, 3), (1.1, 0.4)),)

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> Pixels:
        across, down = self._weights(pixels)
        out = np.empty_like(pixels)
        native.gaussian_blur(pixels, across, down, out)
        return out

    @override
    def through_pillow(self, image: Image) -> Image:
        given = pixels_of(image)
        across, down = self._weights(given)
        blurred = given.astype(np.float32)
        for axis, weights in enumerate((down, across)):
            blurred = _convolved(blurred, axis, weights)
        return image_of(np.rint(blurred).clip(0, 255).astype(np.uint8))

    def _weights(self, pixels: Pixels) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Weights across and down.

        Raises:
            ValueError: The kernel reaches further than the image. torchvision refuses that too.
        """
        height, width = pixels.shape[:2]
        if self.kernel[0] // 2 >= width or self.kernel[1] // 2 >= height:
            raise ValueError(
                f"a Gaussian blur with a kernel of {self.kernel[0]} x {self.kernel[1]} pixels reaches further than an "
                f"image of {width} x {height} pixels: choose a smaller kernel_size, or resize the image first"
            )
        across = gaussian(self.kernel[0], self.sigma[0])
        same = self.kernel[0] == self.kernel[1] and self.sigma[0] == self.sigma[1]
        return across, across if same else gaussian(self.kernel[1], self.sigma[1])


@dataclass(frozen=True, slots=True)
class PillowBlur(PixelOperation):
    """Pillow's `ImageFilter.GaussianBlur` with `radius` in pixels, which timm uses.

    pillow-simd reads beyond images whose width or height is 1, so its own results for these are arbitrary.
    """

    radius: float
    tried = ((0.4,), (1.7,), (11.0,))

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> Pixels:
        out = np.empty_like(pixels)
        native.box_blur(pixels, self.radius, out)
        return out

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(self.radius))


def gaussian(size: int, sigma: float) -> npt.NDArray[np.float32]:
    """One half of torchvision's kernel along one axis, from the centre outwards, float32 [size // 2 + 1]."""
    places = np.arange(size // 2 + 1, dtype=np.float32)
    places /= np.float32(sigma)
    weights: npt.NDArray[np.float32] = np.exp(np.float32(-0.5) * places * places)
    weights /= 2 * weights.sum() - weights[0]
    return weights


def _convolved(pixels: npt.NDArray[np.float32], axis: int, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sums from the centre of the kernel outwards, as the extension computes them."""
    reach, length = len(weights) - 1, pixels.shape[axis]
    margins = [(reach if axis == each else 0,) * 2 for each in range(3)]
    padded = np.pad(pixels, margins, "reflect")
    parts = [np.take(padded, range(at, at + length), axis) for at in range(2 * reach + 1)]
    total: npt.NDArray[np.float32] = weights[0] * parts[reach]
    for distance in range(1, reach + 1):
        total += weights[distance] * (parts[reach - distance] + parts[reach + distance])
    return total
