"""Makes timm's augmentations decide as our numbers say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any
from unittest import mock

import pytest
from PIL import Image, ImageOps

from packtrain._readers.transforms.recognition import recognised

from .scripted import Scripted


def only(found: object) -> Any:
    """The one transform or step of packtrain's that is recognised for an object of timm's."""
    (part,) = recognised(found) or ()
    return part


@pytest.fixture(scope="module")
def posterize_without_bits() -> Iterator[None]:
    """Pillow 13 refuses to keep no bits of a value, which used to give a black image, and timm asks for it."""
    posterize = ImageOps.posterize

    def complete(image: Image.Image, bits: int) -> Image.Image:
        return posterize(image, bits) if bits > 0 else Image.new(image.mode, image.size)

    with mock.patch.object(ImageOps, "posterize", complete):
        yield


class ScriptedOperation(Scripted):
    """The random numbers of one operation: whether it is applied, its magnitude, its sign, its filter or radius."""

    def __init__(self, p: float, random: Sequence[float]) -> None:
        applied, self._strength, sign, choice = random
        super().__init__((*[applied] * (p < 1), sign), chosen=choice)

    def gauss(self, mean: float, deviation: float) -> float:
        return NormalDist(mean, deviation).inv_cdf(self._strength)

    def uniform(self, low: float, high: float) -> float:
        # Only a radius has a lower bound.
        return low + (high - low) * (self._chosen if low else self._strength)
