"""The choice of chunks to fetch and to evict: a state machine without processes, files or clocks.

The order of an epoch is arithmetic, and so is that of the next. So it is known when each chunk is used next: by any
*reader*, which is one rank of one job. Time is counted in windows of the reader's lanes, and from one reader to another
in records that a reader has still to read.

What is fetched: first what somebody waits for. Then what is missing of the present and the next window of each reader,
the most urgent first. Then, as long as there is free room, what comes later.

What goes: the chunk whose next use is farthest away (Belady's rule). A chunk of the present or the next window of any
reader stays, unless somebody waits for another chunk and nothing else can go; one that a ticket names always stays.
Fetching farther ahead at the price of another chunk would be a mistake: those that are read meanwhile, whose next use
is in the next epoch, are better victims than what can go now.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.typed import MOST, Between

from .order import ChunkOrder, Integers, Visits
from .order_files import OrderChunks

Distances = npt.NDArray[np.float64]
OrderName = tuple[str | None, int, int]
"""Digest of the chunks, None for those of the cache; lanes and window."""

IN_FLIGHT: Final = 16
"""Chunks that are fetched at the same time."""
NEVER: Final = 1 << 62
_MOST_RANKS: Final = 1 << 24
_MOST_LANES: Final = 1 << 12


@dataclass(frozen=True)
class Reading:
    """Position of a rank in its epochs, and the order of these.

    Attributes:
        rank: Its number.
        world_size: Number of ranks of the job.
        batch_size: Records that a rank takes in a step.
        lanes: Lanes of the order.
        window: Chunks of a lane that are shuffled together.
        keys: Keys of this epoch and, if there is one, of the next.
        consumed: Positions of this epoch that all ranks have used up.
        in_flight: Positions after these that are being worked on.
    """

    rank: Annotated[int, Between(0, _MOST_RANKS)]
    world_size: Annotated[int, Between(1, _MOST_RANKS)]
    batch_size: Annotated[int, Between(1, MOST)]
    lanes: Annotated[int, Between(1, _MOST_LANES)]
    window: Annotated[int, Between(1, MOST)]
    keys: tuple[Annotated[int, Between(0, (1 << 64) - 1)], ...]
    consumed: Annotated[int, Between(0, MOST)] = 0
    in_flight: Annotated[int, Between(0, MOST)] = 0


class Policy:
    """Decides for one cache.

    Args:
        bounds: Where each chunk begins, and where the last one ends: places, int64 [chunks + 1].
        sizes: Bytes that each chunk takes in the cache, int64 [chunks].
        budget: Bytes that all chunks may take together.

    Attributes:
        budget: Bytes that all chunks may take together. It may change.
        present: True for chunks that are in the cache, bool [chunks].
        fetching: Chunks that are under way.
        used: Bytes of the chunks that are in the cache or under way.
    """

    def __init__(self, bounds: Integers, sizes: Integers, budget: int) -> None:
        self._bounds: Final = bounds
        self._sizes: Final = sizes
        self.budget = budget
        self.present: Final = np.zeros(len(sizes), bool)
        self.fetching: Final = set[int]()
        self.used = 0
        self._asked: Final = dict[int, None]()
        self._tickets: Final = Counter[int]()
        self._readers: Final = dict[Hashable, _Reader]()
        self._orders: dict[OrderName, ChunkOrder] = {}
        self._visits: dict[tuple[OrderName, int], Visits] = {}
        self._in_order_of_place = 0

    @property
    def free(self) -> int:
        """Bytes of the budget that nothing takes; negative if it was lowered."""
        return self.budget - self.used

    def read(self, reader: Hashable, reading: Reading, chunks: OrderChunks | None = None) -> None:
        """A reader says where it is, for the first time or again.

        Args:
            reader: Who says it.
            reading: Where it is.
            chunks: The chunks of its order; None: they are those of the cache.
        """
        known = self._readers.get(reader)
        if known is None or not known.covers(reading, _name(reading, chunks)):
            known = self._readers[reader] = self._reader(reading, chunks)
            self._forget_visits()
        known.move(reading)

    def forget(self, reader: Hashable) -> bool:
        """A reader has ended. Returns False if there is no such reader."""
        known = self._readers.pop(reader, None) is not None
        if known:
            self._forget_visits()
        return known

    def fill(self, on: bool) -> None:
        """Somebody wants all chunks, in the order of their places; or no longer. Calls are counted."""
        self._in_order_of_place += 1 if on else -1

    def ask(self, chunk: int) -> None:
        """Somebody waits for a chunk."""
        if not self.present[chunk]:
            self._asked[chunk] = None

    def awaited(self, chunk: int) -> bool:
        """True if somebody waits for a chunk."""
        return chunk in self._asked

    def unask(self, chunk: int) -> None:
        """Nobody waits for it any more."""
        self._asked.pop(chunk, None)

    def hold(self, chunk: int) -> None:
        """Somebody has a ticket for a chunk, which must not go."""
        self._tickets[chunk] += 1

    def release(self, chunk: int) -> None:
        """A ticket is given back."""
        self._tickets[chunk] -= 1
        if self._tickets[chunk] <= 0:
            del self._tickets[chunk]

    def begin(self, chunk: int) -> None:
        """A chunk is being fetched."""
        self.fetching.add(chunk)
        self.used += int(self._sizes[chunk])

    def arrived(self, chunk: int) -> None:
        """A chunk is there: it was fetched, or found."""
        if chunk in self.fetching:
            self.fetching.remove(chunk)
        elif not self.present[chunk]:
            self.used += int(self._sizes[chunk])
        self.present[chunk] = True
        self.unask(chunk)

    def failed(self, chunk: int) -> None:
        """A chunk could not be fetched."""
        self.fetching.remove(chunk)
        self.used -= int(self._sizes[chunk])
        self.unask(chunk)

    def gone(self, chunk: int) -> None:
        """A chunk is there no more."""
        if self.present[chunk]:
            self.present[chunk] = False
            self.used -= int(self._sizes[chunk])

    def wanted(self, most: int = IN_FLIGHT, but: Iterable[int] = ()) -> list[int]:
        """The chunks to fetch next, at most so many, the most urgent first. Make room for each with `victims`.

        Args:
            most: The most that are wanted.
            but: Chunks to leave out.
        """
        missing = ~self.present
        missing[[*self.fetching, *but]] = False
        found = [chunk for chunk in self._asked if missing[chunk]][:most]
        missing[found] = False
        found += self._missing(missing, self._protected_windows, most - len(found))
        missing[found] = False
        left = most - len(found)
        later = self._missing(missing, lambda reader: (reader.last + 1, NEVER), left)
        if self._in_order_of_place:
            missing[later] = False
            later += np.flatnonzero(missing)[:left].tolist()
        room = self.free - int(self._sizes[found].sum())
        for chunk in later[:left]:
            room -= int(self._sizes[chunk])
            if room < 0:
                break
            found.append(chunk)
        return found

    def victims(self, need: int, chunk: int | None = None) -> list[int] | None:
        """The chunks that must go so that `need` bytes are free; None if there are not enough that may.

        Args:
            need: Bytes that must be free.
            chunk: The chunk that they are for. If somebody waits for it, or a reader needs it in its present window or
                the next, other chunks go for it; else none does. None: the budget was lowered.
        """
        if self.free >= need:
            return []
        there = np.flatnonzero(self.present)
        there = there[~np.isin(there, list(self._tickets))]
        distances = self._distances(there)
        protected = self._protected(there)
        asked = chunk in self._asked
        if chunk is not None and not asked and not self._protected(np.array([chunk]))[0]:
            return None
        if not asked:
            there, distances, protected = there[~protected], distances[~protected], protected[~protected]
        order = np.lexsort((-distances, protected))
        ends = np.cumsum(self._sizes[there[order]])
        count = int(np.searchsorted(ends, need - self.free)) + 1
        return there[order[:count]].tolist() if count <= len(order) else None

    def needed(self) -> int:
        """Bytes that the windows of all readers may take, by `least_bytes`."""
        return sum(reader.least for reader in self._readers.values())

    def read_bytes(self) -> int:
        """Bytes of all chunks that the orders of readers go through."""
        read = np.zeros(len(self._sizes), bool)
        for reader in self._readers.values():
            read[reader.used] = True
        return int(self._sizes[read].sum())

    def _protected_windows(self, reader: _Reader) -> tuple[int, int]:
        return reader.now, reader.last

    def _missing(
        self, missing: npt.NDArray[np.bool_], windows: Callable[[_Reader], tuple[int, int]], most: int
    ) -> list[int]:
        """Missing chunks that readers use in some windows, the nearest first."""
        if most <= 0 or not self._readers:
            return []
        chunks, distances = [], []
        for reader in self._readers.values():
            first, last = windows(reader)
            found, window = reader.between(first, last, missing, most)
            chunks.append(found)
            distances.append((window - reader.now) * reader.pace)
        chunk, distance = np.concatenate(chunks), np.concatenate(distances)
        return list(dict.fromkeys(chunk[np.argsort(distance, kind="stable")].tolist()))[:most]

    def _protected(self, chunks: Integers) -> npt.NDArray[np.bool_]:
        """True for chunks of the present or the next window of a reader."""
        result = np.zeros(len(chunks), bool)
        for reader in self._readers.values():
            result |= reader.next_use(chunks) <= reader.last
        return result

    def _distances(self, chunks: Integers) -> Distances:
        """Records that are read until each chunk is used."""
        result = np.full(len(chunks), np.inf)
        for reader in self._readers.values():
            window = reader.next_use(chunks)
            np.minimum(result, np.where(window == NEVER, np.inf, (window - reader.now) * reader.pace), out=result)
        return result

    def _reader(self, reading: Reading, chunks: OrderChunks | None) -> _Reader:
        name = _name(reading, chunks)
        if name not in self._orders:
            bounds = self._bounds if chunks is None else chunks.bounds
            self._orders[name] = ChunkOrder(bounds, reading.lanes, reading.window)
        lanes = lanes_of(reading)
        visits = [self._visits_of(name, key, chunks) for key in reading.keys[:2]]
        used, share = (np.arange(len(self._sizes)), 1.0) if chunks is None else (chunks.used, chunks.share)
        least = least_bytes(self._sizes[used], len(lanes), reading.window, share)
        return _Reader(reading, name, self._orders[name], lanes, visits, used, least)

    def _visits_of(self, name: OrderName, key: int, chunks: OrderChunks | None) -> Visits:
        # All ranks of a job go through the same epochs.
        if (name, key) not in self._visits:
            visits = self._orders[name].visits(key)
            self._visits[name, key] = visits if chunks is None else chunks.in_cache(visits)
        return self._visits[name, key]

    def _forget_visits(self) -> None:
        kept = {(reader.name, key) for reader in self._readers.values() for key in reader.reading.keys}
        self._visits = {name: visits for name, visits in self._visits.items() if name in kept}
        known = {name for name, _ in kept}
        self._orders = {name: order for name, order in self._orders.items() if name in known}


class _Reader:
    """When one rank uses which chunk, in windows from the beginning of its present epoch.

    Args:
        reading: What it said.
        name: The name of its order.
        order: Its order.
        lanes: The lanes that it takes.
        visits: Those of this epoch, and of the next if there is one.
        used: The chunks that its order goes through.
        least: Bytes that its windows may take.

    Attributes:
        now: The present window.
        last: The last window that is protected.
        pace: Records that it reads in a window.
    """

    def __init__(
        self,
        reading: Reading,
        name: OrderName,
        order: ChunkOrder,
        lanes: Integers,
        visits: list[Visits],
        used: Integers,
        least: int,
    ) -> None:
        self.reading = reading
        self.name: Final = name
        self.used: Final = used
        self.least: Final = least
        self._order = order
        self._span = max(1, order.windows * len(visits))
        codes = [np.empty(0, np.int64)]
        for epoch, each in enumerate(visits):
            taken = np.isin(each.lane, lanes)
            codes.append(each.chunk[taken] * self._span + each.window[taken] + epoch * order.windows)
        # By chunk, and by window.
        self._codes = np.unique(np.concatenate(codes))
        chunk, window = np.divmod(self._codes, self._span)
        by_window = np.argsort(window, kind="stable")
        self._chunks, self._windows = chunk[by_window], window[by_window]
        self.pace = len(order) / max(1, order.windows * reading.world_size)
        self.move(reading)

    def covers(self, reading: Reading, name: OrderName) -> bool:
        """True if this also describes another reading, in the order of this name."""
        names = "rank", "world_size", "batch_size", "keys"
        return name == self.name and all(getattr(reading, each) == getattr(self.reading, each) for each in names)

    def move(self, reading: Reading) -> None:
        """The reader has come to another place."""
        self.reading = reading
        self.now = self._window(reading.consumed)
        self.last = self._window(reading.consumed + max(0, reading.in_flight - 1)) + 1

    def _window(self, position: int) -> int:
        if position >= len(self._order):
            return self._order.windows
        return self._order.window_of(position // self._order.lanes)

    def next_use(self, chunks: Integers) -> Integers:
        """The next window in which each chunk is used, `NEVER` if it is not; both int64 [n]."""
        found = np.searchsorted(self._codes, chunks * self._span + self.now)
        codes = np.append(self._codes, -1)[found]
        return np.where((codes >= 0) & (codes // self._span == chunks), codes % self._span, NEVER)

    def between(self, first: int, last: int, missing: npt.NDArray[np.bool_], most: int) -> tuple[Integers, Integers]:
        """The first missing chunks that are used in windows `first` to `last`, and in which."""
        begin, end = np.searchsorted(self._windows, [first, last + 1]).tolist()
        found = begin + np.flatnonzero(missing[self._chunks[begin:end]])[: 2 * most]
        return self._chunks[found], self._windows[found]


def lanes_of(reading: Reading) -> Integers:
    """The lanes that a rank takes its positions from, whole steps at a time, int64 [some].

    A step is `world_size` * `batch_size` positions. By lane and turn, they go to the ranks in blocks.
    """
    lanes, step = reading.lanes, reading.world_size * reading.batch_size
    first = np.arange(lanes)[:, None]
    lane = np.arange(lanes)[None, :]
    # Positions of a step that begins in lane `first` that are in each lane: the ones at and after `first` come first.
    counts = step // lanes + ((lane - first) % lanes < step % lanes)
    ends = np.cumsum(counts, axis=1)
    begin, end = reading.rank * reading.batch_size, (reading.rank + 1) * reading.batch_size
    taken = (ends > begin) & (ends - counts < end) & (counts > 0)
    return np.flatnonzero(taken.any(0))


def least_bytes(sizes: Integers, lanes: int, window: int, share: float = 1.0) -> int:
    """Bytes that two windows of some lanes may take: the chunks of each, and those that lie across their borders.

    Args:
        sizes: Bytes of each chunk of the cache that the order goes through, int64 [any].
        lanes: Number of lanes.
        window: Chunks of a lane that are shuffled together.
        share: Part of the order's chunks that lies in the cache. Then a window has more of them or fewer as chance has
            it: four standard deviations more are exceeded once in 30,000 windows.
    """
    if not len(sizes):
        return 0
    most = lanes * (2 * window + 2)
    chunks = min(most, most * share + 4 * math.sqrt(most * share * (1 - share)))
    return int(min(chunks * sizes.mean(), sizes.sum()))


def _name(reading: Reading, chunks: OrderChunks | None) -> OrderName:
    return None if chunks is None else chunks.digest, reading.lanes, reading.window
