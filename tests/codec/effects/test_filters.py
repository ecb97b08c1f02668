"""Laws of sharpness and of the blurs beyond those of all effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.effects import images, noise
from hypothesis import assume, given
from hypothesis import strategies as st

from packtrain._codec.effects.filters import GaussianBlur, PillowBlur, Sharpness
from packtrain._codec.effects.operation import PixelOperation, image_of, pixels_of

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

Pixels = npt.NDArray[np.uint8]
KINDS: list[type[PixelOperation]] = [GaussianBlur, PillowBlur, Sharpness]
KERNELS = st.tuples(*[st.integers(0, 12).map(lambda half: 2 * half + 1)] * 2)
SIGMAS = st.tuples(*[st.floats(0.1, 5)] * 2)


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


@given(images(48), KERNELS, SIGMAS)
def test_gaussian_blur_is_within_one_of_torchvision(
    torchvision: Any, pixels: Pixels, kernel: tuple[int, int], sigma: tuple[float, float]
) -> None:
    assume(kernel[0] // 2 < pixels.shape[1] and kernel[1] // 2 < pixels.shape[0])
    from torchvision.transforms.v2 import functional as second

    image = image_of(pixels)
    for functional in (torchvision.transforms.functional, second):
        theirs = pixels_of(functional.gaussian_blur(image, list(kernel), list(sigma))).astype(int)
        difference = np.abs(GaussianBlur(kernel, sigma).on_pixels(pixels.copy()) - theirs)
        assert difference.max() <= 1
        # Only what lies halfway between two grey levels is rounded in another way.
        assert np.count_nonzero(difference) <= 2 + pixels.size // 100


def test_gaussian_blur_of_simclr_as_in_torchvision(torchvision: Any) -> None:
    pixels = noise(224, 224)
    theirs = pixels_of(torchvision.transforms.functional.gaussian_blur(image_of(pixels), [23, 23], [1.3, 1.3]))
    difference = np.abs(GaussianBlur((23, 23), (1.3, 1.3)).on_pixels(pixels.copy()).astype(int) - theirs)
    assert difference.max() <= 1 and np.count_nonzero(difference) < pixels.size // 1000


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
