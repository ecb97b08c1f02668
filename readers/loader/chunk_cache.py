"""Hooks for a dataset that is read through a bounded cache: they tell the cache the order, and how far the loader is.

The fetching process then has every chunk there before it is needed, and keeps those that are needed soonest. That takes
`ChunkShuffled`. In any other order a part of the dataset would be fetched again and again, so that is refused unless
the cache holds everything, and then everything is fetched in the background.

There is one order of all chunks of the dataset. Of a concatenation, each cache has some of these, and of a subset
some records of some, which the cache is told (`packtrain._storage.streams.order_files`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np

from packtrain._core.errors import PacktrainError, UsageError
from packtrain._core.overriding import override
from packtrain._core.sizes import size
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.client import RegisteredRank as Reader
from packtrain._storage.streams.order_files import OrderChunks
from packtrain._storage.streams.policy import Reading

from ..dataset.image_dataset import caches_of, samples_of
from ..dataset.samples import Chunks
from ..dataset.store import RecordStore, Store
from ..monitoring.stats import Meter
from .chunk_shuffled import ChunkShuffled, Room
from .dataset_hooks import DatasetHooks
from .engine import Job
from .order import Order
from .progress import Progress
from .ranks import Ranks, World
from .state import LoaderState

# Seconds between two looks at what was fetched.
_LOOKS: Final = 1.0
# Seconds between two messages. To wake a thread for every batch takes more time of the consumer's than all else here.
_PAUSE: Final = 0.05
_MIB: Final = 1 << 20
NO_LIMIT: Final = 1 << 62
"""Stands for room for everything."""


class ChunkCacheHooks(DatasetHooks):
    """Tells the caches of a dataset what is read of them. Ranks that read a copy have none, and say so to the others.

    Args:
        progress: How far the loader is.
        dataset: The dataset.
        batch_size: Number of samples that one rank takes in one step.
        ranks: The ranks, of which each says where it is.
        meter: Gets the number of bytes that were fetched.

    Raises:
        UsageError: The dataset does not fit into its caches, and the order is not one that a part of it can serve.
        RemoteError: A cache has no fetching process, and none can be started.
    """

    def __init__(self, progress: Progress, dataset: Any, batch_size: int, ranks: Ranks, meter: Meter) -> None:
        super().__init__(progress, dataset)
        self._caches: Final = caches_of(dataset)
        self._batch_size: Final = batch_size
        self._ranks: Final = ranks
        self._meter: Final = meter
        self._samples: Final = samples_of(dataset)
        self._stores: Final = () if self._samples is None else self._samples.stores
        self._fitted = False
        self._ahead = 0
        """Number of positions of the epoch that batches have been begun for."""
        self._reported: tuple[World, Order] | None = None
        """The ranks and the order that the cache was last told of."""
        self._reporter: ProgressReporter | None = None
        self._process = os.getpid()
        order = progress.order
        self._in_order: Final = (
            isinstance(order, ChunkShuffled) and self._samples is not None and order.is_of(self._samples)
        )
        """True if the order is one that the caches can be told."""
        if not self._in_order:
            for cache in self._caches:
                _require_room(cache, order)

    def __getstate__(self) -> dict[str, Any]:
        # Another process is another reader.
        return {**vars(self), "_reporter": None}

    @cached_property
    def _chunks(self) -> Chunks:
        assert self._samples is not None
        return self._samples.chunks()

    def _chunks_in(self, number: int) -> OrderChunks:
        """The chunks of the order, as the cache of a store sees them."""
        bounds, store, chunk = self._chunks
        return OrderChunks(bounds, np.where(store == number, chunk, -1))

    @override
    def pin(self, dataset: Any) -> Any:
        if self._ranks.given or self._ranks.now().world_size == 1:
            self.begin(dataset)
        return dataset

    @override
    def load(self, dataset: Any, state: LoaderState) -> None:
        self.close()
        super().load(dataset, state)

    @override
    def jobs(self, jobs: Iterator[Job], world: World) -> Iterator[Job]:
        if not self._caches:
            return jobs
        told = world, self._progress.order
        if told != self._reported:
            # The epoch after one that was resumed may have other lanes.
            self.close()
        self._reported, self._ahead = told, self._progress.consumed
        if self._reporter is None:
            self._reporter = self._begun(world)
            self._ending = weakref.finalize(self, self._reporter.close)
        self._tell()
        return self._noted(jobs)

    @override
    def count(self, samples: int) -> None:
        self._tell()

    @override
    def begin(self, dataset: Any) -> None:
        """Lets the order know once what room there is. All ranks take the least."""
        if self._process != os.getpid():
            self._reporter, self._fitted, self._process = None, False, os.getpid()
        order = self._progress.order
        if self._fitted or not isinstance(order, ChunkShuffled) or not self._in_order:
            return
        if self._ranks.given and self._ranks.now().world_size > 1:
            # They cannot agree, and what room there is depends on who looks first: they keep the order that was asked
            # for, or are refused.
            self._fitted = True
            return
        least = [self._room(number) for number in range(len(self._stores))]
        if not self._ranks.given:
            least = [min(rooms) for rooms in zip(*self._ranks.gather(least), strict=True)]
        world_size = self._ranks.now().world_size
        rooms = []
        for number, room in enumerate(least):
            if room < NO_LIMIT:
                chunks, store = self._chunks_in(number), self._stores[number]
                assert isinstance(store, RecordStore)
                sizes = store.chunk_table.allocated[chunks.used]
                rooms.append(Room(room, sizes, chunks.share, world_size, self._batch_size))
        if rooms:
            self._progress.order = order.within(rooms)
        self._fitted = True

    def _room(self, number: int) -> int:
        """Bytes that chunks of a store may take which are worked on."""
        cache = self._stores[number].chunks
        if cache is None or number not in self._chunks.store:
            return NO_LIMIT
        state = cache.state()
        room = state["budget"] - state["overhead"]
        needed = int(cache.table.allocated[self._chunks_in(number).used].sum())
        # Half of what others and what is being fetched leave: the other half keeps chunks for the next epoch, and other
        # jobs may come. Ranks that know each other look before any of them begins.
        left: int = max(0, room - state["needed"] - state["headroom"])
        return NO_LIMIT if needed <= room else left // 2

    def _begun(self, world: World) -> ProgressReporter:
        order = self._progress.order
        if not self._in_order:
            return ProgressReporter(None, self._progress.order_keys, self._caches, self._stores, self._meter)
        assert isinstance(order, ChunkShuffled)
        keys = self._progress.order_keys(self._progress.epoch)
        rank, world_size = world
        # Ranks are told from other jobs by the program that has started them, such as torchrun.
        name = f"process {os.getpid() if world_size == 1 else os.getppid()}"
        sizes = order.chunks.lanes, order.chunks.window
        reading = Reading(rank, world_size, self._batch_size, *sizes, keys, self._progress.consumed)
        with ExitStack() as refused:
            readers, caches = list[Reader](), list[ChunkCache]()
            for number in np.unique(self._chunks.store).tolist():
                if (cache := self._stores[number].chunks) is not None:
                    chunks = self._chunks_in(number)
                    readers.append(cache.register(name, reading, None if chunks.is_all(cache.table.bounds) else chunks))
                    refused.callback(readers[-1].close)
                    caches.append(cache)
            refused.pop_all()
        return ProgressReporter(readers, self._progress.order_keys, caches, self._stores, self._meter)

    def _noted(self, jobs: Iterator[Job]) -> Iterator[Job]:
        for job in jobs:
            self._ahead = job.consumed
            yield job

    def _tell(self) -> None:
        if self._reporter is not None:
            self._reporter.report(self._progress.epoch, self._progress.consumed, self._ahead)

    @override
    def close(self) -> None:
        reporter, self._reporter = self._reporter, None
        if reporter is not None and self._process == os.getpid():
            self._ending()


class ProgressReporter:
    """Tells caches how far a rank is, in a thread of its own, so that the rank never waits for them.

    Args:
        readers: The rank, as each cache knows it; None: all caches are to fetch everything.
        keys: The keys of the order in an epoch and in the next.
        caches: The caches.
        stores: What is read from them in this process.
        meter: Gets the number of bytes that were fetched.
    """

    def __init__(
        self,
        readers: Sequence[Reader] | None,
        keys: Callable[[int], tuple[int, int]],
        caches: Sequence[ChunkCache],
        stores: Sequence[Store],
        meter: Meter,
    ) -> None:
        self._readers = readers or ()
        self._keys = keys
        self._fillings = [] if readers is not None else [cache.fill() for cache in caches]
        self._caches = caches
        self._stores = stores
        self._meter = meter
        self._fetched = [cache.state()["fetched_bytes"] for cache in caches]
        self._latest: tuple[int, int, int] | None = None
        # Not events: the garbage collector may call `close` in a thread that holds the lock of one.
        self._news = SimpleQueue[None]()
        self._end = SimpleQueue[None]()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="packtrain-progress", daemon=True)
        self._thread.start()

    def report(self, epoch: int, consumed: int, begun: int) -> None:
        """Takes note of how far the rank is. Batches may come by the thousand in a second, and each brings this.

        Args:
            epoch: Number of the epoch.
            consumed: Positions of the epoch that all ranks have used up.
            begun: Positions up to which batches have been begun.
        """
        self._latest = epoch, consumed, begun
        if self._news.empty():
            self._news.put(None)

    def close(self) -> None:
        """The rank has ended. Any thread may say so, also the one that tells the caches."""
        self._ended = True
        self._news.put(None)
        self._end.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_LOOKS)
        self._take_leave()

    def _take_leave(self) -> None:
        for wish in (*self._readers, *self._fillings):
            wish.close()

    def _run(self) -> None:
        looked, told = time.monotonic(), None
        while not self._ended:
            with suppress(Empty):
                self._news.get(timeout=_LOOKS)
            latest = self._latest
            # On an error, this is tried again. If no fetcher can be reached, whoever waits for a chunk gets the error.
            # If a new one has no room for this rank, its chunks are fetched as it needs them.
            with suppress(PacktrainError, OSError):
                if latest is not None and latest is not told:
                    epoch, consumed, begun = latest
                    for reader in self._readers:
                        reader.progress(self._keys(epoch), consumed, max(0, begun - consumed))
                    told = latest
                if time.monotonic() - looked >= _LOOKS and not self._ended:
                    # Next time all is said again: there may be a new fetcher, which knows nothing of the rank.
                    looked, told = time.monotonic(), None
                    self._look()
            # What a cache that has everything knows of the rank is of use only when another job comes.
            with suppress(Empty):
                self._end.get(timeout=_LOOKS if all(cache.complete for cache in self._caches) else _PAUSE)
        # `close` does not wait for long, so a new fetcher may have been told of the rank after it.
        self._take_leave()

    def _look(self) -> None:
        """Counts what was fetched, renews the wish for everything, and lets go of chunks that have gone."""
        for store in self._stores:
            store.close_unused()
        for filling in self._fillings:
            filling.renew()
        for number, cache in enumerate(self._caches):
            found = cache.state()["fetched_bytes"]
            # Another fetcher begins at 0.
            self._meter.count_fetched(found - self._fetched[number] if found >= self._fetched[number] else found)
            self._fetched[number] = found


def _require_room(cache: ChunkCache, order: Order) -> None:
    """Makes sure that a cache can hold everything.

    Args:
        cache: The cache.
        order: The order, which no part of it can serve.

    Raises:
        UsageError: It cannot.
    """
    state, needed = cache.state(), int(cache.table.allocated.sum())
    name = f"{type(order).__name__}{' of another dataset' * isinstance(order, ChunkShuffled)}"
    if needed > state["budget"] - state["overhead"]:
        raise UsageError(
            f"{cache.url} takes {size(needed + state['overhead'])} in the cache, whose budget is "
            f"{size(state['budget'])}, and the order {name} would fetch most of it again for every few batches. Open "
            f'it with budget="{-(-(needed + state["overhead"]) // _MIB)}MiB" or more; or take shuffle=True, which is '
            "ChunkShuffled(dataset) and needs only a part of it at a time"
        )
