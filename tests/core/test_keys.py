"""Laws of keys. What they are is part of every saved state, so some of it is pinned."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.keys import mixed, mixed_arrays

NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(-(2**70), 2**70), st.lists(NUMBERS, max_size=5), NUMBERS)
def test_many_are_mixed_as_one(first: int, numbers: list[int], last: int) -> None:
    found = mixed_arrays(first, np.array(numbers, np.int64), last)
    assert found.dtype == np.uint64
    assert found.tolist() == [mixed(first, number, last) for number in numbers]


def test_arrays_are_mixed_element_by_element() -> None:
    rows, columns = np.arange(3)[:, None], np.arange(4)
    found = mixed_arrays(rows, columns)
    assert found.tolist() == [[mixed(row, column) for column in range(4)] for row in range(3)]


def test_what_saved_states_rely_on() -> None:
    assert mixed() == 0
    assert mixed(0) == 16294208416658607535
    assert mixed(1, 2, 3) == mixed(1 + 2**64, 2, 3)
    assert mixed(1, 2) != mixed(2, 1)
