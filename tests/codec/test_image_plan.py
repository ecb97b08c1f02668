"""The normal form of operations: what it makes of an image is what the operations make of it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.pixels import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packtrain._codec.geometry import FILTERS, Box, Crop, Flip, Operation, Pad, Scale, apply, size_after
from packtrain._codec.image_plan import ImagePlan, plan_image

WIDTH, HEIGHT = 13, 9
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
SIDE = st.integers(1, 16)
OPERATIONS = st.lists(
    st.one_of(
        st.builds(Crop, st.builds(Box, st.integers(-3, 8), st.integers(-3, 8), SIDE, SIDE)),
        st.builds(Scale, SIDE, SIDE, st.sampled_from([FILTERS["bilinear"], FILTERS["nearest"]])),
        st.builds(Flip, st.booleans()),
        st.builds(Pad, *[st.integers(0, 3)] * 4, fill=st.just(0), mode=st.just("constant")),
    ),
    max_size=6,
).map(tuple)


@given(OPERATIONS)
@settings(max_examples=3 * settings().max_examples)
def test_a_plan_makes_what_its_operations_make(operations: tuple[Operation, ...]) -> None:
    made, expected = plan_image(operations, WIDTH, HEIGHT), apply(IMAGE, operations)
    left, top, width, height = made.box
    assert 0 <= left < left + width <= WIDTH and 0 <= top < top + height <= HEIGHT
    assert size_after(made.rest, *made.size) == expected.size
    assert_same(apply(IMAGE, (Crop(made.box), *made.operations)), expected)
    x, y, wide, high = made.source
    assert left <= x and x + wide <= left + width and top <= y and y + high <= top + height
    # Nothing outside its source matters.
    changed = 255 - np.asarray(IMAGE)
    changed[y : y + high, x : x + wide] = np.asarray(IMAGE)[y : y + high, x : x + wide]
    assert_same(apply(Image.fromarray(changed), operations), expected)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ((), ImagePlan(Box(0, 0, WIDTH, HEIGHT), None, None, False, ())),
        ((Crop(Box(2, 1, 8, 7)), Crop(Box(1, 1, 4, 4))), ImagePlan(Box(3, 2, 4, 4), None, None, False, ())),
        (
            (Crop(Box(2, 1, 8, 7)), Scale(5, 5, 2), Flip(True)),
            ImagePlan(Box(2, 1, 8, 7), Scale(5, 5, 2), None, True, ()),
        ),
        ((Flip(True), Flip(True)), ImagePlan(Box(0, 0, WIDTH, HEIGHT), None, None, False, ())),
        ((Crop(Box(-1, 0, 5, 5)),), ImagePlan(Box(0, 0, WIDTH, HEIGHT), None, None, False, (Crop(Box(-1, 0, 5, 5)),))),
        (
            (Crop(Box(1, 1, 9, 7)), Scale(5, 5, 2), Crop(Box(1, 0, 3, 4)), Flip(True), Crop(Box(0, 1, 2, 3))),
            ImagePlan(Box(1, 1, 9, 7), Scale(5, 5, 2), Box(2, 1, 2, 3), True, ()),
        ),
        (
            (Scale(5, 5, 2), Crop(Box(0, 0, 5, 5)), Flip(False)),
            ImagePlan(Box(0, 0, WIDTH, HEIGHT), Scale(5, 5, 2), None, False, (Flip(False),)),
        ),
        (
            (Scale(5, 5, 2), Crop(Box(0, 1, 5, 3))),
            ImagePlan(Box(0, 0, WIDTH, HEIGHT), Scale(5, 5, 2), Box(0, 1, 5, 3), False, ()),
        ),
        (
            (Scale(5, 5, 2), Crop(Box(1, 1, 5, 4))),
            ImagePlan(Box(0, 0, WIDTH, HEIGHT), Scale(5, 5, 2), None, False, (Crop(Box(1, 1, 5, 4)),)),
        ),
        ((Flip(True), Crop(Box(1, 2, 9, 7))), ImagePlan(Box(3, 2, 9, 7), None, None, True, ())),
        # A resize of a mirrored image need not have the pixels of the mirrored resize.
        ((Flip(True), Scale(5, 5, 2)), ImagePlan(Box(0, 0, WIDTH, HEIGHT), None, None, True, (Scale(5, 5, 2),))),
        ((Flip(False),), ImagePlan(Box(0, 0, WIDTH, HEIGHT), None, None, False, (Flip(False),))),
    ],
)
def test_the_fast_executors_see_as_much_as_they_can_run(operations: tuple[Operation, ...], expected: ImagePlan) -> None:
    assert plan_image(operations, WIDTH, HEIGHT) == expected
