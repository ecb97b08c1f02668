"""Laws of sharpness and of the blurs beyond those of all effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.effects import noise

from packtrain._codec.effects.filters import GaussianBlur, PillowBlur, Sharpness
from packtrain._codec.effects.operation import image_of, pixels_of

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")


@pytest.mark.parametrize("channels", [1, 3])
def test_all_smoothed_pixels(channels: int) -> None:
    """Every sum of eight neighbours with every centre."""
    sums, centers = np.arange(8 * 255 + 1), np.arange(256)
    pixels = np.zeros((3 * len(centers), 3 * len(sums), channels), np.uint8)
    for number, (y, x) in enumerate(np.argwhere(np.arange(9).reshape(3, 3) != 4)):
        pixels[y::3, x::3] = ((sums + number) // 8)[:, None]
    pixels[1::3, 1::3] = centers[:, None, None]
    effect = Sharpness(0.0)
    np.testing.assert_array_equal(
        effect.change(_extension, pixels, 0)[1::3, 1::3], pixels_of(effect.through_pillow(image_of(pixels)))[1::3, 1::3]
    )


@pytest.mark.parametrize("factor", [-2.0, 0.0, 0.1, 1.0, 1.9, 50.0])
@pytest.mark.parametrize("size", [(1, 1), (2, 9), (9, 2), (3, 3), (224, 224), (61, 500)])
def test_sharpness(factor: float, size: tuple[int, int]) -> None:
    for channels in (1, 3):
        pixels, effect = noise(*size, channels), Sharpness(factor)
        found = effect.change(_extension, pixels.copy(), 0)
        np.testing.assert_array_equal(found, pixels_of(effect.through_pillow(image_of(pixels))))


@pytest.mark.parametrize(("kernel", "fits"), [((7, 5), True), ((9, 5), False), ((7, 7), False), ((1, 1), True)])
def test_a_kernel_that_reaches_further_than_the_image_is_refused_as_in_torchvision(
    torchvision: Any, kernel: tuple[int, int], fits: bool
) -> None:
    pixels, sigma = noise(3, 4), (1.0, 1.0)
    effect, functional = GaussianBlur(kernel, sigma), torchvision.transforms.functional
    if fits:
        functional.gaussian_blur(image_of(pixels), list(kernel), list(sigma))
        effect.on_pixels(pixels)
        return
    with pytest.raises(RuntimeError):
        functional.gaussian_blur(image_of(pixels), list(kernel), list(sigma))
    for run in (effect.on_pixels, lambda pixels: effect.through_pillow(image_of(pixels))):
        with pytest.raises(ValueError, match=f"kernel of {kernel[0]} x {kernel[1]} .* 4 x 3 pixels"):
            run(pixels)


@pytest.mark.parametrize("radius", [0.0, 1e-9, 0.1, 0.5, 1.0, 1.95, 4.0, 17.0, 60.0, 300.0])
@pytest.mark.parametrize("size", [(2, 2), (5, 90), (90, 5), (70, 61), (224, 224)])
def test_pillow_blur(radius: float, size: tuple[int, int]) -> None:
    for channels in (1, 3):
        pixels, effect = noise(*size, channels), PillowBlur(radius)
        found = effect.change(_extension, pixels.copy(), 0)
        np.testing.assert_array_equal(found, pixels_of(effect.through_pillow(image_of(pixels))))


@pytest.mark.parametrize("radius", [2.5, 2.7, 3.0, 36.5, 36.8, 37.3, 80.0])
def test_pillow_blur_of_the_brightest_images(radius: float) -> None:
    """The largest sums, on both sides of the radii from which on they are made in another way."""
    for edge in (0, 50, 100):
        pixels, effect = np.full((90, 140, 3), 255, np.uint8), PillowBlur(radius)
        pixels[:edge, :edge] = 0
        found = effect.change(_extension, pixels.copy(), 0)
        np.testing.assert_array_equal(found, pixels_of(effect.through_pillow(image_of(pixels))))


@pytest.mark.parametrize("radius", [0.3, 1.2, 30.0])
def test_a_single_row_or_column_is_blurred_like_many_equal_ones(radius: float) -> None:
    line, effect = noise(1, 40), PillowBlur(radius)
    many = effect.change(_extension, np.repeat(line, 3, 0), 0)
    np.testing.assert_array_equal(effect.change(_extension, line, 0)[0], many[1])
    turned = np.ascontiguousarray(line.transpose(1, 0, 2))
    np.testing.assert_array_equal(
        effect.change(_extension, turned, 0), effect.change(_extension, np.repeat(turned, 3, 1), 0)[:, 1:2]
    )
