"""Laws of the functions that change colours and tones: their arithmetic in every style, and their arguments.

tests/codec/effects compares them with the Pillow that is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.effects import FACTORS, images
from hypothesis import given
from hypothesis import strategies as st

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

Pixels = npt.NDArray[np.uint8]
STYLES = PILLOW_SIMD, PILLOW = (0, 1)

FUNCTIONS: dict[str, Callable[[Any], None]] = {
    "brighten": lambda pixels: _extension.brighten(pixels, 0.5),
    "contrast": lambda pixels: _extension.contrast(pixels, 0.5, PILLOW),
    "saturate": lambda pixels: _extension.saturate(pixels, 0.5, PILLOW),
    "grey": lambda pixels: _extension.saturate(pixels, 0.0, PILLOW_SIMD),
    "turn_hues": lambda pixels: _extension.turn_hues(pixels, 50),
    "map_values": lambda pixels: _extension.map_values(pixels, bytes(range(256))[::-1]),
    "stretch_values": lambda pixels: _extension.stretch_values(pixels),
    "equalize_values": lambda pixels: _extension.equalize_values(pixels),
}
each_function = pytest.mark.parametrize("change", FUNCTIONS.values(), ids=FUNCTIONS)


def greys(pixels: Pixels, style: int) -> npt.NDArray[np.int64]:
    """Grey values, int64 [height, width, 1], by the arithmetic of the two libraries."""
    wide = pixels.astype(np.int64)
    if pixels.shape[2] == 1:
        return wide
    red, green, blue = wide[..., :1], wide[..., 1:2], wide[..., 2:]
    found: npt.NDArray[np.int64] = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    if style == PILLOW_SIMD:
        # Four pixels at a time, and the last ones of a row as Pillow.
        whole = pixels.shape[1] // 4 * 4
        found[:, :whole] = ((9798 * red + 19235 * green + 3735 * blue + 0x4000) >> 15)[:, :whole]
    return found


def blended(pixels: Pixels, greys: Any, factor: float) -> Pixels:
    """A blend in single precision, rounded after each operation."""
    difference = np.float32(factor) * (pixels.astype(np.int64) - greys).astype(np.float32)
    result: Pixels = (np.float32(greys) + difference).clip(0, 255).astype(np.uint8)
    return result


@pytest.mark.parametrize("style", STYLES)
@given(pixels=images(), factor=FACTORS)
def test_saturation_blends_with_grey_values(style: int, pixels: Pixels, factor: float) -> None:
    expected = blended(pixels, greys(pixels, style), factor)
    _extension.saturate(pixels, factor, style)
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("style", STYLES)
@given(pixels=images(), factor=FACTORS)
def test_contrast_blends_with_the_mean_of_grey_values(style: int, pixels: Pixels, factor: float) -> None:
    mean = int(np.sum(greys(pixels, style)) / pixels[..., 0].size + 0.5)
    expected = blended(pixels, mean, factor)
    _extension.contrast(pixels, factor, style)
    np.testing.assert_array_equal(pixels, expected)


@given(images(), st.integers(0, 1 << 30))
def test_a_map_is_a_map(pixels: Pixels, seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, 256, 256, np.uint8)
    expected = table[pixels]
    _extension.map_values(pixels, table)
    np.testing.assert_array_equal(pixels, expected)


@each_function
@given(pixels=images())
def test_nothing_else_is_written(change: Callable[[Any], None], pixels: Pixels) -> None:
    room = np.full((3, *pixels.shape), 77, np.uint8)
    room[1] = pixels
    change(pixels)
    change(room[1])
    assert (room[0] == 77).all()
    assert (room[2] == 77).all()
    np.testing.assert_array_equal(room[1], pixels)


@each_function
def test_only_contiguous_images_of_bytes_are_accepted(change: Callable[[Any], None]) -> None:
    readonly = np.zeros((4, 5, 3), np.uint8)
    readonly.flags.writeable = False
    for dtype in (np.int8, np.bool_, np.uint16, np.float32):
        with pytest.raises(ValueError, match="uint8"):
            change(np.zeros((4, 5, 3), dtype))
    for shape in ((), (5,), (4, 5), (4, 5, 0), (4, 5, 2), (4, 5, 4), (0, 5, 3), (4, 0, 3), (1, 4, 5, 3)):
        with pytest.raises(ValueError, match="one or three channels"):
            change(np.zeros(shape, np.uint8))
    for pixels in (np.zeros((4, 9, 3), np.uint8)[:, ::2], np.zeros((4, 5, 3), np.uint8)[::-1]):
        with pytest.raises(ValueError, match="contiguous"):
            change(pixels)
    for unchangeable in (readonly, bytes(60), memoryview(bytes(60)).cast("B", (4, 5, 3))):
        with pytest.raises(ValueError, match=r"read-only|not contiguous and writable"):
            change(unchangeable)
    with pytest.raises(TypeError):
        change(None)


def test_other_arguments_are_checked() -> None:
    pixels = np.full((4, 5, 3), 9, np.uint8)
    for factor in (float("nan"), float("inf"), -float("inf"), 1e300):
        for change in (_extension.brighten, _extension.contrast, _extension.saturate):
            with pytest.raises(ValueError, match="finite"):
                change(pixels, factor, *(() if change is _extension.brighten else (PILLOW,)))
    for style in (-1, 2, 255):
        for change in (_extension.contrast, _extension.saturate):
            with pytest.raises(ValueError, match="style"):
                change(pixels, 0.5, style)
    for size in (0, 255, 257, 768):
        with pytest.raises(ValueError, match="256"):
            _extension.map_values(pixels, bytes(size))
    assert (pixels == 9).all()


def test_a_map_may_be_the_image_itself() -> None:
    pixels = np.arange(256, dtype=np.uint8)[::-1].reshape(16, 16, 1).copy()
    _extension.map_values(pixels, pixels)
    assert (pixels.ravel() == np.arange(256)).all()
