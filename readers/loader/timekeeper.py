"""Where the time of who makes batches goes: exactly for each batch, and by stages for one sample in `EVERY`.

For more the clock would cost too much: a raw record takes tens of microseconds.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Final

from ..laps import Laps, Stage, untimed
from ..store import RecordStore
from .batches import Progress
from .gauges import Clock, Count, Gauges

EVERY: Final = 17
"""One sample in so many is timed. Without a common divisor with usual batch sizes, so that it is not always the same
ones of a batch."""
_BLOCK: Final = 512
_STAGES: Final = len(Count)
_USED: Final = (Count.PROCESSOR, Count.DISK, Count.FAULTS, Count.BYTES)


class Timekeeper(Progress):
    """Keeps time while batches are made.

    Args:
        words: int64 [WORDS].
        stores: What records are read from.
        clock: Nanoseconds.
        every: One sample in so many is timed, 2 at least.
    """

    def __init__(
        self,
        words: memoryview,
        stores: Sequence[RecordStore] = (),
        clock: Clock = time.monotonic_ns,
        every: int = EVERY,
    ) -> None:
        super().__init__()
        self._stores = stores
        self._words = words
        self._gauges = Gauges(words, clock)
        self._clock = clock
        self._every = every
        self._left = every
        """Samples until one is timed; 0 while it is made."""
        self._sample = self._batch = 0
        """When the stage under way began, of the sample and of the batch."""
        self._used = self._usage()

    def idle(self) -> None:
        """There is no batch to make."""
        self._gauges.enter(Count.IDLE)

    def begin_batch(self) -> None:
        """A batch is going to be made."""
        self._gauges.enter(Count.BUSY)
        self._used = self._usage()
        self._left = self._left or self._every
        self._batch = self._clock()

    def account(self) -> None:
        """Counts what was used since the batch was begun, or since the last call."""
        words, used = self._words, self._usage()
        for count, before, after in zip(_USED, self._used, used, strict=True):
            words[count] += after - before
        self._used = used

    def begin(self, row: int) -> Laps:
        """See `Progress.begin`."""
        self.note(row)
        self._left -= 1
        if self._left > 0:
            return untimed
        if self._left < 0:
            # The one before was timed.
            self._lap(Stage.WRITE)
            self._left = self._every - 1
            return untimed
        self._sample = self._clock()
        return self._lap

    def end(self, stage: Stage | None) -> None:
        """See `Progress.end`."""
        if self._left == 0:
            self._lap(Stage.WRITE)
            self._left = self._every
        now = self._clock()
        if stage is not None:
            self._words[_STAGES + stage] += now - self._batch
        self._batch = now

    def _lap(self, stage: Stage) -> None:
        now = self._clock()
        self._words[_STAGES + stage] += now - self._sample
        self._sample = now

    def _usage(self) -> tuple[int, int, int, int]:
        """What this thread has used of each of `_USED`."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        read = sum(store.read_bytes for store in self._stores)
        # What the usage says of processor time is counted in ticks on many a kernel.
        return time.thread_time_ns(), _BLOCK * usage.ru_inblock, usage.ru_majflt, read
