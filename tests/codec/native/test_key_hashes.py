"""Laws of hashes of keys: those of numpy are the same, and two that are the same are found."""

from __future__ import annotations

from typing import Any

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


def numbers(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


TEXTS = np.arange(8, dtype=np.uint8)
SHARED = np.arange(8, dtype=np.int64)
REFUSED: dict[str, tuple[Any, ...]] = {
    "an offset beyond the texts": (numbers(0, 9), TEXTS, 0, 0, numbers(0)),
    "a negative offset": (numbers(-1, 3), TEXTS, 0, 0, numbers(0)),
    "the largest offset": (numbers(0, 2**63 - 1), TEXTS, 0, 0, numbers(0)),
    "offsets that descend": (numbers(0, 3, 2), TEXTS, 0, 0, numbers(0, 0)),
    "too few offsets": (numbers(0, 3), TEXTS, 0, 0, numbers(0, 0)),
    "too many offsets": (numbers(0, 3, 4), TEXTS, 0, 0, numbers(0)),
    "no offset": (numbers(), TEXTS, 0, 0, numbers()),
    "offsets that are no numbers": (np.zeros(17, np.uint8), TEXTS, 0, 0, numbers(0)),
    "room that is no numbers": (numbers(0, 3), TEXTS, 0, 0, np.zeros(9, np.uint8)),
    "room in the offsets": (SHARED[:3], TEXTS, 0, 0, SHARED[2:4]),
    "room in the texts": (numbers(0, 0), SHARED.view(np.uint8), 0, 0, SHARED[:1]),
    "gaps": (np.arange(4, dtype=np.int64)[::2], TEXTS, 0, 0, numbers(0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused(name: str) -> None:
    assert extension is not None
    with pytest.raises((ValueError, BufferError), match=r"\w"):
        extension.hash_keys(*REFUSED[name])


@pytest.mark.parametrize("hashes", [np.zeros(7, np.uint8), np.zeros(4, np.uint64)[::2]], ids=["bytes", "gaps"])
def test_what_are_no_hashes_is_refused(hashes: np.ndarray[Any, Any]) -> None:
    assert extension is not None
    with pytest.raises(ValueError, match=r"\w"):
        extension.has_repeats(hashes)
