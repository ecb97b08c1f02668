"""Where the time of who makes batches goes: exactly for each batch, and by stages for one sample in `EVERY`.

For more the clock would cost too much: a raw record takes tens of microseconds.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from packtrain._codec.stages import OnStage, Stage, untimed

from ..dataset.store import RecordStore
from ..loader.batches import Progress
from .counters import BUSY, IDLE, Clock, Count, Gauges

EVERY: Final = 32
"""One sample in so many is timed, on average. Which ones is left to chance: were it every 32nd, it would be the
same ones of each batch."""
_BLOCK: Final = 512
_STAGES: Final = len(Count)
_USED: Final = (Count.PROCESSOR, Count.DISK, Count.FAULTS, Count.BYTES)


class Timekeeper(Progress):
    """Keeps time while batches are made.

    Args:
        words: int64 [WORDS].
        stores: What records are read from.
        clock: Nanoseconds.
        every: One sample in so many is timed; 1: all of them.
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
        self._most = 2 * every - 1
        """Samples from one that is timed to the next: 1 to so many, each as likely as the others."""
        self._chance = Random(0)
        self._left = self._chance.randrange(self._most)
        """Samples until one is timed."""
        self._sample = self._batch = 0
        """When the stage under way began, of the sample and of the batch."""
        self._used = self._usage()

    def idle(self) -> None:
        """There is no batch to make."""
        self._gauges.enter(IDLE)

    def begin_batch(self) -> None:
        """A batch is going to be made."""
        self._batch = self._gauges.enter(BUSY)

    def disregard(self) -> None:
        """What this thread has used since the last call was not for batches."""
        self._used = self._usage()

    def account(self) -> None:
        """Counts what this thread has used since the last call."""
        words, before = self._words, self._used
        self._used = used = self._usage()
        for number, count in enumerate(_USED):
            words[count] += used[number] - before[number]

    def on_stage(self, samples: int) -> Iterable[OnStage]:
        """See `Progress.on_stage`."""
        on_stage: list[OnStage] = [untimed] * samples
        while self._left < samples:
            on_stage[self._left] = self._lap
            self._left += 1 + self._chance.randrange(self._most)
        self._left -= samples
        return on_stage

    def start(self) -> None:
        """See `Progress.start`."""
        self._sample = self._clock()

    def end(self, stage: Stage | None) -> None:
        """See `Progress.end`."""
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
        read = 0
        for store in self._stores:
            read += store.read_bytes
        # What the usage says of processor time is counted in ticks on many a kernel.
        return time.thread_time_ns(), _BLOCK * usage.ru_inblock, usage.ru_majflt, read
