"""Laws of mixtures beyond those of all effects."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.effects import noise

from packtrain._codec.effects.mixing import Mix, Overlay
from packtrain._codec.effects.tones import Invert

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")


def test_each_chain_begins_with_the_image() -> None:
    """Operations may overwrite their image, but not that of the next chain."""
    pixels = noise(5, 7)
    twice = Mix(((Invert(),), (Invert(),)), (0.5, 0.5), 1.0).on_pixels(pixels.copy())
    np.testing.assert_array_equal(twice, 255 - pixels)
    np.testing.assert_array_equal(Overlay(((Invert(),), ()), (1.0, 1.0)).on_pixels(pixels.copy()), pixels)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000])
def test_means_beyond_the_range_of_bytes_are_clipped(size: int) -> None:
    images, out = np.array([[200], [100]], np.uint8).repeat(size, 1), np.empty(size, np.uint8)
    for weights, expected in (((1.0, 1.0), 255), ((-1.0, 1.0), 0), ((0.5, 0.25), 125), ((0.0, 0.999), 99)):
        _extension.mean_of_images(images, np.array(weights, np.float32), out)
        assert (out == expected).all()
