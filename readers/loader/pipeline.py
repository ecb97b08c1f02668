"""From jobs to batches: the engine with its workers, and the way from there to the consumer's device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, Final

from ..monitoring.stats import Meter
from .arena import Layout
from .assembly import BatchSteps
from .batches import BatchMaker, Probe
from .device import Transfer
from .engine import Batch, Engine, Job

_REPLAYED: Final = 4
"""Number of batches that are made to be handed out again and again."""


class Pipeline:
    """Makes the batches of any number of passes.

    Args:
        engine: Makes the engine.
        transfer: Makes the transfer from an engine, which takes these steps.
        steps: Makes the steps for batches of a layout, which a maker makes.
        meter: Measures it.
    """

    def __init__(
        self,
        engine: Callable[[BatchMaker, Probe], Engine],
        transfer: Callable[[BatchSteps, Engine], Transfer],
        steps: Callable[[Layout, BatchMaker], BatchSteps],
        meter: Meter,
    ) -> None:
        self._engine_of: Final = engine
        self._transfer_of: Final = transfer
        self._steps_of: Final = steps
        self._maker: BatchMaker | None = None
        """Makes the batches of the present pass; None once this is closed, so that it keeps no dataset."""
        self._meter = meter
        self._engine: Engine | None = None
        self._transfer: Transfer | None = None
        self._process = os.getpid()
        """The process that the engine was made in."""

    def __getstate__(self) -> dict[str, Any]:
        # Another process starts workers of its own.
        return {**vars(self), "_engine": None, "_transfer": None}

    def run(
        self, maker: BatchMaker, jobs: Iterator[Job], probe: Callable[[], Probe], *, replays: bool = False
    ) -> Iterator[Batch]:
        """The batches of a pass, as the consumer gets them.

        Args:
            maker: Makes a batch. Workers that are running take another one, if it can be sent to them.
            jobs: What to make.
            probe: Returns the samples that show what a batch looks like. Only called if that is not known yet.
            replays: True to make a few batches, and to hand them out in place of all others.

        Raises:
            PacktrainError: A batch cannot be made.
        """
        if self._process != os.getpid():
            # A copy in a forked process: the engine works for the original.
            self.close()
        if maker is not self._maker:
            self._change(maker, probe)
        if self._engine is None:
            self._engine = self._engine_of(maker, probe())
            self._process = os.getpid()
            self._meter.attach(self._engine.counters())
        if self._transfer is None:
            # Nothing here may refer to the loader, so that it ends its workers as soon as it is dropped.
            self._transfer = self._transfer_of(self._steps_of(self._engine.layout, maker), self._engine)
        return _replayed(jobs, self._make) if replays else self._make(jobs)

    def close(self) -> None:
        """Ends the workers. Batches that were handed out stay valid, and another pass starts workers again."""
        # Forgotten first, so that whatever happens meanwhile, nothing of it is used again.
        engine, self._engine, transfer, self._transfer = self._engine, None, self._transfer, None
        self._maker = None
        try:
            if engine is not None:
                self._meter.detach()
                engine.close()
        finally:
            if transfer is not None:
                transfer.close()

    def _change(self, maker: BatchMaker, probe: Callable[[], Probe]) -> None:
        changed = self._engine is None
        try:
            # It reads memory that the engine gives up, and knows what batches looked like.
            transfer, self._transfer = self._transfer, None
            if transfer is not None:
                transfer.close()
            if self._engine is not None:
                changed = self._engine.change(maker, probe())
        finally:
            if not changed:
                self.close()
        self._maker = maker

    def _make(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        assert self._engine is not None and self._transfer is not None
        return self._transfer.run(self._meter.collected(self._engine.run(jobs)))


def _replayed(jobs: Iterator[Job], make: Callable[[Iterator[Job]], Iterator[Batch]]) -> Iterator[Batch]:
    first = list(islice(jobs, _REPLAYED))
    # All of them before any is handed out, so that the consumer never waits for one later.
    made = list(make(iter(first)))
    for number, job in enumerate(chain(first, jobs)):
        batch = made[number % len(made)]
        yield batch._replace(job=job)
        # Samples that were left out, and images that a GPU refused, are told of and counted only once.
        made[number % len(made)] = batch._replace(made=batch.made._replace(skipped=[], refused=()))
