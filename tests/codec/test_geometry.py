"""Laws of the geometric steps: their pixels are torchvision's, and `needed` is what they depend on."""

from __future__ import annotations

from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import pytest
from helpers.fusing import carried_out
from helpers.pixels import assert_same, noise
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.geometry import (
    FILTERS,
    Box,
    Crop,
    Flip,
    Operation,
    Pad,
    PadMode,
    Scale,
    apply,
    needed,
    size_after,
)

SIDES = st.integers(1, 48)
MODES = st.sampled_from(["RGB", "L"])
SEEDS = st.integers(0, 2**32 - 1)
PAD_MODES = st.sampled_from(get_args(PadMode))
MARGINS = st.integers(0, 12)
BOXES = st.builds(Box, st.integers(-20, 50), st.integers(-20, 50), SIDES, SIDES)
CROPS = st.builds(Crop, BOXES)
FLIPS = st.builds(Flip, st.booleans())
SCALES = st.builds(Scale, SIDES, SIDES, st.sampled_from(sorted(set(FILTERS.values()))))
PADS = st.builds(Pad, MARGINS, MARGINS, MARGINS, MARGINS, st.integers(0, 255), PAD_MODES)
EMPTY_PADS = st.builds(Pad, MARGINS, MARGINS, MARGINS, MARGINS, st.just(0), st.just("constant"))
CHAINS = st.lists(CROPS | FLIPS | SCALES | PADS, max_size=4)


def rgbx(image: Image.Image) -> Image.Image:
    """An RGB picture as decoders may deliver it, with a meaningless fourth byte."""
    pixels = np.asarray(image)
    return Image.frombytes("RGBX", image.size, np.dstack([pixels, 255 - pixels[..., :1]]).tobytes())


@given(CHAINS, SIDES, SIDES, MODES, SEEDS)
@settings(max_examples=5 * settings().max_examples)
@example([Crop(Box(-3, 60, 10, 4))], 20, 30, "RGB", 1)
@example([Pad(1, 2, 3, 4, (9,)), Pad(1, 2, 3, 4, (7, 8, 9))], 20, 30, "RGB", 1)
def test_chains_are_torchvisions(
    torchvision: Any, chain: list[Operation], width: int, height: int, mode: str, seed: int
) -> None:
    image = noise(seed, width, height, mode)
    assert_same(apply(image, chain), carried_out(torchvision, image, chain))


@pytest.mark.parametrize("mode", get_args(PadMode))
def test_pads_keep_a_palette(mode: PadMode, torchvision: Any) -> None:
    image = noise(3, 9, 7).quantize(8)
    pad = Pad(3, 2, 1, 4, 5, mode)
    ours = apply(image, [pad])
    assert_same(ours, torchvision.transforms.functional.pad(image, [*pad[:4]], 5, mode))
    assert ours.getpalette() == image.getpalette()


def test_a_fill_needs_a_value_for_every_channel() -> None:
    for mode, fill in (("L", (1, 2, 3)), ("RGB", (1, 2)), ("RGBX", (1, 2))):
        with pytest.raises(ValueError, match=rf"a fill of {len(fill)} values .*\({mode}\)"):
            apply(noise(1, 4, 4, mode), [Pad(1, 1, 1, 1, fill)])


@given(CHAINS, SIDES, SIDES, SEEDS)
def test_the_fourth_byte_of_rgbx_changes_nothing(chain: list[Operation], width: int, height: int, seed: int) -> None:
    image = noise(seed, width, height)
    ours = apply(rgbx(image), [step._replace(fill=(9, 8, 7)) if isinstance(step, Pad) else step for step in chain])
    expected = apply(image, [step._replace(fill=(9, 8, 7)) if isinstance(step, Pad) else step for step in chain])
    assert ours.mode == "RGBX"
    np.testing.assert_array_equal(np.asarray(ours)[..., :3], np.asarray(expected))


@given(CHAINS, SIDES, SIDES)
def test_the_size_is_known_before(chain: list[Operation], width: int, height: int) -> None:
    assert size_after(chain, width, height) == apply(Image.new("L", (width, height)), chain).size


def inside(box: Box, width: int, height: int) -> npt.NDArray[np.bool_]:
    """Says which pixels of an image of `width` x `height` lie in `box`."""
    assert box.left >= 0 and box.top >= 0 and box.width > 0 and box.height > 0
    assert box.left + box.width <= width and box.top + box.height <= height
    mask = np.zeros((height, width), bool)
    mask[box.top : box.top + box.height, box.left : box.left + box.width] = True
    return mask


