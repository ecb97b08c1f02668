"""What `make test` leaves out: combinations, never a value of a parameter."""

from __future__ import annotations

from itertools import product

from helpers.sampling import covering
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_every_value_occurs_in_about_as_few_cases_as_can_be(sizes: list[int]) -> None:
    names = "abcd"[: len(sizes)]
    matrix = [
        {name: (value,) for name, value in zip(names, values, strict=True)} for values in product(*map(range, sizes))
    ]
    chosen = [matrix[number] for number in covering(matrix)]
    for name, size in zip(names, sizes, strict=True):
        assert {case[name] for case in chosen} == {(value,) for value in range(size)}
    assert len(chosen) == max(sizes)


def test_values_that_cannot_be_hashed_are_told_apart() -> None:
    one, other = {"x": 1}, {"x": 1}
    assert covering([{"a": (one,), "b": (1,)}, {"a": (one,), "b": (2,)}, {"a": (other,), "b": (2,)}]) == {0, 2}
    assert covering([]) == set()


def test_rows_of_a_table_are_all_covered() -> None:
    """Arguments of one `parametrize` belong together."""
    rows = [(0, 1), (1, 0), (1, 1)]
    matrix = [{"a,b": row, "c": (value,)} for row in rows for value in "xy"]
    assert {matrix[number]["a,b"] for number in covering(matrix)} == set(rows)
