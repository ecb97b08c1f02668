"""Laws of the shuffle. What it maps to what is part of every plan on disk, so some of it is pinned."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.permutation import Permutation, Permutations

SIZES = sorted({1, 2, 3, *(2**k + d for k in range(2, 13) for d in (-1, 0, 1))})
SEEDS = st.integers(-(2**70), 2**70)


@given(st.integers(1, 3000), SEEDS)
def test_it_is_a_bijection_for_any_size_and_seed(n: int, seed: int) -> None:
    permutation = Permutation(n, seed)
    assert sorted(permutation.range(0, n).tolist()) == list(range(n)) == sorted(permutation[i] for i in range(n))
    assert len(permutation) == n


@given(st.integers(1, 2**62 - 1), SEEDS, st.data())
def test_one_and_many_agree(n: int, seed: int, data: st.DataObject) -> None:
    permutation = Permutation(n, seed)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, min(n, start + 20)))
    images = permutation.range(start, stop)
    assert images.dtype == np.int64
    assert images.tolist() == [permutation[i] for i in range(start, stop)]
    assert all(0 <= image < n for image in images)


@given(st.lists(st.tuples(st.integers(1, 2**53 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=5), st.data())
def test_several_at_once_are_those_one_by_one(kinds: list[tuple[int, int]], data: st.DataObject) -> None:
    which = data.draw(st.lists(st.integers(0, len(kinds) - 1), max_size=20))
    indices = [data.draw(st.integers(0, kinds[each][0] - 1)) for each in which]
    sizes, seeds = zip(*kinds, strict=True)
    several = Permutations(np.array(sizes, np.int64), np.array(seeds, np.uint64))
    found = several.at(np.array(which, np.int64), np.array(indices, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == [Permutation(*kinds[each])[index] for each, index in zip(which, indices, strict=True)]


@pytest.mark.parametrize("n", SIZES)
def test_several_at_once_of_any_number_of_bits(n: int) -> None:
    several = Permutations(np.array([n]), np.array([7], np.uint64))
    found = Permutation(n, 7).range(0, n).tolist()
    assert several.at(np.zeros(n, np.int64), np.arange(n)).tolist() == found
    assert sorted(found) == list(range(n))


def test_what_is_on_disk_stays_what_it_means() -> None:
    assert Permutation(10, 0).range(0, 10).tolist() == [1, 0, 9, 3, 5, 6, 2, 8, 7, 4]
    assert Permutation(10, 1).range(0, 10).tolist() == [2, 6, 4, 8, 5, 7, 0, 9, 3, 1]
    assert Permutation(1000, 7).range(0, 8).tolist() == [413, 755, 422, 873, 886, 329, 82, 834]
    assert [Permutation(10**12, -1)[i] for i in range(3)] == [565861536809, 32677050811, 99482079034]
    assert Permutation(2**62 - 1, 123)[2**62 - 2] == 3222468973424508473
    everything = Permutation(2**17, 42).range(0, 2**17).astype("<i8").tobytes()
    assert hashlib.sha256(everything).hexdigest() == "b7e503913e68c14d18ced685ab49c4e4f9731573823d6e44df15aa4a19f626b5"


@pytest.mark.parametrize("seed", range(5))
def test_it_shuffles(seed: int) -> None:
    # As numpy's own shuffle would: the places of any tenth are spread evenly, and neighbours do not stay neighbours.
    n, tenths = 10_000, 10
    images = Permutation(n, seed).range(0, n)
    counts = np.histogram2d(np.arange(n), images, bins=tenths)[0]
    chi_squared = ((counts - n / tenths**2) ** 2 / (n / tenths**2)).sum()
    assert chi_squared < 160, "beyond 1 in 10,000 for 81 degrees of freedom"
    assert np.sum(np.abs(np.diff(images)) == 1) < 12
    assert np.sum(images == np.arange(n)) < 10


@pytest.mark.parametrize("n", [0, -1, 2**62])
def test_a_size_outside_the_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=r"n must be in \[1, 2\*\*62\)"):
        Permutation(n, 0)


def test_an_index_outside_the_range_is_refused() -> None:
    permutation = Permutation(5, 0)
    for index in (-1, 5):
        with pytest.raises(IndexError, match=rf"{index} is outside \[0, 5\)"):
            permutation[index]
    for start, stop in ((-1, 2), (0, 6), (3, 2)):
        with pytest.raises(IndexError, match=r"is outside \[0, 5\)"):
            permutation.range(start, stop)
    assert permutation.range(5, 5).tolist() == []
