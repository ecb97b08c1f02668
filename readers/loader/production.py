"""Where batches are made: the engine with its workers, and the way from there to the consumer's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Final

from ..monitoring.stats import Meter
from .arena import Layout
from .batches import BatchMaker
from .device import Transfer, transfer_of
from .engine import Batch, Engine, Job, ParallelEngine, SerialEngine
from .headspace import Replay
from .postprocess import Postprocess, tensors_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Means:
    """How batches are made: whatever does not change what is in them, and where they go.

    Attributes:
        workers: Number of worker processes; 0: batches are made in this process.
        prefetch_factor: Number of batches that each worker makes ahead.
        context: Starts the processes.
        init: Called in each worker with its number.
        timeout: Seconds to wait for the workers; 0: for ever.
        device: Device of the batches; None: they stay where they were made.
        postprocess: What is done with them there.
        pin: True to hand them out in pinned memory.
        headspace: True to make only a few of them.
    """

    workers: int
    prefetch_factor: int
    context: BaseContext
    init: Callable[[int], None] | None
    timeout: float
    device: torch.device | None
    postprocess: Postprocess
    pin: bool
    headspace: bool


class Production:
    """Makes the batches of any number of passes, all with the same samples.

    Args:
        maker: Makes a batch.
        means: How.
        meter: Measures it.
    """

    def __init__(self, maker: BatchMaker, means: Means, meter: Meter) -> None:
        self.maker: Final = maker
        self._means = means
        self._meter = meter
        self._replay = Replay() if means.headspace else None
        self._layout: Layout | None = None
        self._engine: Engine | None = None
        self._transfer: Transfer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process starts workers of its own.
        return {**vars(self), "_engine": None, "_transfer": None}

    def run(self, jobs: Iterator[Job], probed: Callable[[], Layout]) -> Iterator[Batch]:
        """The batches of a pass, as the consumer gets them.

        Args:
            jobs: What to make.
            probed: Finds the layout of a batch, if it is not known from an earlier pass.

        Raises:
            PacktrainError: A batch cannot be made.
        """
        means, layout = self._means, self._layout or probed()
        self._layout = layout
        if self._engine is None:
            self._engine = self._engine_for(layout)
            self._meter.attach(self._engine.counters())
        if self._transfer is None:
            # Nothing here may refer to the loader, so that it ends its workers as soon as it is dropped.
            tensors = partial(tensors_of, layout=layout, fields=self.maker.samples.fields)
            self._transfer = transfer_of(means.device, means.postprocess, tensors, self._engine, pin=means.pin)
        return self._replay.run(jobs, self._make) if self._replay else self._make(jobs)

    def close(self) -> None:
        """Ends the workers. Batches that were handed out stay valid, and another pass starts workers again."""
        if self._engine is not None:
            self._meter.detach()
            self._engine.close()
            self._engine = None
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None

    def _engine_for(self, layout: Layout) -> Engine:
        means = self._means
        if not means.workers:
            return SerialEngine(self.maker, layout)
        return ParallelEngine(
            self.maker, layout, means.workers, means.prefetch_factor, means.context, means.init, timeout=means.timeout
        )

    def _make(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        assert self._engine is not None and self._transfer is not None
        return self._transfer.run(self._meter.collected(self._engine.run(jobs)))
