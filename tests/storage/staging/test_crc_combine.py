"""Checksums of parts combine to the checksum of the whole; the oracle is the checksum of the whole itself."""

from __future__ import annotations

from functools import reduce

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.crc import combine

CHECKSUMS = st.integers(0, 2**32 - 1)
LENGTHS = st.integers(0, 2**50)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_any_number_of_parts(parts: list[bytes]) -> None:
    assert reduce(lambda sum, part: combine(sum, crc32c(part), len(part)), parts, 0) == crc32c(b"".join(parts))


@pytest.mark.parametrize("zeros", [1 << 20, (1 << 24) + 1])
def test_long_parts(zeros: int) -> None:
    assert combine(crc32c(b"start"), crc32c(bytes(zeros)), zeros) == crc32c(b"start" + bytes(zeros))


@given(CHECKSUMS, CHECKSUMS, CHECKSUMS, LENGTHS, LENGTHS)
def test_order_of_combining_is_free(a: int, b: int, c: int, b_bytes: int, c_bytes: int) -> None:
    """This includes lengths beyond 2^32, for which no test can hold the bytes."""
    assert combine(combine(a, b, b_bytes), c, c_bytes) == combine(a, combine(b, c, c_bytes), b_bytes + c_bytes)
