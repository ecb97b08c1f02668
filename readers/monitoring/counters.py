"""What a process says of its work: counts and times in a row of machine words, which any process may read at any time.

Only their own process writes them, so no lock is needed and no message is sent; what a process wrote before it was
killed can still be read. The rows of all processes have the same form, and their sum is what all of them did together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.stages import Stage

Words = npt.NDArray[np.int64]
Clock = Callable[[], int]

_TRIES: Final = 3


class Count(IntEnum):
    """What the words mean. Times are in nanoseconds, of the clock that all processes of a machine share."""

    PHASE = 0
    """The count to which present time goes."""
    SINCE = 1
    """When that began."""
    PAUSE = 2
    """Time that belongs to nothing."""
    BUSY = 3
    """A worker makes batches."""
    IDLE = 4
    """A worker has none to make."""
    STARTUP = 5
    """The consumer waits for the first batch of a pass."""
    WAITING = 6
    """It waits for another one."""
    CONSUMING = 7
    """It works on one."""
    COLLECTING = 8
    """Part of `WAITING`: until batches are made, not until they are finished."""
    BATCHES = 9
    SAMPLES = 10
    SKIPPED = 11
    STARVED = 12
    """Batches that were not made yet when the consumer asked for them."""
    COPIED = 13
    """Batches that had to be handed out as copies."""
    BYTES = 14
    """Of the records that were read."""
    PROCESSOR = 15
    """Processor time of a worker that was busy."""
    DISK = 16
    """Bytes that had to be read from a disk for it."""
    FAULTS = 17
    """Page faults that had to wait for a disk."""


# Up to Python 3.11 a member of an enumeration takes longer to look up than to count it does.
PHASE, PAUSE, BUSY, IDLE = Count.PHASE, Count.PAUSE, Count.BUSY, Count.IDLE
STARTUP, WAITING, CONSUMING, COLLECTING = Count.STARTUP, Count.WAITING, Count.CONSUMING, Count.COLLECTING
BATCHES, SAMPLES, SKIPPED = Count.BATCHES, Count.SAMPLES, Count.SKIPPED


WORDS: Final = len(Count) + len(Stage)
"""In a row: the counts, then the stages."""


class Gauges:
    """The row of this process.

    Args:
        words: int64 [WORDS].
        clock: Nanoseconds.
    """

    def __init__(self, words: memoryview, clock: Clock = time.monotonic_ns) -> None:
        self._words = words
        self._clock = clock

    def enter(self, phase: Count) -> int:
        """From now on, which is returned, time goes to `phase`."""
        words, now = self._words, self._clock()
        phase_before, since = words[0], words[1]
        # Who reads now must not count the time twice.
        words[1] = 0
        if since:
            words[phase_before] += now - since
        words[0], words[1] = phase, now
        return now

    def add(self, count: Count, amount: int = 1) -> None:
        """Counts."""
        self._words[count] += amount


def blank() -> memoryview:
    """A row of one's own, int64 [WORDS]."""
    return memoryview(bytearray(8 * WORDS)).cast("q")


def totals(rows: Words, now: int) -> Words:
    """The sum of some rows, time up to `now` included: int64 [WORDS], without phases.

    Args:
        rows: int64 [processes, WORDS].
        now: Nanoseconds.
    """
    total = np.zeros(WORDS, np.int64)
    for row in rows:
        total += _read(row, now)
    return total


def _read(row: Words, now: int) -> Words:
    for _ in range(_TRIES):
        found = row.copy()
        # Its process may be about to enter another phase, or was killed then.
        if (since := int(found[Count.SINCE])) and since == row[Count.SINCE]:
            break
    if since:
        found[found[Count.PHASE]] += max(0, now - since)
    found[: Count.PAUSE] = 0
    return found
