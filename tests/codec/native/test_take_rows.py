"""Laws of taking entries of columns that lie in several arrays: numpy takes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._codec.native import extension

pytestmark = pytest.mark.skipif(extension is None, reason="the extension is not installed")

entries = st.sampled_from([np.dtype(kind) for kind in ("|u1", "<i2", "<u4", "<i8", "<f4")])


@given(data=st.data(), dtype=entries, shape=st.sampled_from([(), (3,)]), sizes=st.lists(st.integers(1, 50), max_size=6))
def test_it_is_what_numpy_takes(
    data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...], sizes: list[int]
) -> None:
    assert extension is not None
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    columns = [random.integers(0, 100, (size, *shape)).astype(dtype) for size in sizes]
    chosen = [np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=9)), np.int64) for size in sizes]
    counts = np.array([len(rows) for rows in chosen], np.int64)
    rows = np.concatenate([np.empty(0, np.int64), *chosen])
    out = np.empty((len(rows), *shape), dtype)
    extension.take_rows(columns, counts, rows, out)
    expected = [column[rows] for column, rows in zip(columns, chosen, strict=True)]
    assert out.tobytes() == b"".join(each.tobytes() for each in expected)
