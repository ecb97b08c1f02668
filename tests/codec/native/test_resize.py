"""Laws of the extension's resize: the pixels of the installed Pillow, and of the others by their arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec import resizing
from packtrain._codec.native.places import PLACE

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

Pixels = npt.NDArray[np.uint8]
BILINEAR, BICUBIC = 2, 3


def resized(
    pixels: Pixels, box: Any, size: tuple[int, int], resample: int, style: int, mirrored: bool
) -> Pixels | None:
    """The extension's result. The input is a buffer of its own, so that a sanitiser sees reads beyond its end."""
    height, width = pixels.shape[:2]
    place = np.array([(0, 0, 0, 0, pixels.size, 0, width, height, *box, mirrored)], PLACE)
    room = np.full((3, size[1], size[0], 3), 77, np.uint8)
    done = _extension.copy_records([pixels.tobytes()], place, False, resample, style, room[1:2], np.zeros(1, np.int64))
    assert (room[0] == 77).all() and (room[2] == 77).all()
    return room[1] if done else None


def weights(source: int, target: int, resample: int, style: int) -> tuple[npt.NDArray[np.int64], int]:
    """Integer weights [target, source], and their number of bits after the binary point."""
    scale = source / target
    support = {BILINEAR: 1.0, BICUBIC: 2.0}[resample] * max(scale, 1.0)
    found = np.zeros((target, source))
    for number in range(target):
        center = (number + 0.5) * scale
        first, end = max(0, int(center - support + 0.5)), min(source, int(center + support + 0.5))
        taps = [_tap(abs((x - center + 0.5) * (1.0 / max(scale, 1.0))), resample) for x in range(first, end)]
        found[number, first:end] = np.array(taps) / _sum(taps)
    places = 22
    if style == 0:
        while places and int(0.5 + found.max() * (1 << places)) >= 1 << 15:
            places -= 1
    return np.trunc(found * (1 << places) + np.where(found < 0, -0.5, 0.5)).astype(np.int64), places


def _sum(taps: list[float]) -> float:
    """Adds one after another, because another order could round differently."""
    total = 0.0
    for tap in taps:
        total += tap
    return total


def _tap(x: float, resample: int) -> float:
    if resample == BILINEAR:
        return max(0.0, 1.0 - x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0


def reference(pixels: Pixels, size: tuple[int, int], resample: int, style: int) -> Pixels:
    """The same arithmetic in numpy: one pass after another, with bytes in between."""
    height, width = pixels.shape[:2]
    order = [(1, width, size[0]), (0, height, size[1])]
    if style == 2 and height - size[1] > max(0, 2 * (width - size[0])):
        order.reverse()
    for axis, source, target in order:
        if source != target:
            numbers, places = weights(source, target, resample, style)
            sums = np.moveaxis(np.tensordot(numbers, pixels.astype(np.int64), (1, axis)), 0, axis)
            pixels = (sums + (1 << (places - 1)) >> places).clip(0, 255).astype(np.uint8)
    return pixels


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pixels, tuple[int, int, int, int], tuple[int, int]]:
    width, height = draw(st.integers(1, 150)), draw(st.integers(1, 150))
    wide, high = draw(st.integers(1, width)), draw(st.integers(1, height))
    box = (draw(st.integers(0, width - wide)), draw(st.integers(0, height - high)), wide, high)
    size = draw(st.tuples(st.integers(1, 120) | st.just(wide), st.integers(1, 120) | st.just(high)))
    pixels = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, (height, width, 3), np.uint8)
    # Only black and white make the filter overshoot.
    return (pixels // 128 * 255 if draw(st.booleans()) else pixels), box, size


def cropped(pixels: Pixels, box: tuple[int, int, int, int]) -> Pixels:
    left, top, wide, high = box
    return pixels[top : top + high, left : left + wide]


@pytest.mark.skipif(resizing.style() is None, reason="nothing is resized by packtrain itself here")
@pytest.mark.parametrize("resample", [BILINEAR, BICUBIC])
@settings(max_examples=2 * settings().max_examples)
@given(cases(), st.booleans())
def test_the_pixels_are_those_of_pillow(resample: int, case: Any, mirrored: bool) -> None:
    pixels, box, size = case
    style = resizing.style()
    assert style is not None
    found = resized(pixels, box, size, resample, style, mirrored)
    expected = np.asarray(Image.fromarray(np.ascontiguousarray(cropped(pixels, box))).resize(size, resample))
    assert found is not None
    np.testing.assert_array_equal(found, expected[:, ::-1] if mirrored else expected)


@pytest.mark.skipif(resizing.style() is None, reason="nothing is resized by packtrain itself here")
@pytest.mark.parametrize("style", [0, 1, 2])
@pytest.mark.parametrize("resample", [BILINEAR, BICUBIC])
@given(cases())
@example((np.full((150, 1, 3), 255, np.uint8), (0, 0, 1, 150), (2, 1)))
def test_the_pixels_are_those_of_the_arithmetic(style: int, resample: int, case: Any) -> None:
    pixels, box, size = case
    found = resized(pixels, box, size, resample, style, mirrored=False)
    assert found is not None
    np.testing.assert_array_equal(found, reference(cropped(pixels, box), size, resample, style))


def test_the_style_is_that_of_the_pillow_that_is_here() -> None:
    """If the pixels differed, an installation would be slow without saying so."""
    if not _avx2():
        pytest.skip("no AVX2")
    major = int(PIL.__version__.partition(".")[0])
    assert resizing.style() == (0 if ".post" in PIL.__version__ else 1 if major < 13 else 2)


def _avx2() -> bool:
    with open("/proc/cpuinfo") as file:
        return " avx2 " in file.read()


@pytest.mark.parametrize("resample", [-1, 0, 1, 4, 5])
def test_other_filters_are_left_alone(resample: int) -> None:
    pixels = np.zeros((9, 9, 3), np.uint8)
    assert resized(pixels, (0, 0, 9, 9), (9, 9), resample, 1, mirrored=False) is not None
    assert resized(pixels, (0, 0, 9, 9), (9, 8), resample, 1, mirrored=False) is None


def test_grey_images_are_left_alone() -> None:
    place = np.array([(0, 0, 0, 0, 81, 0, 9, 9, 0, 0, 9, 9, 0)], PLACE)
    out = np.empty((1, 9, 8, 1), np.uint8)
    assert not _extension.copy_records([bytes(81)], place, False, BILINEAR, 1, out, np.zeros(1, np.int64))


def test_another_pillow_is_not_imitated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single pixel that differs is enough."""
    resize = Image.Image.resize

    def other(self: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
        image = resize(self, size, resample)
        red = image.getpixel((3, 4))
        assert isinstance(red, tuple)
        image.putpixel((3, 4), (red[0] ^ 1, *red[1:]))
        return image

    monkeypatch.setattr(Image.Image, "resize", other)
    assert resizing.style.__wrapped__() is None


def test_an_image_is_not_resized_into_its_own_memory() -> None:
    room = np.zeros(3 * 40 * 30, np.uint8)
    image, out = room[: 3 * 20 * 30].reshape(20, 30, 3), room[3 * 20 * 30 - 1 :][: 3 * 10 * 10].reshape(10, 10, 3)
    with pytest.raises(ValueError, match="overlap"):
        _extension.resize_pixels(image, 2, 1, False, False, out)
