"""Brightness, contrast, saturation, hue, grey and channels: what `PIL.ImageEnhance` and torchvision do to colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from packtrain._core.overriding import override

from ..native import Extension
from ..pillow import require_pillow
from .operation import PixelOperation, Pixels, image_of

if TYPE_CHECKING:
    from PIL.Image import Image

_GREYS: Final = (0, 1)
"""The styles of grey values: pillow-simd's and Pillow's."""


@dataclass(frozen=True, slots=True)
class Enhancement(PixelOperation):
    """Blends the image with another one; at `factor` 1 it stays as it is."""

    factor: float
    enhancer: ClassVar[str]
    """The name of the operation in `PIL.ImageEnhance`."""
    tried: ClassVar[Sequence[tuple[float]]] = ((0.3,), (1.7,))

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageEnhance

        enhanced: Image = getattr(ImageEnhance, self.enhancer)(image).enhance(self.factor)
        return enhanced


class Brightness(Enhancement):
    """Blends the image with black."""

    enhancer = "Brightness"

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.brighten(pixels, self.factor)


class _GreyEnhancement(Enhancement):
    styles = _GREYS

    @classmethod
    @override
    def examples(cls) -> Sequence[PixelOperation]:
        # Styles of grey values differ so rarely that blends and means may be the same. The factor 1.1 is one of the few
        # that show whether Pillow rounds product and sum each by itself: some compilers make one operation of them.
        return [cls(0.3), cls(1.7), Saturation(1.1), Grey()]


class Contrast(_GreyEnhancement):
    """Blends the image with the mean of its grey values."""

    enhancer = "Contrast"

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.contrast(pixels, self.factor, style)


class Saturation(_GreyEnhancement):
    """Blends the image with its grey version."""

    enhancer = "Color"

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.saturate(pixels, self.factor, style)


@dataclass(frozen=True, slots=True)
class Hue(PixelOperation):
    """Turns the hues by `shift` of a whole turn, from -0.5 to 0.5, in Pillow's HSV with 8 bits."""

    shift: float
    tried = ((-0.4,), (0.0,), (0.1,))

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.turn_hues(pixels, int(self.shift * 255))

    @override
    def through_pillow(self, image: Image) -> Image:
        if image.mode == "L":
            return image
        hue, saturation, value = image.convert("HSV").split()
        turned = np.array(hue) + np.int32(self.shift * 255).astype(np.uint8)
        parts = (image_of(turned[..., None]), saturation, value)
        merged: Image = require_pillow().merge("HSV", parts)
        return merged.convert("RGB")


@dataclass(frozen=True, slots=True)
class Grey(PixelOperation):
    """Makes the image grey; the number of its channels stays."""

    styles = _GREYS

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.saturate(pixels, 0.0, style)

    @override
    def through_pillow(self, image: Image) -> Image:
        return image.convert("L").convert(image.mode)


@dataclass(frozen=True, slots=True)
class Channels(PixelOperation):
    """Keeps the first channel, or repeats a single one, so that there are `count`: 1 or 3."""

    count: int
    styles = ()
    tried = ((1,), (3,))

    @override
    def on_pixels(self, pixels: Pixels) -> Pixels:
        # numpy does it as fast as anybody.
        if pixels.shape[2] == self.count:
            return pixels
        return np.ascontiguousarray(pixels[:, :, :1]) if self.count == 1 else np.repeat(pixels, self.count, axis=2)

    @override
    def through_pillow(self, image: Image) -> Image:
        if self.count == 1:
            return image.getchannel(0)
        return image.convert("RGB")
