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
from packtrain._codec.geometry import Box, Crop, Scale, needed
from packtrain._codec.native.places import PLACE

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

Pixels = npt.NDArray[np.uint8]
BILINEAR, BICUBIC = 2, 3


def resized(
    pixels: Pixels,
    box: Any,
    size: tuple[int, int],
    resample: int,
    style: int,
    mirrored: bool,
    window: Any = None,
) -> Pixels | None:
    """The extension's result. The input is a buffer of its own, so that a sanitiser sees reads beyond its end."""
    height, width = pixels.shape[:2]
    left, top, wide, high = (0, 0, *size) if window is None else window
    place = np.array([(0, 0, 0, 0, pixels.size, 0, width, height, *box, *size, left, top, mirrored)], PLACE)
    room = np.full((3, high, wide, 3), 77, np.uint8)
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


@st.composite
def windows(draw: st.DrawFn) -> tuple[Pixels, tuple[int, int], tuple[int, int, int, int]]:
    """An image, the size that it gets, and what is kept of that."""
    pixels, box, size = draw(cases())
    wide, high = draw(st.integers(1, size[0])), draw(st.integers(1, size[1]))
    window = (draw(st.integers(0, size[0] - wide)), draw(st.integers(0, size[1] - high)), wide, high)
    return cropped(pixels, box), size, window


def part_resized(
    pixels: Pixels, part: Any, size: tuple[int, int], window: Any, resample: int, style: int, mirrored: bool = False
) -> Pixels:
    """A window of the resized image, from a part of the image that lies in a buffer of its own."""
    height, width = pixels.shape[:2]
    out = np.full((window[3], window[2], 3), 77, np.uint8)
    image, source, target = cropped(pixels, part).copy(), (width, height, *part[:2]), (*size, *window[:2])
    _extension.resize_pixels(image, source, target, resample, style, mirrored, False, out)
    return out


@pytest.mark.skipif(resizing.style() is None, reason="nothing is resized by packtrain itself here")
@pytest.mark.parametrize("style", [0, 1, 2])
@pytest.mark.parametrize("resample", [BILINEAR, BICUBIC])
@given(windows(), st.booleans(), st.tuples(*[st.integers(0, 9)] * 4))
# Columns come first in style 2; a weight outside the window decides on the precision in style 0.
@example((np.arange(150 * 9 * 3, dtype=np.uint8).reshape(150, 9, 3), (8, 20), (3, 7, 4, 2)), True, (0, 0, 0, 0))
@example((np.full((9, 40, 3), 255, np.uint8), (3, 9), (1, 0, 1, 9)), False, (0, 0, 0, 0))
def test_a_window_is_that_of_the_whole_resize(
    style: int, resample: int, case: Any, mirrored: bool, margins: tuple[int, int, int, int]
) -> None:
    """From all of a raw record, and from the part that it depends on with any margins around it."""
    pixels, size, window = case
    height, width = pixels.shape[:2]
    whole = resized(pixels, (0, 0, width, height), size, resample, style, mirrored=False)
    assert whole is not None
    expected = cropped(whole, window)[:, :: -1 if mirrored else 1]
    found = resized(pixels, (0, 0, width, height), size, resample, style, mirrored, window)
    assert found is not None
    np.testing.assert_array_equal(found, expected)
    left, top, wide, high = needed((Scale(size[0], size[1], resample), Crop(Box(*window))), width, height)
    right, bottom = min(left + wide + margins[2], width), min(top + high + margins[3], height)
    left, top = max(left - margins[0], 0), max(top - margins[1], 0)
    part = (left, top, right - left, bottom - top)
    np.testing.assert_array_equal(part_resized(pixels, part, size, window, resample, style, mirrored), expected)


@pytest.mark.skipif(resizing.style() is None, reason="nothing is resized by packtrain itself here")
@pytest.mark.parametrize("part", [(1, 0, 29, 20), (0, 1, 30, 19), (0, 0, 17, 20), (0, 0, 30, 13)], ids=str)
def test_a_window_that_depends_on_more_is_refused(part: Any) -> None:
    pixels = np.zeros((20, 30, 3), np.uint8)
    for size in ((10, 10), (30, 10), (10, 20)):
        needs = needed((Scale(size[0], size[1], BILINEAR), Crop(Box(0, 0, 6, 6))), 30, 20)
        if part[0] == part[1] == 0 and part[2] >= needs.width and part[3] >= needs.height:
            part_resized(pixels, part, size, (0, 0, 6, 6), BILINEAR, 1)
        else:
            with pytest.raises(ValueError, match="more of the image"):
                part_resized(pixels, part, size, (0, 0, 6, 6), BILINEAR, 1)


FAR = 2**31 - 1


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(((30, 20, 0, 0), wrong) for wrong in [(9, 10, 0, 0), (10, 9, 0, 0), (12, 10, 3, 0), (12, 10, -1, 0)]),
        *((wrong, (10, 10, 0, 0)) for wrong in [(29, 20, 0, 0), (30, 20, 0, 1), (31, 20, 2, 0), (31, 20, -1, 0)]),
        ((FAR, 20, 0, 0), (10, 10, 0, 0)),
        ((30, 20, FAR, -FAR), (10, 10, 0, 0)),
        ((30, 20, 0, 0), (10, FAR, 0, 0)),
        ((30, 20, 0, 0), (10, 10, -FAR, FAR)),
    ],
)
def test_a_part_lies_within_its_whole(source: Any, target: Any) -> None:
    image, out = np.zeros((20, 30, 3), np.uint8), np.zeros((10, 10, 3), np.uint8)
    with pytest.raises(ValueError, match="not part of"):
        _extension.resize_pixels(image, source, target, BILINEAR, 1, False, False, out)


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
    place = np.array([(0, 0, 0, 0, 81, 0, 9, 9, 0, 0, 9, 9, 8, 9, 0, 0, 0)], PLACE)
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
