"""Maps of each value of a channel to another one: the operations of `PIL.ImageOps`, and timm's SolarizeAdd."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.overriding import override

from ..native import Extension
from .operation import PixelOperation, Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

_VALUES: Final = np.arange(256)


@dataclass(frozen=True, slots=True)
class _Tone(PixelOperation):
    function: ClassVar[str]
    """The name in `PIL.ImageOps`."""

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageOps

        made: Image = getattr(ImageOps, self.function)(image, *astuple(self))
        return made


class _Map(_Tone):
    """Maps values in the same way whatever the image."""

    @abstractmethod
    def table(self) -> npt.NDArray[Any]:
        """Return the new values of 0 to 255, each from 0 to 255."""

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.map_values(pixels, self.table().astype(np.uint8).tobytes())


@dataclass(frozen=True, slots=True)
class Posterize(_Map):
    """Keeps the highest `bits` bits of each value, from 0 to 8."""

    bits: int
    tried = ((3,),)

    @override
    def table(self) -> npt.NDArray[Any]:
        return _VALUES & -1 << 8 - self.bits

    @override
    def through_pillow(self, image: Image) -> Image:
        from PIL import ImageOps

        # No bits are an error since Pillow 13. They used to make the image black, and timm's recipes ask for it.
        return ImageOps.posterize(image, self.bits) if self.bits else image.point([0] * 256 * len(image.getbands()))


@dataclass(frozen=True, slots=True)
class Solarize(_Map):
    """Inverts all values from `threshold` on."""

    threshold: float
    function = "solarize"
    tried = ((99.5,),)

    @override
    def table(self) -> npt.NDArray[Any]:
        return np.where(self.threshold > _VALUES, _VALUES, 255 - _VALUES)


@dataclass(frozen=True, slots=True)
class SolarizeAdd(_Map):
    """Adds `amount` to all values below `threshold`, up to 255, as timm does."""

    amount: int
    threshold: int = 128
    tried = ((77,),)

    @override
    def table(self) -> npt.NDArray[Any]:
        return np.where(self.threshold > _VALUES, (_VALUES + self.amount).clip(0, 255), _VALUES)

    @override
    def through_pillow(self, image: Image) -> Image:
        return image.point(self.table().tolist() * len(image.getbands()))


class Invert(_Map):
    """Replaces each value by 255 minus it."""

    function = "invert"

    @override
    def table(self) -> npt.NDArray[Any]:
        return _VALUES[::-1]


class AutoContrast(_Tone):
    """Stretches the values of each channel so that they reach from 0 to 255."""

    function = "autocontrast"

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.stretch_values(pixels)


class Equalize(_Tone):
    """Equalises the histogram of each channel."""

    function = "equalize"

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        native.equalize_values(pixels)
