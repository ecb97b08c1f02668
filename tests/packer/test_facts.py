"""Laws of joined facts: the join has room for both, in either order, and there is one whenever anything has."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import Field, image_field
from packtrain._packer.facts import fits_shape, join_fields, join_labels, join_shapes

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
FIELDS = [
    image_field(StoreOptions("verbatim")),
    Field("x", "mask", encoding="png", dtype="|u1"),
    Field("x", "mask", encoding="png", dtype="<u2"),
    Field("x", "text"),
    Field("x", "bytes"),
    *(Field("x", "array", dtype=dtype, shape=shape) for dtype in ("<f4", "<i8") for shape in ((2,), (3,), (3, 2), ())),
]


@given(st.lists(SHAPES, min_size=1, max_size=4))
def test_a_shape_has_room_for_all_that_it_joins(shapes: list[tuple[int, ...]]) -> None:
    joined = join_shapes(shapes)
    alike = len({(len(shape), shape[1:]) for shape in shapes}) == 1
    assert (joined is not None) == alike
    if joined is not None:
        assert all(fits_shape(shape, joined) for shape in shapes)
        assert (None in joined) == (len(set(shapes)) > 1)


@pytest.mark.parametrize(("here", "there"), list(itertools.product(FIELDS, repeat=2)), ids=str)
def test_fields_join_in_either_order(here: Field, there: Field) -> None:
    joined = join_fields(here, there)
    assert joined == join_fields(there, here)
    if here == there:
        assert joined == here
    if joined is not None:
        # What has room for both stays when either is joined to it again.
        assert join_fields(joined, here) == join_fields(joined, there) == joined


@given(*(st.sampled_from([LabelSpec(kind, count) for kind in ("int", "float") for count in (None, 2, 3)]),) * 2)
def test_labels_join_if_they_are_equally_long(here: LabelSpec, there: LabelSpec) -> None:
    joined = join_labels(here, there)
    assert joined == join_labels(there, here)
    assert (joined is not None) == (here.count == there.count)
    if joined is not None:
        assert (joined.kind, joined.count) == ("float" if "float" in (here.kind, there.kind) else "int", here.count)


def test_labels_and_none_do_not_join() -> None:
    assert join_labels(LabelSpec("none"), LabelSpec("int")) is None
    assert join_labels(LabelSpec("none"), LabelSpec("none")) == LabelSpec("none")
