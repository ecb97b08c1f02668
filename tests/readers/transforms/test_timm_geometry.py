"""timm's transforms that move pixels: recognised, and with timm's own pixels for the same random decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from helpers.fusing import numbers
from helpers.pixels import assert_same, noise
from helpers.scripted import Scripted
from helpers.timm_augment import only
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.geometry import apply
from packtrain._readers.transforms.recognition import recognised
from packtrain.errors import UsageError
from packtrain.transforms import Compose, RandomResizedCrop, from_timm

SIDES = st.integers(1, 90)
SIZES = st.integers(1, 60) | st.tuples(st.integers(1, 60), st.integers(1, 60))
FILTERS = st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos", "random"])
MODES = st.sampled_from(["RGB", "L"])
PADDING = st.sampled_from(["constant", "edge", "reflect", "symmetric"])
SHARE = st.floats(0, 1)


def compare(
    timm: Any, theirs: Any, image: Image.Image, seed: int, script: Callable[[Sequence[float]], Scripted]
) -> None:
    """Runs what is recognised and timm's own with what `script` makes of the same numbers."""
    ours = only(theirs)
    random = numbers(seed, ours.draws)
    with mock.patch.object(timm.data.transforms, "random", script(random)):
        expected = theirs(image)
    assert_same(apply(image, ours.operations(*image.size, random)), expected)


@given(SIDES, SIDES, SIZES, FILTERS, MODES, st.integers(0, 1 << 30))
def test_random_resized_crop(timm: Any, wide: int, high: int, size: Any, kind: str, mode: str, seed: int) -> None:
    # Of fewer pixels timm may take none, and then gives a black image; torchvision and packtrain try again.
    assume(wide * high >= 8)
    theirs = timm.data.transforms.RandomResizedCropAndInterpolation(size, (0.1, 1), (0.5, 2), kind)

    def script(random: Sequence[float]) -> Scripted:
        # The choice of a filter comes first.
        own = random[-22:]
        return Scripted(own[:20], (own[21], own[20]), random[0])

    assert (type(only(theirs)) is RandomResizedCrop) == (kind != "random")
    compare(timm, theirs, noise(1, wide, high, mode), seed, script)


@given(SIDES, SIDES, SIZES, FILTERS, MODES, SHARE, SHARE, SHARE, st.booleans(), st.integers(0, 1 << 30))
def test_resize_keep_ratio(
    timm: Any,
    wide: int,
    high: int,
    size: Any,
    kind: str,
    mode: str,
    longest: float,
    scale_p: float,
    aspect_p: float,
    area: bool,
    seed: int,
) -> None:
    theirs = timm.data.transforms.ResizeKeepRatio(size, longest, kind, scale_p, (0.6, 1.2), area, aspect_p, (0.5, 2))

    def script(random: Sequence[float]) -> Scripted:
        used = [random[0]] * (scale_p > 0) + [random[1]] * (random[0] < scale_p)
        used += [random[2]] * (aspect_p > 0) + [random[3]] * (random[2] < aspect_p)
        return Scripted(used, chosen=random[4])

    image = noise(2, wide, high, mode)
    size = only(theirs).operations(wide, high, numbers(seed, 5))
    if size and 1 in size[0].size_after(wide, high):
        # timm fails for a side that would be rounded to 0.
        return
    compare(timm, theirs, image, seed, script)


@given(SIDES, SIDES, SIZES, MODES, PADDING, st.integers(0, 1 << 30))
def test_crops_that_pad(timm: Any, wide: int, high: int, size: Any, mode: str, padding: str, seed: int) -> None:
    fill = (1, 2, 3) if mode == "RGB" else 7
    image = noise(3, wide, high, mode)
    for name in ("CenterCropOrPad", "RandomCropOrPad"):
        theirs = getattr(timm.data.transforms, name)(size, fill, padding)
        compare(timm, theirs, image, seed, lambda random: Scripted((), random))


@given(SIDES, SIDES, st.integers(0, 20), MODES)
def test_trimmed_borders(timm: Any, wide: int, high: int, border: int, mode: str) -> None:
    theirs = timm.data.transforms.TrimBorder(border)
    if min(wide, high) > 2 * border:
        compare(timm, theirs, noise(4, wide, high, mode), 0, lambda random: Scripted(()))
    else:
        with pytest.raises(UsageError, match="leaves nothing"):
            only(theirs).operations(wide, high, ())


def test_subclasses_and_other_versions_stay_foreign(timm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = timm.data.transforms.TrimBorder
    assert recognised(kind(3)) is not None
    assert recognised(type("TrimBorder", (kind,), {"__module__": "mine"})(3)) is None
    assert recognised(timm.data.transforms.RandomResizedCropAndInterpolation(8, (0, 0))) is None
    monkeypatch.setattr(timm, "__version__", "2.0.0")
    assert recognised(kind(3)) is None


def test_from_timm_takes_what_create_transform_made_also_in_three_parts(timm: Any) -> None:
    made = timm.data.create_transform(32, is_training=True, auto_augment="rand-m5", separate=True)
    assert isinstance(made, tuple)
    assert from_timm(made).given == Compose([*made[0].transforms, *made[1].transforms, *made[2].transforms]).given
    with pytest.raises(UsageError, match="3 is not a transform"):
        from_timm(3)
