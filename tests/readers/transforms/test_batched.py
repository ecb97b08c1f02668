"""Laws of crops of many images at once: what the transform says of each, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.support import param_id
from hypothesis import given
from hypothesis import strategies as st

from packtrain._codec import resizing
from packtrain._codec.geometry import Box, Crop
from packtrain._readers.transforms.batched import plan_batch
from packtrain._readers.transforms.compose import compose
from packtrain.errors import UsageError
from packtrain.transforms import (
    CenterCrop,
    Compose,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

pytestmark = pytest.mark.skipif(resizing.style() is None, reason="nothing is resized by packtrain itself here")

HIGH, WIDE = 24, 31
SIZE = (HIGH, WIDE)
KNOWN: list[Any] = [
    [],
    [RandomHorizontalFlip(0.3)],
    [RandomCrop(SIZE)],
    [CenterCrop(SIZE)],
    [RandomCrop(SIZE, pad_if_needed=True), RandomHorizontalFlip()],
    [CenterCrop(SIZE), RandomHorizontalFlip(0.9)],
    [RandomResizedCrop(SIZE, scale=(0.2, 1.0)), RandomHorizontalFlip()],
    [RandomResizedCrop(SIZE, scale=(1.0, 1.0), interpolation="bicubic")],
    [Resize(SIZE)],
    [RandomCrop(HIGH), Resize(SIZE), RandomHorizontalFlip(0.2)],
    [Resize(40), CenterCrop(SIZE)],
    [Resize((HIGH, 60), "bicubic"), RandomCrop(SIZE), RandomHorizontalFlip()],
    [Resize(35, max_size=36), RandomHorizontalFlip(), CenterCrop(SIZE)],
]
OTHERS: list[Any] = [
    [RandomResizedCrop((WIDE, HIGH))],
    [RandomResizedCrop(SIZE, interpolation="lanczos")],
    [RandomResizedCrop(SIZE), RandomVerticalFlip()],
    [Resize(20), CenterCrop(SIZE)],
    [Resize(40), CenterCrop((HIGH, WIDE + 1))],
    [Resize(40), RandomCrop(SIZE, padding=1)],
    [RandomVerticalFlip()],
    [RandomHorizontalFlip(), RandomCrop(SIZE)],
    [RandomCrop(SIZE, padding=(0, 1))],
    [RandomCrop((40, 40)), RandomCrop(SIZE)],
    [RandomCrop(SIZE), RandomHorizontalFlip(), RandomHorizontalFlip()],
    [RandomCrop((HIGH, WIDE - 1))],
    [CenterCrop((HIGH + 1, WIDE))],
    [RandomCrop(SIZE), np.asarray],
]


def in_words(transform: Compose, width: int, height: int, random: list[float]) -> list[int] | None:
    """The part of an image that is taken, resized, kept of that and mirrored by its own plan; None if it says more."""
    try:
        plan = transform.plan(width, height, random)
    except UsageError:
        return None
    if plan.rest or plan.size != (WIDE, HIGH):
        return None
    size, kept = plan.resize or plan.box[2:], plan.window or (0, 0)
    return [*plan.box, *size[:2], *kept[:2], plan.mirrored]


@pytest.mark.parametrize("transforms", KNOWN, ids=param_id)
@given(data=st.data())
def test_they_are_what_the_steps_say(transforms: Any, data: st.DataObject) -> None:
    transform = compose(transforms)
    sides = st.tuples(st.integers(WIDE - 1, WIDE + 9), st.integers(HIGH - 1, HIGH + 9)) | st.just((WIDE, HIGH))
    sizes = data.draw(st.lists(sides, min_size=1, max_size=6))
    # What is next to 1 or to 0 shows how numbers are rounded.
    number = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.3, 0.5, 1 - 2**-53])
    numbers = st.lists(number, min_size=transform.draws + 1, max_size=transform.draws + 1)
    random = [data.draw(numbers) for _ in sizes]
    widths, heights = np.array(sizes).T
    found = plan_batch(transform, SIZE, widths, heights, np.array(random))
    expected = [in_words(transform, *size, row) for size, row in zip(sizes, random, strict=True)]
    if None in expected:
        assert found is None
    else:
        assert found is not None
        assert found.boxes.tolist() == expected


@pytest.mark.parametrize("transforms", OTHERS, ids=param_id)
def test_others_are_left_alone(transforms: Any) -> None:
    transform = compose(transforms)
    sides = np.array([50] * 3)
    assert plan_batch(transform, SIZE, sides, sides, np.zeros((3, transform.draws))) is None


def test_a_crop_of_somebody_else_is_left_alone() -> None:
    class Mine(RandomCrop):
        def steps(self, width: int, height: int, random: Any) -> Any:
            return (Crop(Box(1, 1, WIDE, HIGH)),)

    assert plan_batch(Compose([Mine(SIZE)]), SIZE, np.array([50]), np.array([50]), np.zeros((1, 2))) is None


def test_filters_are_told() -> None:
    widths = np.array([50, WIDE])
    heights = np.array([50, HIGH])
    for name, number in (("bilinear", 2), ("bicubic", 3)):
        found = plan_batch(compose(Resize(SIZE, interpolation=name)), SIZE, widths, heights, np.zeros((2, 0)))
        assert found is not None and (found.resample, found.style) == (number, resizing.style())
    # Images of this size already need none.
    found = plan_batch(compose(Resize(SIZE)), SIZE, widths[1:], heights[1:], np.zeros((1, 0)))
    assert found is not None and found.resample == -1


def test_a_filter_of_another_arithmetic_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "style", lambda: None)
    random = np.zeros((1, 30))
    sides = np.array([50])
    assert plan_batch(compose(RandomResizedCrop(SIZE)), SIZE, sides, sides, random) is None
    assert plan_batch(compose(RandomCrop(SIZE)), SIZE, sides, sides, random) is not None
