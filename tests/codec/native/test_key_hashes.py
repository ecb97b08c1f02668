"""Laws of hashes of keys: those of numpy are the same, and two that are the same are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packtrain._codec.native import extension
from packtrain._packer import key_hashes

pytestmark = pytest.mark.skipif(extension is None, reason="the extension is not installed")

MOST = (1 << 64) - 1


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, MOST), st.integers(0, 9), st.integers(0, 9))
def test_hashes_are_those_of_numpy(keys: list[bytes], seed: int, number: int, before: int) -> None:
    ends = np.cumsum([before, *map(len, keys)])
    texts = np.frombuffer(b"x" * before + b"".join(keys), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_hashes, "extension", None)
        expected = key_hashes.key_hashes(ends, texts, seed, number)
    assert key_hashes.key_hashes(ends, texts, seed, number).tolist() == expected.tolist()


few = st.integers(0, 30)


@given(st.lists(few | few.map(lambda bits: bits << 59) | st.integers(0, MOST), max_size=30))
@example([0, 0])
@example([0, 1, 0])
@example([0])
@example([])
def test_repeats_are_found(hashes: list[int]) -> None:
    assert extension is not None
    assert extension.has_repeats(np.array(hashes, np.uint64)) == (len(set(hashes)) < len(hashes))


@pytest.mark.parametrize("shift", [0, 20, 60])
@pytest.mark.parametrize("place", [0, 99_999, 199_998])
def test_repeats_are_found_among_many(place: int, shift: int) -> None:
    assert extension is not None
    # By their low bits alone, by both, and with few buckets that have any: all of them differ.
    hashes = np.arange(200_000, dtype=np.uint64) * np.uint64(2 * MOST // 400_001 | 1 if shift == 60 else 1 << shift)
    assert not extension.has_repeats(hashes)
    hashes[-1] = hashes[place]
    assert extension.has_repeats(hashes)
