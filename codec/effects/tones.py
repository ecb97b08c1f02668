"""What maps each value of a channel to another one: the operations of `PIL.ImageOps`, and timm's SolarizeAdd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from typing_extensions import override

from .operation import PixelOperation, Pixels

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Posterize(PixelOperation):
    """Keeps the highest `bits` bits of each value, from 0 to 8."""

    bits: int
    styles: ClassVar[tuple[int, ...]] = ()

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(3)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageOps

        return ImageOps.posterize(image, self.bits)


@dataclass(frozen=True, slots=True)
class Solarize(PixelOperation):
    """Inverts all values from `threshold` on."""

    threshold: float
    styles: ClassVar[tuple[int, ...]] = ()

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(99.5)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageOps

        return ImageOps.solarize(image, self.threshold)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SolarizeAdd(PixelOperation):
    """Adds `amount` to all values below `threshold`, up to 255, as timm does."""

    amount: int
    threshold: int = 128
    styles: ClassVar[tuple[int, ...]] = ()

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(77)]

    @override
    def change(self, pixels: Pixels, style: int) -> Pixels:
        raise NotImplementedError

    @override
    def through_pillow(self, image: Image) -> Image:
        table = [min(255, value + self.amount) if value < self.threshold else value for value in range(256)]
        return image.point(table * len(image.getbands()))


@dataclass(frozen=True, slots=True)
class Invert(PixelOperation):
    """Replaces each value by 255 minus it."""

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
        from PIL import ImageOps

        return ImageOps.invert(image)


@dataclass(frozen=True, slots=True)
class AutoContrast(PixelOperation):
    """Stretches the values of each channel so that they reach from 0 to 255."""

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
        from PIL import ImageOps

        return ImageOps.autocontrast(image)


@dataclass(frozen=True, slots=True)
class Equalize(PixelOperation):
    """Equalises the histogram of each channel."""

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
        from PIL import ImageOps

        return ImageOps.equalize(image)
