"""Follows a growing cache: which generation an epoch goes through, on which all ranks agree, and who is told of it.

The ranks agree in two rounds. First each moves to the newest generation that it sees, and all say which that is: for
each cache, the one of its lowest rank counts, which thereby holds a lease on it. Then all others open that one, and say
whether they could. So either all begin the epoch or none does, and none waits for one that failed.

There may be a cache on each node, filled by a filler of its own, so the generations differ in number and length. Then
every rank takes as many samples as the smallest generation has for each of its ranks, and `CacheOrder` says which rows.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from packtrain._core.errors import GenerationGone, LoaderError, PacktrainError, UsageError
from packtrain._core.generations import promise, shorten
from packtrain._core.overriding import override
from packtrain._core.printable import printable
from packtrain._core.reader_reports import ReaderReport

from ..dataset.growing import GrowingDataset
from ..monitoring.figures import Growth
from ..monitoring.stats import Meter
from .dataset_hooks import DatasetHooks
from .order import CacheOrder, Order
from .progress import Progress
from .ranks import Ranks
from .state import Chosen, LoaderState

_NONE: Final = -1
"""Stands for the number of a generation that could not be opened."""
_SAVING: Final = 60.0
"""Seconds that saving a state takes at most, until which the one before may be needed."""


class GenerationHooks(DatasetHooks):
    """Moves a growing dataset to the newest generation of its cache as an epoch begins.

    Whoever uses the dataset may move it, too: a pass that begins an epoch leaves it where it was put.

    Args:
        progress: How far the loader is; gets the order of each generation.
        dataset: The dataset.
        order: Makes the order of the generation that a dataset has.
        ranks: The ranks that must agree.
        meter: Gets the figures of each generation.

    Raises:
        UsageError: The ranks were given by hand, so they cannot agree.
    """

    def __init__(
        self,
        progress: Progress,
        dataset: GrowingDataset,
        order: Callable[[GrowingDataset], Order],
        ranks: Ranks,
        meter: Meter,
    ) -> None:
        super().__init__(progress, dataset)
        if ranks.given and ranks.now().world_size > 1:
            raise UsageError(
                "ranks given by hand cannot agree on a generation of a growing cache: call "
                "torch.distributed.init_process_group in place of rank= and world_size=, or give "
                "dataset.subset(range(len(dataset))), which stays at its generation"
            )
        self._order = order
        self._ranks = ranks
        self._meter = meter
        self._reports = True
        """False if this user cannot tell the filler what is handed out."""
        self._promises = True
        """False if this user cannot keep a generation."""
        self._promised: tuple[int, float] | None = None
        """The last generation that was promised, and until when."""
        self._cache: Final = dataset.store.opened.info.id
        progress.dataset, progress.grows = self._cache, True
        self._store = dataset.store
        """The generation that the order is for. It stays there even if another loader moves the dataset."""
        self._moved = dataset.generation
        """Generation that this loader moved the dataset to last."""
        self._announced: Chosen | None = None
        self._published = self._end = 0
        """Number of samples in all generations up to now, and one past the number of the last of them."""
        self._report: ReaderReport | None = None
        self._process = os.getpid()
        """The process that the report is of."""

    def __getstate__(self) -> dict[str, Any]:
        # Another process is another reader.
        return {**vars(self), "_report": None}

    @override
    def begin(self, dataset: GrowingDataset) -> None:
        if self._progress.chosen is None:
            self._choose(dataset)
        if self._announced is not self._progress.chosen:
            self._announce()
        self._begin_report(self._store.generation.number)

    def _announce(self) -> None:
        """Shows the generation in the figures, once in each epoch."""
        self._announced = self._progress.chosen
        generation = self._store.generation
        new = max(0, generation.end_sample - max(self._end, generation.first_sample))
        self._published, self._end = self._published + new, max(self._end, generation.end_sample)
        assert self._announced is not None
        ranks = self._announced.ranks_of(self._cache, self._ranks.now().world_size)
        self._meter.grow(Growth(generation.number, len(self._store), new, self._published, ranks))

    @override
    def pin(self, dataset: GrowingDataset) -> GrowingDataset:
        if self._progress.chosen is None:
            self.fit(dataset)
        elif dataset.generation != self._store.generation.number:
            dataset.advance(self._store.generation.number)
        return dataset

    @override
    def fit(self, dataset: GrowingDataset) -> None:
        if self._progress.chosen is None and dataset.store is not self._store:
            self._progress.order = self._order(dataset)
            self._store = dataset.store

    @override
    def load(self, dataset: GrowingDataset, state: LoaderState) -> None:
        caches = tuple((state.dataset or "").split("+"))
        if self._cache not in caches:
            raise UsageError(
                f"the state was saved with another growing cache than {self._store.path}: samples would be repeated or "
                "left out"
            )
        if state.consumed and not state.generations:
            raise UsageError("the state does not say which generation of the cache its epoch went through")
        if not state.generations:
            self._load_unbegun(dataset, state)
            return
        chosen = Chosen(caches, tuple((number, ranks) for number, ranks in state.generations))
        world_size = self._ranks.now().world_size
        if len(caches) > 1 and chosen.world_size != world_size:
            raise UsageError(
                f"the state was saved by {chosen.world_size} ranks with {len(caches)} caches, now there are "
                f"{world_size} ranks: only ranks of one cache can continue with another number"
            )
        gone: GenerationGone | None = None
        try:
            dataset.advance(chosen.number_of(self._cache))
        except GenerationGone as error:
            gone = error
        # With a cache for each node, that of another one may be gone.
        if any(flag for (flag,) in self._ranks.gather([gone is not None])) if len(caches) > 1 else gone is not None:
            self._load_gone(dataset, state)
            return
        order = self._order(dataset)
        if len(caches) > 1:
            order, found = self._agreed(dataset, order, None)
            if found != chosen:
                raise UsageError("the state was saved by ranks of which others had these caches")
        self._progress.load(replace(state, dataset=None), order, chosen)
        self._store, self._moved = dataset.store, dataset.generation

    def _load_gone(self, dataset: GrowingDataset, state: LoaderState) -> None:
        if state.consumed < state.length:
            path = printable(str(self._store.path))
            warnings.warn(
                f"{path}: the generation that the state names has made room for newer ones, so its epoch "
                f"{state.epoch} cannot be continued after {state.consumed} of {state.length} samples. The next pass "
                f"begins epoch {state.epoch + 1} on the newest generation",
                RuntimeWarning,
                stacklevel=4,
            )
        self._load_unbegun(dataset, replace(state, epoch=state.epoch + 1, consumed=0))

    def _load_unbegun(self, dataset: GrowingDataset, state: LoaderState) -> None:
        """Goes to the beginning of an epoch, whose generation is chosen as it begins."""
        order = self._order(dataset)
        state = replace(state, dataset=None, length=len(order), parameters=order.parameters, generations=None)
        self._progress.load(state, order)
        self._store = dataset.store

    @override
    def keep(self, dataset: GrowingDataset) -> None:
        keep = dataset.keep_generation
        if not (keep and self._promises) or self._progress.chosen is None:
            return
        number, until = self._store.generation.number, time.time() + keep
        self._promises = promise(self._store.path, number, until)
        before, self._promised = self._promised, (number, until)
        if before is not None and before[0] != number:
            # This state takes the place of the one before as soon as it is saved. With the promises of all epochs of
            # an hour, a full cache would soon get no new samples.
            shorten(self._store.path, *before, time.time() + _SAVING)
        if not self._promises:
            self._warn("cannot be written to: a state does not keep the generation that it names", stacklevel=3)

    @override
    def count(self, samples: int) -> None:
        if self._report is not None:
            self._report.take(samples)

    @override
    def finish(self) -> None:
        if self._report is not None and self._progress.consumed:
            self._report.finish(self._store.generation.end_sample)

    @override
    def close(self) -> None:
        report, self._report = self._report, None
        if report is not None and self._process == os.getpid():
            report.close()
        # The dataset may still be there and have its lease, or may be moved.
        self._store = self._store.unleased()

    def _choose(self, dataset: GrowingDataset) -> None:
        """Moves to the newest generation, of which the lowest rank of each cache says which it is."""
        problem: Exception | None = None
        try:
            if dataset.generation == self._moved:
                dataset.advance()
        except PacktrainError as error:
            problem = error
        own = _words(self._cache)
        told = self._ranks.gather([*own, _NONE if problem else dataset.generation])
        number = next(number for *cache, number in told if cache == own)
        order: Order | None = None
        if number != _NONE:
            # Whatever happens here must not keep the other ranks waiting.
            try:
                if dataset.generation != number:
                    dataset.advance(number)
                order, problem = self._order(dataset), None
            except Exception as error:
                problem = error
        self._progress.order, self._progress.chosen = self._agreed(dataset, order, problem)
        self._store, self._moved = dataset.store, dataset.generation

    def _agreed(self, dataset: GrowingDataset, order: Order | None, problem: Exception | None) -> tuple[Order, Chosen]:
        """The order of this rank, and the generations of all, once every rank has opened its own."""
        own = _words(self._cache)
        told = self._ranks.gather([*own, *((_NONE, 0) if order is None else (dataset.generation, len(order)))])
        if problem is not None:
            raise problem
        ranks: dict[str, list[int]] = {}
        for rank, (*cache, number, _) in enumerate(told):
            if number == _NONE:
                # The lowest one that could not: others may only have missed what it should have chosen.
                raise LoaderError(
                    f"rank {rank} cannot open the generation of its cache that was chosen for this epoch, so no rank "
                    "begins the epoch: the error of that rank says why"
                )
            ranks.setdefault(np.array(cache, "<i8").tobytes().hex(), []).append(rank)
        assert order is not None
        numbers = tuple((told[which[0]][2], len(which)) for which in ranks.values())
        if len(ranks) > 1:
            turns = min(told[which[0]][3] // len(which) for which in ranks.values())
            order = CacheOrder(order, ranks[self._cache], len(told), turns)
        return order, Chosen(tuple(ranks), numbers)

    def _begin_report(self, generation: int) -> None:
        if self._process != os.getpid():
            self._report, self._process = None, os.getpid()
        if self._report is None and self._reports:
            try:
                self._report = ReaderReport(self._store.path)
            except OSError as error:
                self._reports = False
                why = f"cannot be written to ({error.strerror}): its filler does not know what this loader takes"
                self._warn(why, stacklevel=4)
        if self._report is not None:
            self._report.begin(generation)

    def _warn(self, what: str, stacklevel: int) -> None:
        warnings.warn(printable(f"{self._store.path} {what}"), RuntimeWarning, stacklevel=stacklevel + 1)


def _words(cache: str) -> list[int]:
    """The name of a cache as two signed numbers."""
    found: list[int] = np.frombuffer(bytes.fromhex(cache), "<i8").tolist()
    return found
