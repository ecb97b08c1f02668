"""Operations that change the values of pixels, on uint8 arrays and without the GIL.

Each gives what torchvision gives for the same parameters on a PIL image, bit for bit. As Pillow's builds round in
different ways, an operation has styles, of which the first that agrees with the installed Pillow is used; if none does,
or the extension is missing, Pillow itself does the work.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..native import Extension, extension
from ..pillow import has_pillow, require_pillow
from ..pixels import array_from_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..pixels import Box

Pixels = npt.NDArray[np.uint8]
"""uint8 [height, width, channels], contiguous and writable, with one or three channels."""

# Width and height of the images on which an operation is compared with Pillow: odd, so that rows end within a register.
_SIZE = (61, 43)


class PixelOperation(ABC):
    """An operation that computes new values of pixels. Subclasses are frozen dataclasses of its parameters."""

    styles: ClassVar[tuple[int, ...]] = (0,)
    """The variants of `change`, pillow-simd's before Pillow's; none if Pillow has to do it."""
    moves: ClassVar[bool] = False
    """True if pixels end up in other places, so that a mask has to follow."""
    tried: ClassVar[Sequence[tuple[Any, ...]]] = ((),)
    """Parameters of operations that show whether a style agrees with Pillow."""

    @classmethod
    def examples(cls) -> Sequence[PixelOperation]:
        """Return operations, mostly of this kind, that show whether a style agrees with Pillow."""
        return [cls(*parameters) for parameters in cls.tried]

    def change(self, native: Extension, pixels: Pixels, style: int) -> Pixels | None:
        """Run the operation with the extension, in one of the `styles`.

        Args:
            native: The extension.
            pixels: The image, which may be overwritten.
            style: Whose arithmetic the operation follows.

        Returns:
            A new array, uint8 [height, width, channels], contiguous; None if `pixels` was overwritten with the result.
        """
        raise NotImplementedError

    @abstractmethod
    def through_pillow(self, image: Image) -> Image:
        """Runs the operation with Pillow, as torchvision does, on an image of mode L or RGB."""

    def size_after(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the result for an image of `width` x `height` pixels."""
        return width, height

    def source(self, box: Box, width: int, height: int) -> Box:
        """The rectangle of an image of `width` x `height` that `box` of the result depends on: here, all of it."""
        return box._replace(left=0, top=0, width=width, height=height)

    def on_mask(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Moves a label map, uint8 or int32 [height, width], as the image; only called if the operation `moves`."""
        raise NotImplementedError

    def on_pixels(self, pixels: Pixels) -> Pixels:
        """Runs the operation on an array, which may be overwritten."""
        style = style_of(type(self))
        if style is None or extension is None:
            return pixels_of(self.through_pillow(image_of(pixels)))
        changed = self.change(extension, pixels, style)
        return pixels if changed is None else changed

    def apply(self, image: Image) -> Image:
        """Runs the operation on a PIL image."""
        if image.mode not in ("L", "RGB", "RGBX") or style_of(type(self)) is None:
            return self.through_pillow(image.convert("RGB") if image.mode == "RGBX" else image)
        return image_of(self.on_pixels(pixels_of(image)))


@functools.cache
def style_of(kind: type[PixelOperation]) -> int | None:
    """The style with which an operation gives the pixels of the installed Pillow; None if there is none.

    Without Pillow, it is the last one, that of Pillow itself.
    """
    if extension is None:
        return None
    if not has_pillow():
        return next(reversed(kind.styles), None)
    agrees = functools.partial(_agrees, extension)
    return next((style for style in kind.styles if all(agrees(style, each) for each in kind.examples())), None)


def _agrees(native: Extension, style: int, operation: PixelOperation) -> bool:
    # Noise, so that every rounding shows; with a fixed seed, so that all processes come to the same answer.
    width, height = _SIZE
    generator = np.random.Generator(np.random.Philox(0))
    for channels in (3, 1):
        pixels = generator.integers(0, 256, (height, width, channels), np.uint8)
        expected = pixels_of(operation.through_pillow(image_of(pixels)))
        changed = operation.change(native, pixels, style)
        if not np.array_equal(pixels if changed is None else changed, expected):
            return False
    return True


def pixels_of(image: Image) -> Pixels:
    """The pixels of an image of mode L, RGB or RGBX, as an array of its own."""
    return array_from_image(image)


def image_of(pixels: npt.NDArray[Any]) -> Image:
    """A PIL image of mode L or RGB with these pixels, uint8 [height, width, channels]."""
    height, width, channels = pixels.shape
    image: Image = require_pillow().frombytes("L" if channels == 1 else "RGB", (width, height), pixels.tobytes())
    return image
