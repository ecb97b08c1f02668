"""The order that a bounded cache can serve: arithmetic from position to place, by chunks of the dataset.

A key puts the chunks into a random order, one after the other: a *line* of all records. The line is cut into *lanes*.
Position p of an epoch belongs to lane ``p % lanes``, and is turn ``p // lanes`` of it. Along each lane, *windows* of a
few chunks follow each other, and the records of a window are shuffled. So at any time records come from one window of
each lane, whoever takes a whole lane needs the chunks of no other, and a chunk is used up within a short time.

Every other lane runs backwards. So two neighbours reach the chunk that lies on their common border at the same time,
either as they begin or as they end.

Saved states rely on what this module returns, so it must never change.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import whole
from packtrain._core.errors import UsageError
from packtrain._core.keys import mixed, mixed_arrays
from packtrain._core.permutation import Permutation, Permutations

Integers = npt.NDArray[np.int64]

# Mixed into the key, from which others draw other numbers.
_CHUNKS, _WINDOWS = range(0x6368756E6B73, 0x6368756E6B75)
# Number of chunks that are permuted in one go, which takes a hundred bytes for each.
_AT_ONCE: Final = 1 << 18
# The present epoch and the next.
_LINES: Final = 2


class ChunkSequence(NamedTuple):
    """All chunks in the order of an epoch.

    Attributes:
        chunks: Their numbers, int32 or int64 [chunks].
        starts: Where each begins in the line of records, and where the last ends, int64 [chunks + 1].
    """

    chunks: npt.NDArray[Any]
    starts: Integers


class Visits(NamedTuple):
    """Uses of chunks by windows, sorted by chunk, lane and window: all three int64 [visits].

    Attributes:
        chunk: The chunk.
        lane: The lane that uses it.
        window: The window of the lane.
    """

    chunk: Integers
    lane: Integers
    window: Integers


class ChunkOrder:
    """In which order an epoch goes through the places of a dataset in chunks.

    For each of the two last keys, the line is kept in memory: 12 bytes for each chunk.

    Args:
        bounds: Where each chunk begins, and where the last ends: places, int64 [chunks + 1], ascending from 0.
        lanes: Number of lanes.
        window: Number of chunks of a lane whose records are shuffled together, on average.

    Raises:
        UsageError: `bounds` is not such an array, or `lanes` or `window` is less than 1.
    """

    def __init__(self, bounds: Integers, lanes: int = 32, window: int = 2) -> None:
        if len(bounds) < 1 or bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise UsageError("the bounds of chunks must be places that ascend from 0")
        self.bounds: Final = bounds
        self.lanes: Final = whole("lanes", lanes, 1)
        self.window: Final = whole("window", window, 1)
        self._rows: Final = int(bounds[-1])
        self._turns: Final = self._rows // self.lanes
        """Number of turns of every lane. The first lanes have one more."""
        chunks = max(1, int(np.count_nonzero(np.diff(bounds))))
        self.windows: Final = max(1, -(-self._turns * chunks // max(1, self.window * self._rows)))
        """Number of windows of each lane."""
        self._lines: dict[int, ChunkSequence] = {}

    def __len__(self) -> int:
        """Number of positions of an epoch."""
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lines": {}}

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return len(self.bounds) - 1

    def places(self, key: int, start: int, stop: int) -> Integers:
        """The places of the records at positions `start` to `stop`, int64 [stop - start].

        Raises:
            IndexError: There are no such positions.
        """
        if not 0 <= start <= stop <= self._rows:
            raise IndexError(f"positions {start} to {stop} of an order of {self._rows} positions")
        return self.places_of(key, np.arange(start, stop, dtype=np.int64))

    def places_of(self, key: int, positions: Integers) -> Integers:
        """The places of the records at some positions, all of which must exist; both int64 [n]."""
        if not len(positions):
            return np.empty(0, np.int64)
        lanes, turns = positions % self.lanes, positions // self.lanes
        window = self._window_of(turns)
        codes, which = np.unique(lanes * self.windows + window, return_inverse=True)
        lane, window = np.divmod(codes, self.windows)
        first, end = self._edges(lane, window)
        shuffles = Permutations(end - first, mixed_arrays(mixed(key, _WINDOWS), lane, window))
        offsets = first[which] + shuffles.at(which, turns - first[which])
        line = self.line(key)
        along = self._along(lanes, offsets)
        # In order, so that what a search looks at is in the processor's cache.
        order = np.argsort(along)
        along = along[order]
        found = np.searchsorted(line.starts, along, side="right") - 1
        places = np.empty(len(positions), np.int64)
        places[order] = self.bounds[line.chunks[found]] + along - line.starts[found]
        return places

    def window_of(self, turn: int) -> int:
        """The number of the window in which a lane takes this turn."""
        return int(self._window_of(np.array([turn]))[0])

    def visits(self, key: int) -> Visits:
        """All uses of all chunks in an epoch: in about as many visits as there are chunks, windows and lanes."""
        line = self.line(key)
        lane, window = (grid.ravel() for grid in np.indices((self.lanes, self.windows)))
        first, end = self._edges(lane, window)
        lane, window, first, end = (values[first < end] for values in (lane, window, first, end))
        low, high = self._along(lane, first), self._along(lane, end - 1)
        low, high = np.minimum(low, high), np.maximum(low, high)
        first = np.searchsorted(line.starts, low, side="right") - 1
        counts = np.searchsorted(line.starts, high, side="right") - first
        at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        chunk, lane, window = line.chunks[at].astype(np.int64), np.repeat(lane, counts), np.repeat(window, counts)
        order = np.lexsort((window, lane, chunk))
        order = order[self.bounds[chunk[order]] < self.bounds[chunk[order] + 1]]
        return Visits(chunk[order], lane[order], window[order])

    def line(self, key: int) -> ChunkSequence:
        """The chunks in the order of an epoch."""
        found = self._lines.get(key)
        if found is None:
            found = self._make_line(key)
            # A new dictionary: other threads may be looking at this one.
            self._lines = dict([*self._lines.items(), (key, found)][-_LINES:])
        return found

    def _make_line(self, key: int) -> ChunkSequence:
        count = self.chunk_count
        chunks = np.empty(count, np.int32 if count < 1 << 31 else np.int64)
        starts = np.zeros(count + 1, np.int64)
        if count:
            order = Permutation(count, mixed(key, _CHUNKS))
            for start in range(0, count, _AT_ONCE):
                stop = min(count, start + _AT_ONCE)
                chunks[start:stop] = found = order.range(start, stop)
                starts[start + 1 : stop + 1] = self.bounds[found + 1] - self.bounds[found]
        return ChunkSequence(chunks, np.cumsum(starts, out=starts))

    def _window_of(self, turns: Integers) -> Integers:
        # The largest w with w * turns // windows <= turn. What the first lanes have more is in the last window.
        if not self._turns:
            return np.zeros_like(turns)
        return np.minimum(((turns + 1) * self.windows - 1) // self._turns, self.windows - 1)

    def _edges(self, lane: Integers, window: Integers) -> tuple[Integers, Integers]:
        """The first turn of windows, and one past their last one."""
        more = (window == self.windows - 1) & (lane < self._rows % self.lanes)
        return window * self._turns // self.windows, (window + 1) * self._turns // self.windows + more

    def _along(self, lane: Integers, offset: Integers) -> Integers:
        """Return the positions in the line of the records at these offsets of lanes."""
        rest = self._rows % self.lanes
        begin = lane * self._turns + np.minimum(lane, rest)
        last = begin + self._turns - (lane >= rest)
        return np.where(lane % 2 == 0, begin + offset, last - offset)
