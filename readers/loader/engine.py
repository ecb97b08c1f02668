"""Makes batches one after the other: in this process, or ahead of the consumer in worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packtrain._core.overriding import override

from ..monitoring.counters import Count, Counters, Words, blank
from ..monitoring.timing import StageTimer
from .arena import Arena, Arrays, Board, Layout
from .batches import BatchMaker, Made, Probe
from .randomness import preserved
from .slots import Event, Slots
from .worker import NO_TICKET, Ticket
from .workers import WorkerOptions, Workers

# Slots for what the consumer holds: the batch it works on, and the one it asks for before it drops that.
_HELD: Final = 2


class Job(NamedTuple):
    """A batch that is to be made.

    Attributes:
        key: Key of the epoch's random numbers.
        positions: Positions of its samples in the epoch, int64 [samples].
        rows: Rows of its samples in the dataset, int64 [samples].
        consumed: Number of positions of the epoch that are used up once it has been handed out.
    """

    key: int
    positions: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    consumed: int


class Batch(NamedTuple):
    """A batch on its way from an engine to the consumer.

    Attributes:
        job: Which batch was to be made.
        made: Result of the job.
        value: From an engine: arrays by name, of which the first `made.size` samples count. From a transfer: what the
            consumer gets, or None if all samples were left out.
        after: Takes an event; the memory of the arrays is not written again before that event, even if no array is
            alive. None if the memory is never written again.
    """

    job: Job
    made: Made
    value: Any
    after: Callable[[Event], None] | None = None


class Engine(Protocol):
    """Makes batches.

    Attributes:
        layout: The arrays of a batch.
    """

    layout: Layout

    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        """The batches of some jobs, in their order. What is left of an earlier run is cancelled.

        Raises:
            PacktrainError: A batch cannot be made.
        """

    def change(self, maker: BatchMaker, probe: Probe) -> bool:
        """Makes batches in another way from the next run on. What is left of an earlier run is cancelled.

        Args:
            maker: Makes batches.
            probe: The samples that show what a batch looks like.

        Returns:
            True if it does; False if that takes another engine.

        Raises:
            PacktrainError: No sample can be made, or its batches cannot be held. The engine cannot be used any more.
        """

    def ready(self) -> bool:
        """True if the present run can continue without waiting for its next batch to be made.

        Raises:
            PacktrainError: The run cannot continue.
        """
        return False

    def memory(self) -> Any:
        """The memory that all batches lie in, as a ctypes array that keeps it mapped; None if each has its own."""
        return None

    def counters(self) -> Words:
        """The counters of the processes that make batches, int64 [processes, words]."""

    def close(self) -> None:
        """Ends what was started."""


@dataclass(frozen=True)
class Backend:
    """Makes batches in place of the loader's own workers.

    Attributes:
        engine: Makes the engine; None: the loader's own one.
        description: Its settings, for `repr`.
        undecoded: True if batches are made with undecoded images.
        threads: Number of threads that decode in place of workers.
    """

    engine: Callable[[BatchMaker, Probe], Engine] | None = None
    description: str = ""
    undecoded: bool = False
    threads: int = 0


class SerialEngine(Engine):
    """Makes each batch in this process, when it is asked for.

    Args:
        maker: Makes batches.
        probe: The samples that show what a batch looks like.

    Raises:
        PacktrainError: None of them can be made.
    """

    def __init__(self, maker: BatchMaker, probe: Probe) -> None:
        self._words = blank()
        self._adopt(maker, probe)

    def _adopt(self, maker: BatchMaker, probe: Probe) -> None:
        with preserved():
            self.layout = maker.layout(probe)
        self._maker: BatchMaker | None = maker
        self._timer = StageTimer(self._words, maker.samples.opened)

    @override
    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        for job in jobs:
            with self._timed():
                # In a list, because a variable would keep the batch alive after the consumer has dropped it.
                batch = [self._made(job)]
            yield batch.pop()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._timer.begin_batch()
        self._timer.discard_usage()
        try:
            yield
        finally:
            self._timer.count_usage()
            self._timer.idle()

    def _made(self, job: Job) -> Batch:
        assert self._maker is not None
        arrays = self.layout.new()
        _enter(job, arrays)
        with preserved() if self._maker.seeds else nullcontext():
            made = self._maker.make(job.key, len(job.rows), self.layout, arrays, self._timer)
        return Batch(job, made, arrays)

    @override
    def change(self, maker: BatchMaker, probe: Probe) -> bool:
        return False

    @override
    def counters(self) -> Words:
        return np.frombuffer(self._words, np.int64)[np.newaxis]

    @override
    def close(self) -> None:
        # A pass that the consumer still has refers to this, and would keep the dataset as it was then.
        self._maker = None


class ParallelEngine(Engine):
    """Makes batches ahead of the consumer, in worker processes.

    Args:
        maker: Makes batches.
        probe: The samples that show what a batch looks like.
        options: How the workers are started.

    Raises:
        LoaderError: There is not enough memory for the batches, or a worker cannot be started.
        PacktrainError: None of the samples can be made.
    """

    def __init__(self, maker: BatchMaker, probe: Probe, options: WorkerOptions) -> None:
        self._ahead = options.count * options.prefetch_factor
        self._board = Board(options.count)
        self._workers = Workers(maker, self._board, probe, options)
        try:
            layout = self._workers.probed()
            assert layout is not None
            self.layout = layout
            self._allocate()
        except BaseException:
            self._workers.close()
            raise
        self._retired: list[Slots] = []
        """Slots of batches of another size, of which the consumer still has some."""
        self._counters = Counters(self._board.words(options.count))
        self._next = 0
        """Number of the next ticket."""
        self._first = 0
        """Number of the first ticket of the present run."""
        self._out: dict[int, int] = {}
        """Slot of each ticket whose result has not arrived."""
        self._results: dict[int, tuple[Made, int]] = {}
        """Result and slot of each ticket whose batch has not been handed out."""
        self._pending: deque[tuple[int, Job]] = deque()
        """Tickets and jobs of the present run that have not been handed out, in order."""

    def _allocate(self) -> None:
        """Makes slots for batches of the present layout."""
        self._arena = Arena(self._board, self.layout, self._ahead + _HELD)
        self._slots = Slots(self._arena)
        self._arrays = [self._arena.arrays(number) for number in range(self._arena.slots)]
        self._workers.announce(self.layout, self._arena.slots, self._arena.start)

    @override
    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        self._cancel()
        self._submit(jobs)
        while self._pending:
            number, job = self._pending.popleft()
            self._collect(wait=False)
            if number not in self._results and number > self._first:
                self._counters.add(Count.STARVED)
            while number not in self._results:
                self._collect(wait=True)
            # In a list, because a variable would keep the batch alive after the consumer has dropped it.
            batch = [self._hand_out(job, *self._results.pop(number))]
            # Before the consumer goes to work, so that the workers do not wait until it comes back.
            self._submit(jobs)
            yield batch.pop()

    @override
    def change(self, maker: BatchMaker, probe: Probe) -> bool:
        self._cancel()
        # No worker may have a ticket: each is made as the board says that lies before it.
        while self._out:
            self._collect(wait=True)
        layout = self._workers.change(maker, probe)
        if layout is not None and layout != self.layout:
            self.layout = layout
            self._retired.append(self._slots)
            self._arrays.clear()
            # Before there are new slots, so that there need not be memory for both.
            self._retire()
            self._allocate()
        return layout is not None

    def _retire(self) -> None:
        self._retired = [slots for slots in self._retired if not slots.retire()]

    @override
    def ready(self) -> bool:
        self._collect(wait=False)
        return not self._pending or self._pending[0][0] in self._results

    @override
    def memory(self) -> Any:
        return self._arena.memory()

    @override
    def counters(self) -> Words:
        return self._board.counters

    @override
    def close(self) -> None:
        self._workers.close()

    def _cancel(self) -> None:
        """Drops what is left of an earlier run."""
        self._first = self._next
        self._workers.cancel(self._first)
        self._pending.clear()
        for _, slot in self._results.values():
            self._slots.give_back(slot)
        self._results.clear()

    def _submit(self, jobs: Iterator[Job]) -> None:
        """Gives the workers as many jobs as there is room for."""
        if self._retired:
            self._retire()
        while len(self._pending) < self._ahead:
            slot = self._slots.take()
            if slot is None:
                if self._pending:
                    return
                if self._out:
                    # Tickets of an earlier run still hold slots.
                    self._collect(wait=True)
                else:
                    self._slots.wait()
                continue
            job = None
            try:
                job = next(jobs, None)
            finally:
                if job is None:
                    self._slots.give_back(slot)
            if job is None:
                return
            _enter(job, self._arrays[slot])
            self._out[self._next] = slot
            self._pending.append((self._next, job))
            self._workers.submit(Ticket(self._next, slot, len(job.rows), job.key))
            self._next += 1

    def _collect(self, *, wait: bool) -> None:
        """Takes in what has arrived from the workers."""
        for number, made in self._workers.results(wait=wait):
            if number == NO_TICKET and made.error is not None:
                raise made.error
            slot = self._out.pop(number)
            if number >= self._first:
                self._results[number] = made, slot
            else:
                self._slots.give_back(slot)

    def _hand_out(self, job: Job, made: Made, slot: int) -> Batch:
        if made.error is not None:
            self._slots.give_back(slot)
            raise made.error
        # Each worker must always have a slot, however many batches the consumer keeps.
        if len(self._slots) + len(self._out) + len(self._results) < self._board.workers:
            fields = self.layout.fields
            arrays = {
                name: (array if fields[name].internal else array[: made.size]).copy()
                for name, array in self._arrays[slot].items()
            }
            self._slots.give_back(slot)
            self._counters.add(Count.COPIED)
            return Batch(job, made, arrays)
        return Batch(job, made, *self._slots.lend(slot))


def _enter(job: Job, arrays: Arrays) -> None:
    """Writes positions and rows where the maker reads them."""
    count = len(job.rows)
    arrays["position"][:count] = job.positions
    arrays["row"][:count] = job.rows
