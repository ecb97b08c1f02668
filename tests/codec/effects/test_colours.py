"""Laws of colours and tones: every single colour becomes what the installed Pillow makes of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from packtrain._codec.effects.colour import Grey, Hue, Saturation
from packtrain._codec.effects.operation import PixelOperation, image_of, pixels_of
from packtrain._codec.effects.tones import Posterize
from packtrain._codec.native import extension

Pixels = npt.NDArray[np.uint8]

pytestmark = pytest.mark.skipif(extension is None, reason="packtrain was built without its C extension")

ALL = 1 << 24
SHIFTS = range(-127, 128)
"""The numbers that `Hue` can add to a hue."""
EFFECTS = [Grey(), *map(Saturation, (0.0, 0.37, 0.6, 1.0, 1.1, 1.8, 5.0)), *map(Hue, (-0.5, -0.07, 0.0, 0.013, 0.4))]


def colours(numbers: npt.NDArray[np.int64], width: int) -> Pixels:
    """Colours by number, uint8 [height, width, 3], as often as needed to fill the last row."""
    numbers = np.resize(numbers, (-(-numbers.size // width), width))
    return np.stack([numbers & 255, numbers >> 8 & 255, numbers >> 16], -1).astype(np.uint8)


def shift_by(number: int) -> Hue:
    hue = Hue((number + np.sign(number) * 0.5) / 255)
    assert int(hue.shift * 255) == number
    return hue


def hsv_of(pixels: Pixels) -> npt.NDArray[np.int64]:
    """Hue, saturation and value, int64 [3, pixels]."""
    return np.asarray(image_of(pixels).convert("HSV")).reshape(-1, 3).T.astype(np.int64)


@pytest.mark.parametrize("width", [7, 64], ids=["one by one", "in registers"])
def test_a_sample_of_colours_at_every_shift(width: int) -> None:
    some = np.random.default_rng(0).integers(0, ALL, 4096)
    pixels = colours(some, width)
    for number in SHIFTS:
        hue = shift_by(number)
        np.testing.assert_array_equal(hue.on_pixels(pixels.copy()), pixels_of(hue.through_pillow(image_of(pixels))))


@pytest.mark.parametrize("bits", range(9))
def test_posterized_images_have_their_highest_bits(bits: int) -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    expected = [value >> 8 - bits << 8 - bits for value in range(256)]
    assert Posterize(bits).on_pixels(pixels.copy()).ravel().tolist() == expected
    assert pixels_of(Posterize(bits).through_pillow(image_of(pixels))).ravel().tolist() == expected


@pytest.mark.stress
@pytest.mark.parametrize("width", [7, 4096], ids=["one by one", "in registers"])
@pytest.mark.parametrize("effect", EFFECTS, ids=repr)
def test_all_colours(effect: PixelOperation, width: int) -> None:
    pixels = colours(np.arange(ALL), width)
    expected = pixels_of(effect.through_pillow(image_of(pixels)))
    assert np.array_equal(effect.on_pixels(pixels), expected)


@pytest.mark.stress
@pytest.mark.parametrize("width", [7, 4096], ids=["one by one", "in registers"])
def test_all_colours_at_every_shift(width: int) -> None:
    """Colours with the same hue, saturation and value become the same, so one of them will do."""
    hue, saturation, value = hsv_of(colours(np.arange(ALL), 4096))
    _, first = np.unique(hue << 16 | saturation << 8 | value, return_index=True)
    pixels = colours(first, width)
    hue, saturation, value = hsv_of(pixels)
    # Pillow's way back, for each hue, saturation and value.
    every = image_of(colours(np.arange(ALL), 4096)[..., ::-1])
    back = np.asarray(Image.merge("HSV", every.split()).convert("RGB")).reshape(-1, 3)
    for number in SHIFTS:
        expected = back[(hue + number & 255) << 16 | saturation << 8 | value].reshape(pixels.shape)
        assert np.array_equal(shift_by(number).on_pixels(pixels.copy()), expected), number
