"""The number of channels of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from typing_extensions import override

from .operation import PixelOperation, Pixels

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Channels(PixelOperation):
    """Keeps the first channel, or repeats a single one, so that there are `count`: 1 or 3."""

    count: int
    styles: ClassVar[tuple[int, ...]] = ()

    @classmethod
    @override
    def examples(cls) -> Sequence[Self]:
        return [cls(1), cls(3)]

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