@given(CHAINS, SIDES, SIDES, MODES, SEEDS)
@settings(max_examples=5 * settings().max_examples)
@example([Scale(5, 5, 1), Crop(Box(2, 2, 1, 1))], 40, 40, "RGB", 1)
@example([Scale(40, 40, 0), Crop(Box(13, 13, 1, 1)), Scale(3, 3, 2)], 48, 7, "L", 1)
@example([Scale(44, 1, 0), Crop(Box(5, 0, 1, 1))], 112, 1, "L", 1)  # the nearest filter's sum ends short of pixel 14
@example([Crop(Box(40, 40, 9, 9))], 20, 20, "RGB", 1)
def test_no_pixel_outside_of_what_is_needed_matters(
    chain: list[Operation], width: int, height: int, mode: str, seed: int
) -> None:
    image = noise(seed, width, height, mode)
    expected = apply(image, chain)
    keep = inside(needed(chain, width, height), width, height)
    # The opposite of every pixel is as far from it as any value on one side; black and white are so on the other.
    pixels = np.asarray(image)
    for other in (~pixels, np.zeros_like(pixels), np.full_like(pixels, 255)):
        changed = np.where(keep[..., None] if pixels.ndim == 3 else keep, pixels, other)
        assert_same(apply(Image.fromarray(changed), chain), expected)


@given(st.lists(CROPS | FLIPS | EMPTY_PADS, max_size=5), SIDES, SIDES)
@settings(max_examples=3 * settings().max_examples)
def test_without_scales_exactly_what_is_seen_is_needed(chain: list[Operation], width: int, height: int) -> None:
    numbers = np.arange(1, width * height + 1, dtype=np.int32).reshape(height, width)
    seen = np.asarray(apply(Image.fromarray(numbers), chain))
    rows, columns = np.nonzero(np.isin(numbers, seen))
    box = needed(chain, width, height)
    inside(box, width, height)
    if len(rows):
        left, top = columns.min(), rows.min()
        assert box == (left, top, columns.max() - left + 1, rows.max() - top + 1)
    else:
        assert box[2:] == (1, 1)


@given(st.data(), st.sampled_from(sorted(FILTERS)), st.integers(1, 60), st.integers(1, 60))
@settings(max_examples=2 * settings().max_examples)
def test_scales_need_little_more_than_what_shows(data: st.DataObject, name: str, source: int, target: int) -> None:
    first = data.draw(st.integers(0, target - 1))
    length = data.draw(st.integers(1, target - first))
    assume(name not in ("nearest", "nearest-exact") or length < target)
    for transposed in (False, True):
        shape = (lambda *box: box) if not transposed else (lambda *box: (box[1], box[0], box[3], box[2]))
        size = cast(tuple[int, int], shape(0, 0, target, 3)[2:])
        chain: list[Operation] = [Scale(*size, FILTERS[name]), Crop(Box(*shape(first, 0, length, 3)))]
        left, top, width, height = shape(*needed(chain, *shape(0, 0, source, 3)[2:]))
        # One impulse per row, in floating point: what is not 0 is what the filter reads.
        impulses = Image.fromarray(np.eye(source, dtype=np.float32))
        seen = np.asarray(impulses.resize((target, source), FILTERS[name]))[:, first : first + length].any(axis=1)
        (shows,) = np.nonzero(seen)
        assert left <= shows.min() and shows.max() < left + width
        assert shows.min() - left <= 2 and left + width - 1 - shows.max() <= 2
        assert (top, height) == (0, 3)


@given(st.data(), st.sampled_from(sorted(FILTERS)), st.integers(1, 65500), st.integers(1, 65500))
def test_no_rounding_over_long_lines_leads_out_of_what_is_needed(
    data: st.DataObject, name: str, source: int, target: int
) -> None:
    first = data.draw(st.integers(0, target - 1))
    length = data.draw(st.integers(1, target - first))
    chain: list[Operation] = [Scale(target, 1, FILTERS[name]), Crop(Box(first, 0, length, 1))]
    box = needed(chain, source, 1)
    line = np.random.default_rng(source).random((1, source), np.float32)
    changed = np.where(inside(box, source, 1), line, 2 - line)
    assert_same(apply(Image.fromarray(changed), chain), apply(Image.fromarray(line), chain))


def test_a_side_that_keeps_its_length_needs_no_neighbours() -> None:
    chain: list[Operation] = [Scale(500, 100, FILTERS["lanczos"]), Crop(Box(31, 0, 200, 100))]
    assert needed(chain, 500, 375) == (31, 0, 200, 375)


def test_padding_by_reflection_needs_no_more_than_the_crop_where_it_shows_no_reflection() -> None:
    modes: tuple[PadMode, ...] = ("edge", "reflect", "symmetric")
    for mode in modes:
        pad = Pad(4, 4, 4, 4, 0, mode)
        assert needed([pad, Crop(Box(10, 11, 8, 8))], 32, 32) == (6, 7, 8, 8)
        assert needed([pad, Crop(Box(3, 11, 8, 8))], 32, 32) == (0, 0, 32, 32)
