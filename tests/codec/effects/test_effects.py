"""The law of all effects: the extension gives the pixels of the installed Pillow, whatever image and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.effects import EFFECTS, images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain._codec.effects.filters import GaussianBlur
from packtrain._codec.effects.operation import PixelOperation, image_of, pixels_of

WITHIN: dict[type[PixelOperation], int] = {GaussianBlur: 1}
"""Grey levels by which an effect may differ from Pillow's way; see its documentation."""


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), pixels=images())
def test_the_extension_gives_the_pixels_of_pillow(
    kind: type[PixelOperation], data: Any, pixels: npt.NDArray[np.uint8]
) -> None:
    effect = data.draw(EFFECTS[kind])
    if len(getattr(effect, "fill", ())) > pixels.shape[2]:
        return
    expected = pixels_of(effect.through_pillow(image_of(pixels)))
    found = effect.on_pixels(pixels.copy())
    assert found.shape == expected.shape
    assert found.shape[1::-1] == effect.size_after(*pixels.shape[1::-1])
    assert np.abs(found.astype(int) - expected).max(initial=0) <= WITHIN.get(kind, 0)
