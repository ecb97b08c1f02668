"""Laws of crops of many images at once: what the transform says of each, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain.core.errors import UsageError
from packtrain.readers.crops import crops_of
from packtrain.readers.geometry import Box, Crop, Flip
from packtrain.readers.transforms import (
    CenterCrop,
    Compose,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    compose,
)

HIGH, WIDE = 24, 31
SIZE = (HIGH, WIDE)
KNOWN: list[Any] = [
    [],
    [RandomHorizontalFlip(0.3)],
    [RandomCrop(SIZE)],
    [CenterCrop(SIZE)],
    [RandomCrop(SIZE, pad_if_needed=True), RandomHorizontalFlip()],
    [CenterCrop(SIZE), RandomHorizontalFlip(0.9)],
]
OTHERS: list[Any] = [
    [RandomResizedCrop(SIZE)],
    [Resize(SIZE)],
    [RandomVerticalFlip()],
    [RandomHorizontalFlip(), RandomCrop(SIZE)],
    [RandomCrop(SIZE, padding=(0, 1))],
    [RandomCrop((40, 40)), RandomCrop(SIZE)],
    [RandomCrop(SIZE), RandomHorizontalFlip(), RandomHorizontalFlip()],
    [RandomCrop((HIGH, WIDE - 1))],
    [CenterCrop((HIGH + 1, WIDE))],
    [RandomCrop(SIZE), np.asarray],
]


def in_words(transform: Compose, width: int, height: int, random: list[float]) -> tuple[int, int, bool] | None:
    """Left, top and whether it is mirrored, from the steps of one image; None if they say something else."""
    try:
        steps = list(transform.steps(width, height, random))
    except UsageError:
        return None
    first = steps.pop(0) if steps and isinstance(steps[0], Crop) else Crop(Box(0, 0, width, height))
    assert isinstance(first, Crop)
    if steps not in ([], [Flip(horizontal=True)]):
        return None
    left, top, wide, high = first.box
    inside = left >= 0 and top >= 0 and left + wide <= width and top + high <= height
    return (left, top, bool(steps)) if inside and (high, wide) == SIZE else None


@pytest.mark.parametrize("transforms", KNOWN, ids=str)
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
    found = crops_of(transform, SIZE, widths, heights, np.array(random))
    expected = [in_words(transform, *size, row) for size, row in zip(sizes, random, strict=True)]
    if None in expected:
        assert found is None
    else:
        assert found is not None
        columns = (found.left.tolist(), found.top.tolist(), found.mirrored.tolist())
        assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize("transforms", OTHERS, ids=str)
def test_others_are_left_alone(transforms: Any) -> None:
    transform = compose(transforms)
    sides = np.array([50] * 3)
    assert crops_of(transform, SIZE, sides, sides, np.zeros((3, transform.draws))) is None


def test_a_crop_of_somebody_else_is_left_alone() -> None:
    class Mine(RandomCrop):
        def steps(self, width: int, height: int, random: Any) -> Any:
            return (Crop(Box(1, 1, WIDE, HIGH)),)

    assert crops_of(Compose([Mine(SIZE)]), SIZE, np.array([50]), np.array([50]), np.zeros((1, 2))) is None
