"""Combinations of parameters that are left out: `make test` runs every value, `make test-all` every pair."""

from __future__ import annotations

from itertools import combinations, product

from helpers.sampling import covering
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_every_value_occurs_in_as_few_cases_as_can_be_and_every_pair_in_few_more(sizes: list[int]) -> None:
    rows = list(product(*map(range, sizes)))
    matrix = [{name: (value,) for name, value in zip("abcd", row, strict=False)} for row in rows]
    values, pairs = covering(matrix), covering(matrix, 2)
    for at, size in enumerate(sizes):
        assert {rows[number][at] for number in values} == set(range(size))
    for one, other in combinations(range(len(sizes)), 2):
        found = {(rows[number][one], rows[number][other]) for number in pairs}
        assert found == set(product(range(sizes[one]), range(sizes[other])))
    assert len(values) == max(sizes)
    least = max((left * right for left, right in combinations(sizes, 2)), default=max(sizes))
    assert values <= pairs and len(pairs) < 2 * least + max(sizes)


def test_values_that_cannot_be_hashed_are_told_apart() -> None:
    one, other = {"x": 1}, {"x": 1}
    assert covering([{"a": (one,), "b": (1,)}, {"a": (one,), "b": (2,)}, {"a": (other,), "b": (2,)}]) == {0, 2}
    assert covering([]) == set()


def test_rows_of_a_table_are_all_covered() -> None:
    """Arguments of one `parametrize` belong together."""
    rows = [(0, 1), (1, 0), (1, 1)]
    matrix = [{"a,b": row, "c": (value,)} for row in rows for value in "xy"]
    assert {matrix[number]["a,b"] for number in covering(matrix)} == set(rows)
