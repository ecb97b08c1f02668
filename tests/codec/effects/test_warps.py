"""Laws of affine maps, rotations and perspectives beyond those of all effects."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.effects import EFFECTS, images, noise
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.effects.operation import PixelOperation, image_of, pixels_of
from packtrain._codec.effects.warps import BICUBIC, BILINEAR, NEAREST, Affine, Perspective, Rotate
from packtrain.errors import UsageError

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

Pixels = npt.NDArray[np.uint8]
FILTERS = [NEAREST, BILINEAR, BICUBIC]
KINDS: list[type[PixelOperation]] = [Affine, Rotate, Perspective]
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
WILD = st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 1e-9, 0.49999999, 32767.5, -32768.0, 40000.0, 1e9, 1e300, -1e300])


def assert_as_pillow(effect: Affine | Rotate | Perspective, pixels: Pixels) -> None:
    changed = effect.change(_extension, pixels.copy(), 0)
    found = pixels if changed is None else changed
    np.testing.assert_array_equal(found, pixels_of(effect.through_pillow(image_of(pixels))))


@pytest.mark.parametrize("size", [(224, 224), (512, 512), (375, 500), (512, 3), (2, 400)])
@pytest.mark.parametrize("resample", FILTERS)
def test_images_of_the_usual_sizes(size: tuple[int, int], resample: int) -> None:
    pixels = noise(*size)
    for matrix in [
        (1.0, 0.3, -7.0, 0.0, 1.0, 0.0),
        (1.0, 0.0, 0.0, -0.3, 1.0, 5.5),
        (1.0, 0.0, 33.3, 0.0, 1.0, -31.0),
        (0.8, 0.0, 10.0, 0.0, 1.3, -3.0),
        (math.cos(1), math.sin(1), -40.0, -math.sin(1), math.cos(1), 90.0),
        (0.0, -1.0, size[1], 1.0, 0.0, 0.0),
    ]:
        assert_as_pillow(Affine(matrix, resample, (1, 2, 3)), pixels)
    assert_as_pillow(Rotate(-77.7, resample, expand=True, fill=(7,)), pixels)
    assert_as_pillow(Perspective((0.9, 0.3, -4.5, -0.2, 1.1, 2.25, 0.002, -0.001), resample, (7,)), pixels)


@settings(max_examples=5 * settings().max_examples)
@given(images(20), st.tuples(*[WILD | st.floats(-2, 2)] * 8), st.sampled_from(FILTERS))
@example(noise(3, 3), (-1.0, 32767.0, 0.5, 0.25, -32767.9, 0.0, 0.0, 0.0), NEAREST)
@example(noise(1, 1), (65535.0, 1.0, -32767.9, 0.0, 1.0, 0.0, 0.0, 0.0), NEAREST)
@example(noise(4, 4), (1.0, 0.0, -0.5, 0.0, 1.0, -0.5, -2.0, 0.0), BILINEAR)
def test_coordinates_that_overflow(pixels: Pixels, numbers: Any, resample: int) -> None:
    assert_as_pillow(Affine(numbers[:6], resample, (9,)), pixels)
    assert_as_pillow(Perspective(numbers, resample, (9,)), pixels)


@pytest.mark.product
@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("angle", [0, 90, 180, 270, 360, -90, 450])
@pytest.mark.parametrize("center", [None, (0.0, 0.0), (3.5, 2.0)])
def test_quarter_turns(angle: float, expand: bool, resample: int, center: Any) -> None:
    for size in [(7, 7), (5, 8), (1, 6), (70, 3), (38, 67), (64, 64)]:
        assert_as_pillow(Rotate(angle, resample, expand, center, (5,)), noise(*size))
        assert_as_pillow(Rotate(angle, resample, expand, center, (5,)), noise(*size, 1))


@pytest.mark.parametrize("height", [1, 3, 4, 33, 64, 70])
@pytest.mark.parametrize("width", [1, 3, 4, 33, 64, 70])
def test_axes_exchanged_and_turned_round(width: int, height: int) -> None:
    """All eight ways to lay an image on a grid of its own size, and some that leave it by a pixel."""
    for pixels in (noise(height, width), noise(height, width, 1)):
        out_height, out_width, channels = width, height, pixels.shape[2]
        for x_step, y_step, beside in product((1, -1), (1, -1), (0, 1)):
            left, top = (width if x_step < 0 else 0) + beside, height if y_step < 0 else 0
            out = np.empty((out_height, out_width, channels), np.uint8)
            _extension.warp(pixels, (0.0, x_step, left, y_step, 0.0, top), NEAREST, b"789"[:channels], out)
            image = image_of(pixels).transform(
                (out_width, out_height),
                Image.Transform.AFFINE,
                (0.0, x_step, left, y_step, 0.0, top),
                fillcolor=tuple(b"789")[:channels] if channels > 1 else ord("7"),
            )
            np.testing.assert_array_equal(out, pixels_of(image))


@pytest.mark.parametrize("fill", [(-5,), (300,), (-1, 128, 256)])
def test_fill_is_clipped(fill: tuple[int, ...]) -> None:
    assert_as_pillow(Affine((1.0, 0.0, 3.0, 0.0, 1.0, 0.0), NEAREST, fill), noise(5, 9))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data(), dtype=st.sampled_from(["u1", "i4"]))
def test_masks_move_as_images_with_nearest(kind: type[PixelOperation], data: Any, dtype: str) -> None:
    effect = data.draw(EFFECTS[kind])
    assume(len(effect.fill) == 1)
    pixels = data.draw(images().filter(lambda pixels: pixels.shape[2] == 1))
    effect = replace(effect, fill=(77,))
    factor = 1 if dtype == "u1" else -70_001
    # Values that a byte does not hold, one for each byte.
    table = np.arange(256).astype(dtype) * np.array(factor, dtype)
    moved = replace(effect, resample=NEAREST).on_pixels(pixels.copy())[..., 0]
    mask = np.asfortranarray(table[pixels[..., 0]])
    found = replace(effect, fill=(int(table[77]),)).on_mask(mask)
    assert found.dtype == mask.dtype
    np.testing.assert_array_equal(found, table[moved])


@given(data=st.data())
def test_masks_move_through_pillow_alike(data: Any) -> None:
    effect = replace(data.draw(EFFECTS[data.draw(st.sampled_from(KINDS))]), fill=(3,))
    mask = np.random.default_rng(0).integers(0, 1 << 20, (data.draw(st.integers(1, 40)), 31), np.int32)
    found = effect.on_mask(mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packtrain._codec.effects.warps.style_of", lambda kind: None)
        np.testing.assert_array_equal(effect.on_mask(mask), found)


def test_a_mask_has_one_fill() -> None:
    with pytest.raises(UsageError, match="give one value"):
        Affine(IDENTITY, fill=(1, 2, 3)).on_mask(np.zeros((3, 3), np.uint8))
