"""What `make test` leaves out: combinations, never a value of a parameter."""

from __future__ import annotations

from itertools import product

from helpers.sampling import covering
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_every_value_occurs_in_about_as_few_cases_as_can_be(sizes: list[int]) -> None:
    names = "abcd"[: len(sizes)]
    matrix = [dict(zip(names, values, strict=True)) for values in product(*map(range, sizes))]
    chosen = [matrix[number] for number in covering(matrix)]
    for name, size in zip(names, sizes, strict=True):
        assert {case[name] for case in chosen} == set(range(size))
    assert len(chosen) == max(sizes)


def test_values_that_cannot_be_hashed_are_told_apart() -> None:
    one, other = {"x": 1}, {"x": 1}
    assert covering([{"a": one, "b": 1}, {"a": one, "b": 2}, {"a": other, "b": 2}]) == {0, 2}
    assert covering([]) == set()
