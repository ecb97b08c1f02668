"""Brightness, contrast, saturation, hue and grey: what `PIL.ImageEnhance` and torchvision do to colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from typing_extensions import override

from ..pillow import require_pillow
from .operation import PixelOperation, Pixels, image_of

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Brightness(PixelOperation):
    """Blends the image with black; at `factor` 1 it stays as it is."""

    factor: float
    styles: ClassVar[tuple[int, ...]] = ()

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

        return ImageEnhance.Brightness(image).enhance(self.factor)


@dataclass(frozen=True, slots=True)
class Contrast(PixelOperation):
    """Blends the image with the mean of its grey values; at `factor` 1 it stays as it is."""

    factor: float
    styles: ClassVar[tuple[int, ...]] = ()

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

        return ImageEnhance.Contrast(image).enhance(self.factor)


@dataclass(frozen=True, slots=True)
class Saturation(PixelOperation):
    """Blends the image with its grey version; at `factor` 1 it stays as it is."""

    factor: float
    styles: ClassVar[tuple[int, ...]] = ()

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

        return ImageEnhance.Color(image).enhance(self.factor)


@dataclass(frozen=True, slots=True)
class Hue(PixelOperation):
    """Turns the hues by `shift` of a whole turn, from -0.5 to 0.5, in Pillow's HSV with 8 bits."""

    shift: float
    styles: ClassVar[tuple[int, ...]] = ()

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(-0.4), cls(0.0), cls(0.1)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

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

    styles: ClassVar[tuple[int, ...]] = ()

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls()]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        return image.convert("L").convert(image.mode)
