"""Laws of the orders. Which row an order gives at a position is part of every saved state, so some of it is pinned."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.keys import mixed
from packtrain._core.permutation import Permutation
from packtrain._readers.loader import order as module
from packtrain._readers.loader.order import Buffered
from packtrain._readers.loader.randomness import uniforms
from packtrain.errors import UsageError
from packtrain.orders import BlockShuffled, Order, Sequential, Shuffled, Weighted
from packtrain.testing import OrderContract

GOLDEN_SHUFFLED = [1135741, 806423, 825989, 681688, 1065027, 1151452]
GOLDEN_BLOCKS = [906654, 1140299, 1140305, 381530, 1005553, 396613]
GOLDEN_FEW = [6, 10, 7, 8, 5, 9, 17, 18, 1, 16, 19, 0, 4, 14, 15, 11, 3, 12, 2, 13]
GOLDEN_WEIGHTED = [821, 492, 504, 832, 759, 672, 449, 998]
KEYS = st.integers(0, 2**64 - 1)


class OnDisk:
    """A dataset whose rows lie on disk in a given order."""

    def __init__(self, by_place: npt.ArrayLike) -> None:
        self._by_place = np.asarray(by_place, np.int64)

    def __len__(self) -> int:
        return len(self._by_place)

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._by_place[places]


def in_blocks(rows: int, block: int = 64, window: int = 128) -> BlockShuffled:
    """A dataset whose rows lie on disk in the order of their numbers."""
    return BlockShuffled(OnDisk(np.arange(rows)), block=block, window=window)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    size, block, window = draw(st.integers(0, 300)), draw(st.integers(1, 40)), draw(st.integers(1, 9))
    weights = [1 + row % 3 for row in range(size)]
    samples = draw(st.integers(0, 300)) if size else 0
    choices = (Sequential(size), Shuffled(size), in_blocks(size, block, window), Weighted(weights, samples))
    return draw(st.sampled_from(choices))


class TestSequential(OrderContract):
    random = False

    def order(self, rows: int) -> Order:
        return Sequential(rows)


class TestShuffled(OrderContract):
    def order(self, rows: int) -> Order:
        return Shuffled(rows)


class TestBlockShuffled(OrderContract):
    sizes = st.integers(0, 200)

    def order(self, rows: int) -> Order:
        return in_blocks(rows, 1 + rows * 7 % 60, 1 + rows % 20)


class TestWeighted(OrderContract):
    each_row_once = False

    def order(self, rows: int) -> Order:
        return Weighted([1 + row % 3 for row in range(rows)], rows * 5 // 4)


@given(st.integers(1, 2**40), KEYS, st.data())
def test_shuffled_is_the_permutation_of_the_key(rows: int, key: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, rows - 1))
    stop = min(rows, start + 5)
    permutation = Permutation(rows, key)
    assert Shuffled(rows).rows(key, start, stop).tolist() == [permutation[i] for i in range(start, stop)]


def test_sequential_is_every_row_in_turn() -> None:
    assert Sequential(7).rows(5, 2, 7).tolist() == [2, 3, 4, 5, 6]


def blocks_by_hand(by_place: list[int], block: int, window: int, key: int) -> list[int]:
    """`BlockShuffled`, computed with lists."""
    rows = len(by_place)
    turn = mixed(key, module._ROTATION) % max(1, rows)
    turned = by_place[turn:] + by_place[:turn]
    whole, rest = rows // block, rows % block
    blocks = [turned[i * block : (i + 1) * block] for i in range(whole)]
    blocks = [blocks[Permutation(whole, mixed(key, module._BLOCKS))[i]] for i in range(whole)]
    count = max(1, math.ceil(whole / window))
    result = []
    for number in range(count):
        records = list(chain.from_iterable(blocks[number * whole // count : (number + 1) * whole // count]))
        if number == count - 1:
            records += turned[rows - rest :]
        if records:
            shuffle = Permutation(len(records), mixed(key, module._WINDOWS, number))
            result += [records[shuffle[i]] for i in range(len(records))]
    return result


@given(st.permutations(range(70)), st.integers(0, 70), st.integers(1, 20), st.integers(1, 9), KEYS)
def test_blocks_are_what_lists_would_make_of_them(
    permutation: list[int], rows: int, block: int, window: int, key: int
) -> None:
    by_place = [row for row in permutation if row < rows]
    order = BlockShuffled(OnDisk(by_place), block=block, window=window)
    assert order.rows(key, 0, rows).tolist() == blocks_by_hand(by_place, block, window, key)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any), st.integers(1, 50), KEYS)
def test_weighted_inverts_the_cumulated_weights(weights: list[int], samples: int, key: int) -> None:
    numbers = uniforms(mixed(key, module._DRAWS), 0, samples, 1)[:, 0].tolist()
    cumulated = list(accumulate(weights))
    expected = [bisect_right(cumulated, Fraction(number) * cumulated[-1]) for number in numbers]
    assert Weighted(weights, samples).rows(key, 0, samples).tolist() == expected


EXTREMES = st.sampled_from([0.0, 5e-324, 1e-300, 1e-16, 1.0, 1e16, 1e300])


@given(st.lists(EXTREMES, min_size=1, max_size=12).filter(any), KEYS)
def test_a_weight_of_zero_is_never_drawn(weights: list[float], key: int) -> None:
    drawn = Weighted(weights, 200).rows(key, 0, 200)
    assert ((drawn >= 0) & (drawn < len(weights))).all()
    assert all(weights[row] > 0 for row in drawn)


@pytest.mark.parametrize(("number", "row"), [(0.0, 1), (0.39, 1), (0.4, 3), (1.0, 3)])
def test_not_even_by_a_number_on_the_border(monkeypatch: pytest.MonkeyPatch, number: float, row: int) -> None:
    # 1 stands for a product that was rounded up to the total.
    monkeypatch.setattr(module, "uniforms", lambda key, start, stop, draws: np.full((stop - start, draws), number))
    assert Weighted([0, 2, 0, 3, 0, 0]).rows(0, 0, 1).tolist() == [row]


@given(orders(), st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1), st.integers(0, 60), st.booleans())))
def test_rows_computed_ahead_are_the_same(order: Order, calls: list[tuple[int, float, int, bool]]) -> None:
    ahead, last = Buffered(order), 0
    for key, place, length, follow in calls:
        start = last if follow else int(place * len(order))
        last = min(len(order), start + length)
        rows = ahead.rows(key, start, last)
        assert rows.tolist() == order.rows(key, start, last).tolist()
        # Changing an array that was returned changes no other.
        rows[:] = -1


def test_whoever_asks_in_sequence_makes_few_calls() -> None:
    calls = []

    class Counted(Shuffled):
        def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
            calls.append(stop - start)
            return super().rows(key, start, stop)

    ahead = Buffered(Counted(50_000))
    for start in range(0, 50_000, 100):
        ahead.rows(7, start, start + 100)
    assert len(calls) < 10 and sum(calls) < 51_000
    calls.clear()
    for start in range(0, 50_000, 200):
        ahead.rows(8, start, start + 100)
    assert calls == [100] * 250


@pytest.mark.parametrize("order", [Shuffled(5), Buffered(Shuffled(5))])
def test_positions_outside_an_epoch_are_named(order: Order) -> None:
    for start, stop in ((-1, 2), (0, 6), (3, 2), (6, 6)):
        with pytest.raises(IndexError, match=rf"positions {start} to {stop} of an order of 5 positions"):
            order.rows(0, start, stop)
    assert order.rows(0, 5, 5).tolist() == []


def test_nothing_is_drawn_of_weights_that_are_all_zero() -> None:
    order = Weighted([0, 0], 0)
    assert len(order) == 0 and order.rows(1, 0, 0).tolist() == []


@pytest.mark.parametrize("weights", [[1, -1], [1, math.nan], [1, math.inf], [[1, 2]], 3.0])
def test_weights_that_are_none_are_refused(weights: Any) -> None:
    with pytest.raises(UsageError, match="one finite number per row, none of them negative"):
        Weighted(weights)


@pytest.mark.parametrize(("weights", "samples"), [([0, 0], None), ([], 1), ([1e308, 1e308], None)])
def test_weights_that_cannot_be_drawn_from_are_refused(weights: list[float], samples: int | None) -> None:
    with pytest.raises(UsageError, match="must not be all zero, and their sum must be finite"):
        Weighted(weights, samples)


def test_other_nonsense_is_refused() -> None:
    for make in (Sequential, Shuffled):
        with pytest.raises(UsageError, match="rows=-1: expected a whole number, at least 0"):
            make(-1)
    with pytest.raises(UsageError, match="samples=-1: expected a whole number, at least 0"):
        Weighted([1], -1)
    for sizes in ({"block": 0}, {"window": 0}):
        with pytest.raises(UsageError, match=r"(block|window)=0: expected a whole number, at least 1"):
            BlockShuffled(OnDisk([0]), **sizes)
    with pytest.raises(
        UsageError, match=r"an object of type list does not know where its records lie on disk.*or use Shuffled"
    ):
        BlockShuffled([1, 2])  # type: ignore[arg-type]


def test_what_is_in_saved_states_stays_what_it_means() -> None:
    key = mixed(1, 2)
    assert Shuffled(1_281_167).rows(key, 1000, 1006).tolist() == GOLDEN_SHUFFLED
    assert in_blocks(1_281_167).rows(key, 8100, 8106).tolist() == GOLDEN_BLOCKS
    assert in_blocks(20, 3, 2).rows(key, 0, 20).tolist() == GOLDEN_FEW
    assert Weighted(np.arange(1000)).rows(key, 500, 508).tolist() == GOLDEN_WEIGHTED
