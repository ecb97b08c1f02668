"""Headers of `.npy` files that are the same whichever numpy is installed, and that every numpy reads."""

from __future__ import annotations

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.npy import npy_header


@given(st.sampled_from(["|b1", "|u1", "<i2", "<f8", "<c16"]), st.lists(st.integers(0, 1 << 60), max_size=8).map(tuple))
def test_numpy_reads_them(dtype: str, shape: tuple[int, ...]) -> None:
    header = npy_header(dtype, shape)
    assert len(header) % 64 == 0 and len(header) >= 128
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype(dtype))
    assert file.tell() == len(header)
    assert len(header) == 128 or len(npy_header(dtype, ())) == 128
