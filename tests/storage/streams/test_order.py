"""Laws of the order that a bounded cache can serve. It is part of every saved state, so some of it is pinned."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.keys import mixed
from packtrain._core.permutation import Permutation
from packtrain._storage.streams import order as module
from packtrain._storage.streams.order import ChunkOrder
from packtrain.errors import UsageError

KEYS = st.integers(0, 2**64 - 1)
SIZES = st.lists(st.integers(0, 12), max_size=25)
GOLDEN = [121203, 651312, 984040, 1029831, 220146, 687368]
GOLDEN_FEW = [7, 11, 16, 5, 13, 17, 6, 12, 14, 1, 10, 19, 2, 9, 18, 0, 4, 15, 8, 3]
LANES, WINDOW = st.integers(1, 9), st.integers(1, 5)


def bounds_of(sizes: list[int]) -> npt.NDArray[np.int64]:
    return np.array([0, *accumulate(sizes)], np.int64)


def by_hand(sizes: list[int], lanes: int, window: int, key: int) -> tuple[list[int], dict[tuple[int, int], list[int]]]:
    """The places of all positions, and the chunks of each window of each lane, computed with lists."""
    bounds, rows = bounds_of(sizes).tolist(), sum(sizes)
    chunks = Permutation(len(sizes), mixed(key, module._CHUNKS)).range(0, len(sizes)).tolist() if sizes else []
    line = [(chunk, place) for chunk in chunks for place in range(bounds[chunk], bounds[chunk + 1])]
    turns = rows // lanes
    count = max(1, math.ceil(turns * max(1, sum(size > 0 for size in sizes)) / max(1, window * rows)))
    places, used = [0] * rows, {}
    for lane in range(lanes):
        length = turns + (lane < rows % lanes)
        mine, line = line[:length], line[length:]
        mine = mine[::-1] if lane % 2 else mine
        edges = [number * turns // count for number in range(count)] + [length]
        for number, (start, stop) in enumerate(pairwise(edges)):
            records = mine[start:stop]
            used[lane, number] = list(dict.fromkeys(chunk for chunk, _ in records))
            if records:
                shuffle = Permutation(len(records), mixed(mixed(key, module._WINDOWS), lane, number))
                for turn in range(start, stop):
                    places[turn * lanes + lane] = records[shuffle[turn - start]][1]
    return places, used


@given(SIZES, LANES, WINDOW, KEYS)
def test_it_is_what_lists_would_make_of_it(sizes: list[int], lanes: int, window: int, key: int) -> None:
    order = ChunkOrder(bounds_of(sizes), lanes, window)
    places, used = by_hand(sizes, lanes, window, key)
    assert len(order) == len(places) and order.chunk_count == len(sizes)
    assert order.places(key, 0, len(order)).tolist() == places
    assert sorted(places) == list(range(sum(sizes)))
    visits = sorted((chunk, *where) for where, chunks in used.items() for chunk in chunks)
    assert list(zip(*(each.tolist() for each in order.visits(key)), strict=True)) == visits


@given(SIZES, LANES, WINDOW, KEYS, st.data())
def test_any_positions_may_be_asked_for(
    sizes: list[int], lanes: int, window: int, key: int, data: st.DataObject
) -> None:
    order = ChunkOrder(bounds_of(sizes), lanes, window)
    whole = order.places(key, 0, len(order))
    start, stop = sorted(data.draw(st.lists(st.integers(0, len(order)), min_size=2, max_size=2)))
    assert order.places(key, start, stop).tolist() == whole[start:stop].tolist()
    chosen = data.draw(st.lists(st.integers(0, len(order) - 1), max_size=20)) if len(order) else []
    found = order.places_of(key, np.array(chosen, np.int64))
    assert found.dtype == np.int64 and found.tolist() == whole[chosen].tolist()


@given(SIZES, LANES, WINDOW)
def test_turns_and_windows_agree(sizes: list[int], lanes: int, window: int) -> None:
    order = ChunkOrder(bounds_of(sizes), lanes, window)
    for lane in range(lanes):
        turns, shared = len(range(lane, len(order), lanes)), len(order) // lanes
        edges = [number * shared // order.windows for number in range(order.windows)]
        # What a lane has more than others is in its last window.
        assert [order.window_of(turn) for turn in range(turns)] == [
            min(bisect_right(edges, turn), order.windows) - 1 for turn in range(turns)
        ]


@given(st.integers(1, 60), st.integers(1, 9), WINDOW, st.integers(2, 9), KEYS)
def test_a_window_uses_few_chunks(chunks: int, lanes: int, window: int, records: int, key: int) -> None:
    order = ChunkOrder(bounds_of([records] * chunks), lanes, window)
    _, lane, number = order.visits(key)
    # One more for each edge that is within a chunk.
    assert Counter(zip(lane.tolist(), number.tolist(), strict=True)).most_common(1)[0][1] <= window + 2


def test_what_saved_states_rely_on() -> None:
    order = ChunkOrder(np.arange(0, 1_281_168, 97)[:13_000], 32, 2)
    assert order.places(12345, 1_000_000, 1_000_006).tolist() == GOLDEN
    few = ChunkOrder(bounds_of([5, 0, 4, 6, 1, 4]), 3, 1)
    assert few.places(1, 0, 20).tolist() == GOLDEN_FEW


def test_lines_of_few_epochs_are_kept() -> None:
    order = ChunkOrder(bounds_of([2] * 100))
    first = order.line(1)
    assert order.line(1) is first
    for key in range(2, 10):
        order.line(key)
    assert len(order._lines) == 2 and order.line(1) is not first
    assert not order.__getstate__()["_lines"]


def test_what_cannot_be_is_refused() -> None:
    for bounds, options, message in (
        ([], {}, "ascend from 0"),
        ([1, 2], {}, "ascend from 0"),
        ([0, 3, 2], {}, "ascend from 0"),
        ([0, 1], {"lanes": 0}, "lanes"),
        ([0, 1], {"window": 0}, "window"),
    ):
        with pytest.raises(UsageError, match=message):
            ChunkOrder(np.array(bounds, np.int64), **options)
    order = ChunkOrder(bounds_of([2, 3]))
    for start, stop in ((-1, 2), (0, 6), (3, 2)):
        with pytest.raises(IndexError, match=rf"positions {start} to {stop} of an order of 5 positions"):
            order.places(0, start, stop)
