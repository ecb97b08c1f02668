"""Laws of chunks: whole records of one shard, of a size that is worth a request."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packtrain._storage.streams.cutting import ENOUGH, MOST, chunk_bounds, chunk_starts

SIZES = st.lists(st.one_of(st.integers(0, 4 << 20), st.integers(0, 20 << 20)), max_size=60)


@given(SIZES)
def test_chunks_are_neither_large_nor_small(sizes: list[int]) -> None:
    starts = chunk_starts(np.array(sizes, np.int64))
    assert starts == sorted(set(starts)) and (starts[0] == 0 if sizes else starts == [])
    chunks = [sizes[start:stop] for start, stop in pairwise([*starts, len(sizes)])]
    assert all(sum(chunk) <= MOST or len(chunk) == 1 for chunk in chunks)
    # It could not have taken the next record, too, unless it had enough.
    assert all(sum(chunk) >= ENOUGH or sum(chunk) + after[0] > MOST for chunk, after in pairwise(chunks))


@given(st.lists(st.lists(st.integers(0, 20 << 20), max_size=20), max_size=6))
def test_no_chunk_lies_in_two_shards(shards: list[list[int]]) -> None:
    bounds = chunk_bounds(np.array(sizes, np.int64) for sizes in shards).tolist()
    ends = np.cumsum([0, *map(len, shards)]).tolist()
    assert set(ends) <= set(bounds)
    assert bounds[0] == 0 and bounds[-1] == ends[-1] and bounds == sorted(set(bounds))


def test_a_shard_of_small_records_in_numbers() -> None:
    mib = np.full(50, 1 << 20)
    # The last two would be a chunk of their own otherwise.
    assert chunk_starts(mib) == [0, 12, 24, 36]
    assert chunk_starts(np.full(54, 1 << 20)) == [0, 12, 24, 36, 48]
    assert chunk_starts(np.array([1, 30 << 20, 1])) == [0, 1, 2]
