"""Measures the work of a process that makes batches: every batch exactly, and the stages of one sample in `EVERY`.

Timing the stages of more samples would cost too much: a raw record takes only tens of microseconds.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from packtrain._codec.stages import OnStage, Stage, untimed

from ..dataset.store import Opened
from .counters import COUNTS, Clock, Count, Counters, blank

EVERY: Final = 32
"""One sample in this many is timed, on average. Samples are chosen at random: every 32nd would often be at the
same place in each batch."""
_BLOCK_BYTES: Final = 512
_USAGE: Final = (Count.PROCESSOR, Count.DISK_BYTES, Count.DISK_FAULTS, Count.READ_BYTES, Count.CHUNK)


class StageTimer:
    """Measures how long the stages of batches and samples take, and what the thread uses meanwhile.

    Args:
        words: The counters of this process, int64 [WORDS]; None: memory of its own, for one who does not measure.
        opened: Where records are read from.
        clock: Returns nanoseconds.
        current: Gets the row that is being read, int64 [1]; None: memory of its own.
    """

    def __init__(
        self,
        words: memoryview | None = None,
        opened: Sequence[Opened] = (),
        clock: Clock = time.monotonic_ns,
        current: memoryview | None = None,
    ) -> None:
        self.current = memoryview(bytearray(8)).cast("q") if current is None else current
        """The row that is being read, int64 [1]. A row is written here before it is read."""
        self._opened = opened
        self._words = blank() if words is None else words
        self._counters = Counters(self._words, clock)
        self._clock = clock
        self._most = 2 * EVERY - 1
        """The largest distance between two timed samples; every distance from 1 up to it is equally likely."""
        self._chance = Random(0)
        self._left = self._chance.randrange(self._most)
        """Samples before the next timed one."""
        self._sample_stage = self._batch_stage = 0
        """When the present stage of the sample and that of the batch began, in nanoseconds."""
        self._used = self._usage()

    def idle(self) -> None:
        """There is no batch to make."""
        self._counters.enter(Count.IDLE)

    def begin_batch(self) -> None:
        """A batch begins."""
        self._batch_stage = self._counters.enter(Count.BUSY)

    def discard_usage(self) -> None:
        """Leaves out what this thread has used since the last call: it was not used for batches."""
        self._used = self._usage()

    def count_usage(self) -> None:
        """Adds what this thread has used since the last call to the counters."""
        words, before = self._words, self._used
        self._used = used = self._usage()
        for number, count in enumerate(_USAGE):
            words[count] += used[number] - before[number]

    def callbacks(self, samples: int) -> Iterable[OnStage]:
        """One callback for each of the next `samples` samples: `untimed` for those whose stages are not timed."""
        callbacks: list[OnStage] = [untimed] * samples
        while self._left < samples:
            callbacks[self._left] = self._end_sample_stage
            self._left += 1 + self._chance.randrange(self._most)
        self._left -= samples
        return callbacks

    def begin_sample(self) -> None:
        """A sample whose stages are timed begins."""
        self._sample_stage = self._clock()

    def end_stage(self, stage: Stage | None) -> None:
        """A stage of the whole batch ends.

        Args:
            stage: It took all the time since the last call or, for the first call, since the batch was begun. None if
                that time was spent on single samples, which report their stages themselves.
        """
        now = self._clock()
        if stage is not None:
            self._words[COUNTS + stage] += now - self._batch_stage
        self._batch_stage = now

    def _end_sample_stage(self, stage: Stage) -> None:
        now = self._clock()
        self._words[COUNTS + stage] += now - self._sample_stage
        self._sample_stage = now

    def _usage(self) -> tuple[int, int, int, int, int]:
        """Return what this thread has used so far, in the order of `_USAGE`."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        read = waited = 0
        for files in self._opened:
            read += files.read_bytes
            waited += files.waited_ns
        # getrusage has processor time, too, but many kernels count it in ticks.
        return time.thread_time_ns(), _BLOCK_BYTES * usage.ru_inblock, usage.ru_majflt, read, waited
