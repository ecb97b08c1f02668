"""Headers of `.npy` files that are the same whichever numpy is installed, and that every numpy reads."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.npy import npy_header, parse_npy_header


@given(st.sampled_from(["|b1", "|u1", "<i2", "<f8", "<c16"]), st.lists(st.integers(0, 1 << 60), max_size=8).map(tuple))
def test_numpy_reads_them(dtype: str, shape: tuple[int, ...]) -> None:
    header = npy_header(dtype, shape)
    assert len(header) % 64 == 0 and len(header) >= 128
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype(dtype))
    assert file.tell() == len(header)
    assert len(header) == 128 or len(npy_header(dtype, ())) == 128


@given(
    dtype=st.sampled_from(["?", "b", "<u2", ">i4", "<f8", ">c16", "<e"]).map(np.dtype),
    shape=st.lists(st.integers(0, 1 << 12), max_size=4).map(tuple),
    fortran=st.booleans(),
    write=st.sampled_from([np.lib.format.write_array_header_1_0, np.lib.format.write_array_header_2_0]),
)
def test_headers_of_numpy_are_read(
    dtype: np.dtype[np.generic], shape: tuple[int, ...], fortran: bool, write: Callable[..., None]
) -> None:
    file = io.BytesIO()
    write(file, {"descr": dtype.str, "fortran_order": fortran, "shape": shape})
    data = file.getvalue()
    assert parse_npy_header(data + b"values") == (dtype, fortran, shape, len(data))
