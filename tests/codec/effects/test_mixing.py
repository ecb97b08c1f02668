"""Laws of mixtures beyond those of all effects."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.effects import noise

from packtrain._codec.effects.mixing import Mix, Overlay
from packtrain._codec.effects.operation import PixelOperation, style_of
from packtrain._codec.effects.tones import Invert

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

WEIGHTS = np.array([0.25, 0.75], np.float32)


@pytest.mark.parametrize("kind", [Mix, Overlay], ids=lambda kind: kind.__name__)
def test_the_extension_does_it(kind: type[PixelOperation]) -> None:
    """If the pixels differed, an installation would be slow without saying so."""
    assert style_of(kind) == 0


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


def test_wrong_arguments() -> None:
    images, out = np.zeros((2, 4, 5, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)
    _extension.mean_of_images(images, WEIGHTS, out)
    for wrong in (WEIGHTS[:1], np.ones(3, np.float32), WEIGHTS.astype(np.float64), out[:3]):
        with pytest.raises(ValueError, match=r"weights|float32"):
            _extension.mean_of_images(images, wrong, out)
    with pytest.raises(ValueError, match="another size"):
        _extension.mean_of_images(images, WEIGHTS, out[:3])
    with pytest.raises(ValueError, match="overlap"):
        _extension.mean_of_images(images, WEIGHTS, images[1])
    _extension.blend_images(out, images[0], 0.5)
    for other in (images[0, :3], np.zeros((4, 5, 1), np.uint8), images[0].reshape(5, 4, 3), images[0, :, :, 0]):
        with pytest.raises(ValueError, match=r"size|channels"):
            _extension.blend_images(out, np.ascontiguousarray(other), 0.5)
    with pytest.raises(ValueError, match="overlap"):
        _extension.blend_images(out, out, 0.5)
