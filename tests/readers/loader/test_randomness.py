"""Laws of the random numbers. What they are for given arguments is part of every saved state, so some are pinned.

Keys are fixed, so these tests pass or fail for ever. Limits are such that truly random numbers would fail any of the
statistics below with a probability of less than `FALSE_ALARM`, all of them together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.keys import mixed
from packtrain._readers.loader.randomness import preserved, seed_all, uniforms

FALSE_ALARM = 1e-6
STATISTICS = 4
GOLDEN_MIXED = [13608149317741381227, 16171810823986729605, 16613338946343043936]
GOLDEN_UNIFORMS = [
    [
        0.48278550367035644,
        0.2144837491378877,
        0.7269857564012464,
        0.0021312932782635574,
        0.8945268200162143,
        0.7851426511656199,
    ],
    [
        0.31875338140694653,
        0.4559843932364882,
        0.2949616104697529,
        0.6305292134343118,
        0.18165613512393342,
        0.4773430760775357,
    ],
]
GOLDEN_FAR = [[0.20353554039193045]]
GOLDEN_SEEDED = (0.48029912559899257, 0.4899414156600659, 0.7921425255224415)
INTEGERS = st.integers(-(2**70), 2**70)


def limit(comparisons: int) -> float:
    """A bound on the largest magnitude of this many standard normal numbers."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM / STATISTICS / comparisons / 2)


def largest_correlation(samples: npt.NDArray[np.float64]) -> tuple[float, int]:
    """The largest z of all pairs of rows of `samples` [rows, n], and the number of pairs."""
    pairs = np.triu_indices(len(samples), 1)
    correlation = np.asarray(np.corrcoef(samples))[pairs]
    return float(np.abs(correlation).max() * np.sqrt(samples.shape[1])), len(pairs[0])


def test_what_is_in_saved_states_stays_what_it_means() -> None:
    assert mixed() == 0
    assert mixed(0) == 0xE220A8397B1DCDAF  # the first output of splitmix64 with seed 0
    assert [mixed(1, 2), mixed(2, 1), mixed(1, 2, 0)] == GOLDEN_MIXED
    assert uniforms(mixed(3, 4), 5, 7, 6).tolist() == GOLDEN_UNIFORMS
    assert uniforms(2**64 - 1, 2**40, 2**40 + 1, 1).tolist() == GOLDEN_FAR


@given(st.lists(INTEGERS, min_size=1, max_size=4), st.data())
def test_every_value_counts(values: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    other = data.draw(INTEGERS.filter(lambda value: (value - values[place]) % 2**64))
    assert mixed(*values) != mixed(*values[:place], other, *values[place + 1 :])
    assert mixed(*values) == mixed(*(value % 2**64 for value in values))
    assert 0 <= mixed(*values) < 2**64


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 20), st.integers(0, 20), st.integers(0, 9))
def test_the_numbers_of_a_position_do_not_depend_on_the_batch(
    key: int, start: int, first: int, second: int, draws: int
) -> None:
    whole = uniforms(key, start, start + first + second, draws)
    middle = start + first
    assert whole.shape == (first + second, draws) and whole.dtype == np.float64
    parts = [uniforms(key, start, middle, draws), uniforms(key, middle, middle + second, draws)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert ((whole >= 0) & (whole < 1)).all()


def test_no_two_numbers_of_a_key_are_equal() -> None:
    for draws in (1, 3, 4, 5):
        assert len(np.unique(uniforms(7, 0, 1000, draws))) == 1000 * draws


@pytest.mark.parametrize("draws", [1, 7])
def test_numbers_are_uniform(draws: int) -> None:
    # The Kolmogorov-Smirnov statistic of each column; in the limit, it exceeds x with probability 2 exp(-2 x^2).
    n = 20_000
    numbers = np.sort(uniforms(mixed(1, draws), 0, n, draws), axis=0)
    steps = np.arange(n)[:, None] / n
    distance = np.maximum(numbers - steps, steps + 1 / n - numbers).max()
    assert np.sqrt(n) * distance < np.sqrt(np.log(2 * draws * 2 * STATISTICS / FALSE_ALARM) / 2)


def test_draws_of_a_position_are_uncorrelated() -> None:
    largest, pairs = largest_correlation(uniforms(mixed(0, 0), 0, 20_000, 12).T)
    assert largest < limit(pairs)


def test_seeds_and_epochs_are_uncorrelated() -> None:
    keys = [mixed(seed, epoch) for seed in range(8) for epoch in range(8)]
    largest, pairs = largest_correlation(np.stack([uniforms(key, 0, 2000, 2).ravel() for key in keys]))
    assert largest < limit(pairs)


def drawn() -> tuple[float, float, float]:
    """One number of each of the three generators."""
    return random.random(), float(np.random.random()), float(torch.rand((), dtype=torch.float64))


def test_a_sample_is_seeded_by_key_and_position_alone() -> None:
    with preserved():
        seed_all(5, 6)
        first = drawn()
        # Nor may a number survive that a generator has kept for its next call.
        random.gauss()
        np.random.standard_normal()
        torch.randn(1)
        seed_all(5, 6)
        assert drawn() == first == GOLDEN_SEEDED
        for key, position in ((5, 7), (6, 5), (4, 6)):
            seed_all(key, position)
            assert not set(drawn()) & set(first)


def test_the_three_generators_are_unrelated() -> None:
    # With the same seed for both, numpy and torch would agree on every toss.
    tosses: list[Callable[[], int]] = [
        lambda: random.getrandbits(1),
        lambda: int(np.random.randint(2)),
        lambda: int(torch.randint(2, ())),
    ]
    results = np.empty((3, 2000))
    with preserved():
        for position in range(results.shape[1]):
            seed_all(1, position)
            results[:, position] = [toss() for toss in tosses]
    largest, pairs = largest_correlation(results)
    assert largest < limit(pairs)


@pytest.mark.parametrize("fails", [False, True])
def test_the_users_states_are_put_back(fails: bool) -> None:
    with preserved():
        seed_all(1, 1)
        expected = drawn() + drawn()
        seed_all(1, 1)
        before = drawn()
        try:
            with preserved():
                seed_all(2, 2)
                drawn()
                if fails:
                    raise KeyError
        except KeyError:
            pass
        assert before + drawn() == expected
