"""AugMix: images that are mixed of what several chains of operations make of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from ..native import Extension
from ..pillow import require_pillow
from .colour import Brightness
from .operation import PixelOperation, Pixels, image_of, pixels_of
from .tones import Invert

if TYPE_CHECKING:
    from PIL.Image import Image

Chain = tuple[PixelOperation, ...]
"""Operations one after the other, none of which changes the size of an image."""


class _Mixture(PixelOperation):
    """A mixture of the results of several `chains`, each of which begins with the image itself."""

    chains: tuple[Chain, ...]
    moves: ClassVar[bool] = True

    @override
    def on_mask(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The mask itself.

        Raises:
            UsageError: An operation moves pixels.
        """
        if any(operation.moves for chain in self.chains for operation in chain):
            raise UsageError(
                "AugMix beside a mask: it mixes images whose pixels were moved in different ways, and no mask fits "
                "such a mixture: leave AugMix or the mask out"
            )
        return mask


@dataclass(frozen=True, slots=True)
class Mix(_Mixture):
    """Blends the image with the weighted mean of what several chains make of it, as timm's AugMix.

    Attributes:
        chains: The chains.
        weights: Weight of each result in the mean, rounded to float32.
        share: How much of the mean the result has, from 0 to 1, rounded to float32.
    """

    chains: tuple[Chain, ...]
    weights: tuple[float, ...]
    share: float

    tried = tuple(
        product((((Invert(),), (), (Brightness(0.4), Invert())),), ((0.2, 0.5, 0.3), (0.7, 0.1, 0.25)), (0.37, 0.9))
    )

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> None:
        images = np.empty((len(self.chains), *pixels.shape), np.uint8)
        for image, chain in zip(images, self.chains, strict=True):
            image[...] = _run(chain, pixels.copy())
        mean = np.empty_like(pixels)
        native.mean_of_images(images, np.array(self.weights, np.float32), mean)
        native.blend_images(pixels, mean, self.share)

    @override
    def through_pillow(self, image: Image) -> Image:
        mean = np.zeros(pixels_of(image).shape, np.float32)
        for chain, weight in zip(self.chains, self.weights, strict=True):
            mean += np.float32(weight) * pixels_of(_run_through_pillow(chain, image)).astype(np.float32)
        blended: Image = require_pillow().blend(image, image_of(mean.clip(0, 255).astype(np.uint8)), self.share)
        return blended


@dataclass(frozen=True, slots=True)
class Overlay(_Mixture):
    """Blends the image with what a chain makes of it, then with what the next one does, as timm's AugMix with ``b1``.

    Attributes:
        chains: The chains.
        shares: How much of each result the image then has, rounded to float32.
    """

    chains: tuple[Chain, ...]
    shares: tuple[float, ...]

    tried = ((((Invert(),), (), (Brightness(0.4),)), (0.2, 0.1, 0.4)),)

    @override
    def change(self, native: Extension, pixels: Pixels, style: int) -> Pixels:
        mixed = pixels.copy()
        for chain, share in zip(self.chains, self.shares, strict=True):
            native.blend_images(mixed, _run(chain, pixels.copy()), share)
        return mixed

    @override
    def through_pillow(self, image: Image) -> Image:
        mixed = image
        for chain, share in zip(self.chains, self.shares, strict=True):
            mixed = require_pillow().blend(mixed, _run_through_pillow(chain, image), share)
        return mixed


def _run(chain: Chain, pixels: Pixels) -> Pixels:
    """Run a chain on pixels, which may be overwritten."""
    for operation in chain:
        pixels = operation.on_pixels(pixels)
    return pixels


def _run_through_pillow(chain: Chain, image: Image) -> Image:
    for operation in chain:
        image = operation.through_pillow(image)
    return image
