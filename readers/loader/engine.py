"""Makes batches one after the other: in this process, or ahead of the consumer in others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from multiprocessing.context import BaseContext
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..monitoring.counters import Count, Gauges, Words, blank
from ..monitoring.timing import Timekeeper
from .arena import Arena, Arrays, Event, Layout, Slots
from .batches import BatchMaker, Made
from .randomness import preserved
from .worker import Reply, Ticket
from .workers import Workers

# Slots for what the consumer holds: the batch it works on, and the one that it asks for meanwhile.
_HELD: Final = 2


class Job(NamedTuple):
    """A batch to be made.

    Attributes:
        key: Of the epoch's random numbers.
        positions: Of its samples in the epoch, int64 [samples].
        rows: Of its samples in the dataset, likewise.
        consumed: Positions of the epoch that are used up with it.
    """

    key: int
    positions: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    consumed: int


class Batch(NamedTuple):
    """A batch that was made: the first `made.size` samples of `arrays`.

    Attributes:
        job: What was to be made.
        made: What came of it.
        arrays: Where it lies.
        after: Takes an event before which the arrays must not be written again, even if none of them lives; None if
            they are the consumer's for ever.
    """

    job: Job
    made: Made
    arrays: Arrays
    after: Callable[[Event], None] | None = None


class Engine(Protocol):
    """Makes batches."""

    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        """The batches of some jobs in their order; what is left of an earlier run is given up.

        Raises:
            PacktrainError: A batch cannot be made.
        """

    def ready(self) -> bool:
        """Whether the run under way can go on without waiting for its next batch to be made.

        Raises:
            PacktrainError: It cannot go on.
        """

    def memory(self) -> Any:
        """The memory in which batches lie, as a ctypes array that keeps it there; None if each has its own."""

    def gauges(self) -> Words:
        """What the processes say of their work, int64 [processes, words]."""

    def close(self) -> None:
        """Ends what was started."""


class SerialEngine:
    """Makes each batch when it is asked for.

    Args:
        maker: Makes batches.
        layout: Of their arrays.
    """

    def __init__(self, maker: BatchMaker, layout: Layout) -> None:
        self._maker = maker
        self._layout = layout
        self._words = blank()
        self._progress = Timekeeper(self._words, maker.samples.stores)

    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        """See `Engine.run`."""
        for job in jobs:
            arrays = self._layout.new()
            _enter(job, arrays)
            self._progress.begin_batch()
            self._progress.disregard()
            try:
                with preserved() if self._maker.seeds else nullcontext():
                    made = self._maker.make(job.key, len(job.rows), self._layout, arrays, self._progress)
            finally:
                self._progress.account()
                self._progress.idle()
            yield Batch(job, made, arrays)

    def ready(self) -> bool:
        """See `Engine.ready`."""
        return False

    def memory(self) -> Any:
        """See `Engine.memory`."""
        return None

    def gauges(self) -> Words:
        """See `Engine.gauges`."""
        return np.frombuffer(self._words, np.int64)[np.newaxis]

    def close(self) -> None:
        """See `Engine.close`."""


class ParallelEngine:
    """Makes batches ahead, in worker processes.

    Args:
        maker: Makes batches.
        layout: Of their arrays.
        workers: How many.
        prefetch_factor: Batches ahead, for each worker.
        context: How they are started.
        init: Called in each worker with its number.

    Raises:
        LoaderError: There is no memory for the batches.
    """

    def __init__(
        self,
        maker: BatchMaker,
        layout: Layout,
        workers: int,
        prefetch_factor: int,
        context: BaseContext,
        init: Callable[[int], None] | None = None,
    ) -> None:
        self._ahead = workers * prefetch_factor
        self._arena = Arena(layout, self._ahead + _HELD, workers)
        self._slots = Slots(self._arena)
        self._arrays = [self._arena.arrays(number) for number in range(self._arena.slots)]
        self._workers = Workers(maker, self._arena, context, init)
        self._gauges = Gauges(self._arena.board.words(workers))
        self._next = 0
        self._first = 0
        """The ticket with which the present run began."""
        self._out: dict[int, int] = {}
        """Slot of each ticket that was not yet replied to."""
        self._replies: dict[int, tuple[Reply, int]] = {}
        """Reply and slot of tickets whose batch was not yet handed out."""
        self._pending: deque[tuple[int, Job]] = deque()
        """Tickets of the present run and their jobs, in order."""

    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        """See `Engine.run`."""
        self._give_up()
        self._submit(jobs)
        while self._pending:
            number, job = self._pending.popleft()
            self._collect(wait=False)
            if number not in self._replies and number > self._first:
                self._gauges.add(Count.STARVED)
            while number not in self._replies:
                self._collect(wait=True)
            # In a list, because a variable would keep the batch alive after the consumer has dropped it.
            batch = [self._hand_out(job, *self._replies.pop(number))]
            # Before the consumer goes to work: the workers should not wait for it to come back.
            self._submit(jobs)
            yield batch.pop()

    def ready(self) -> bool:
        """See `Engine.ready`."""
        self._collect(wait=False)
        return not self._pending or self._pending[0][0] in self._replies

    def memory(self) -> Any:
        """See `Engine.memory`."""
        return self._arena.memory()

    def gauges(self) -> Words:
        """See `Engine.gauges`."""
        return self._arena.board.gauges

    def close(self) -> None:
        """See `Engine.close`."""
        self._workers.close()

    def _give_up(self) -> None:
        """Forgets an earlier run."""
        self._first = self._next
        self._workers.cancel(self._first)
        self._pending.clear()
        for _, slot in self._replies.values():
            self._slots.give_back(slot)
        self._replies.clear()

    def _submit(self, jobs: Iterator[Job]) -> None:
        """Gives the workers as much to do as there is room for."""
        while len(self._pending) < self._ahead:
            slot = self._slots.take()
            if slot is None:
                if self._pending:
                    return
                if self._out:
                    # Batches of an earlier run are still being given up.
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
        for reply in self._workers.replies(wait=wait):
            if reply.error is not None and reply.ticket < 0:
                raise reply.error
            slot = self._out.pop(reply.ticket)
            if reply.ticket >= self._first:
                self._replies[reply.ticket] = reply, slot
            else:
                self._slots.give_back(slot)

    def _hand_out(self, job: Job, reply: Reply, slot: int) -> Batch:
        if reply.error is not None or reply.made is None:
            self._slots.give_back(slot)
            assert reply.error is not None
            raise reply.error
        # The workers must always have a slot each, however many batches the consumer keeps.
        if len(self._slots) + len(self._out) + len(self._replies) < self._arena.workers:
            arrays = {name: array[: reply.made.size].copy() for name, array in self._arrays[slot].items()}
            self._slots.give_back(slot)
            self._gauges.add(Count.COPIED)
            return Batch(job, reply.made, arrays)
        return Batch(job, reply.made, *self._slots.lend(slot))


def _enter(job: Job, arrays: Arrays) -> None:
    count = len(job.rows)
    arrays["position"][:count] = job.positions
    arrays["row"][:count] = job.rows
