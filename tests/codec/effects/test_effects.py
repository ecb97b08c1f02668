"""The law of all effects: the extension gives the pixels of the installed Pillow, whatever image and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from helpers.effects import EFFECTS, images
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from packtrain._codec.effects.filters import GaussianBlur, PillowBlur
from packtrain._codec.effects.operation import PixelOperation, image_of, pixels_of, style_of
from packtrain._codec.native import extension


def is_defined(effect: PixelOperation, pixels: npt.NDArray[np.uint8]) -> bool:
    """False if Pillow or torchvision has no result, or one of chance."""
    height, width, channels = pixels.shape
    if isinstance(effect, GaussianBlur):
        return bool(effect.kernel[0] // 2 < width and effect.kernel[1] // 2 < height)
    if isinstance(effect, PillowBlur):
        # pillow-simd reads beyond images with sides of one pixel.
        return bool(min(width, height) > 1)
    return bool(len(getattr(effect, "fill", ())) <= channels)


@pytest.mark.skipif(extension is None, reason="packtrain was built without its C extension")
@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
def test_the_style_is_that_of_the_pillow_that_is_here(kind: type[PixelOperation]) -> None:
    """If the pixels differed, an installation would be slow without saying so."""
    assert style_of(kind) == (1 if len(kind.styles) > 1 and ".post" not in PIL.__version__ else 0)


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), pixels=images())
def test_the_extension_gives_the_pixels_of_pillow(
    kind: type[PixelOperation], data: Any, pixels: npt.NDArray[np.uint8]
) -> None:
    effect = data.draw(EFFECTS[kind])
    assume(is_defined(effect, pixels))
    expected = pixels_of(effect.through_pillow(image_of(pixels)))
    found = effect.on_pixels(pixels.copy())
    assert found.shape == expected.shape
    assert found.shape[1::-1] == effect.size_after(*pixels.shape[1::-1])
    np.testing.assert_array_equal(found, expected)
