"""The counters of a process: counts and times in a row of machine words that any process may read at any time.

Only the process itself writes its row, so no lock is needed and no message is sent. What a process wrote before it was
killed can still be read. The rows of all processes have the same form, and their sum is what all of them did together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.stages import Stage

Words = npt.NDArray[np.int64]
Clock = Callable[[], int]

_TRIES: Final = 3


class Count:
    """Number of each word of a row, under the name that its figure has.

    Times are in nanoseconds, by the clock that all processes of a machine share.
    """

    PHASE: Final = 0
    """The phase that the process is in: the word that its time is added to."""
    SINCE: Final = 1
    """When that phase began."""
    PAUSE: Final = 2
    """Phase: no pass is under way. Belongs to no figure."""
    BUSY: Final = 3
    """Phase: a worker makes batches."""
    IDLE: Final = 4
    """Phase: a worker has no batch to make."""
    STARTUP: Final = 5
    """Phase: the consumer waits for the first batch of a pass."""
    WAITING: Final = 6
    """Phase: the consumer waits for a later batch."""
    CONSUMING: Final = 7
    """Phase: the consumer works on a batch."""
    COLLECTING: Final = 8
    """The part of `WAITING` until batches are made; the rest is their postprocessing."""
    BATCHES: Final = 9
    """Batches handed out."""
    SAMPLES: Final = 10
    """Samples handed out."""
    SKIPPED: Final = 11
    """Damaged records that were left out."""
    STARVED: Final = 12
    """Batches that were not ready when the consumer asked for them."""
    COPIED: Final = 13
    """Batches that had to be handed out as copies."""
    READ_BYTES: Final = 14
    """Bytes of the records that were read."""
    PROCESSOR: Final = 15
    """Processor time of a worker while it was busy."""
    DISK_BYTES: Final = 16
    """Bytes that had to be read from a disk meanwhile."""
    DISK_FAULTS: Final = 17
    """Page faults that had to wait for a disk."""
    REFUSED: Final = 18
    """Images that DALI or the GPU refused, so that packtrain decoded them on the CPU."""
    CHUNK: Final = 19
    """Time that a worker waited for chunks from an object store while it was busy."""
    FETCHED_BYTES: Final = 20
    """Bytes that were fetched from it meanwhile."""


COUNTS: Final = 21
WORDS: Final = COUNTS + len(Stage)
"""Words in a row: the counts, then the time of each stage in nanoseconds."""


class Counters:
    """The row of this process.

    Args:
        words: The row, int64 [WORDS].
        clock: Returns nanoseconds.
    """

    def __init__(self, words: memoryview, clock: Clock = time.monotonic_ns) -> None:
        self._words = words
        self._clock = clock

    @property
    def phase(self) -> int:
        """The present phase."""
        return int(self._words[0])

    def enter(self, phase: int) -> int:
        """Begins a phase, which ends the one before it.

        Args:
            phase: The word that time is added to from now on.

        Returns:
            The present time in nanoseconds.
        """
        words, now = self._words, self._clock()
        phase_before, since = words[0], words[1]
        # A process that reads the row at this moment must not count the time twice.
        words[1] = 0
        if since:
            words[phase_before] += now - since
        words[0], words[1] = phase, now
        return now

    def add(self, count: int, amount: int = 1) -> None:
        """Adds to a count."""
        self._words[count] += amount


def blank() -> memoryview:
    """A new row of zeros in this process's own memory, int64 [WORDS]."""
    return memoryview(bytearray(8 * WORDS)).cast("q")


def totals(rows: Words, now: int) -> Words:
    """The sum of some rows, each with the time of its present phase up to `now`.

    Args:
        rows: int64 [processes, WORDS].
        now: The present time in nanoseconds.

    Returns:
        int64 [WORDS], with 0 for `Count.PHASE` and `Count.SINCE`.
    """
    total = np.zeros(WORDS, np.int64)
    for row in rows:
        total += _read(row, now)
    return total


def _read(row: Words, now: int) -> Words:
    for _ in range(_TRIES):
        found = row.copy()
        # No time of beginning: the process is about to enter another phase, or was killed while doing so.
        if (since := int(found[Count.SINCE])) and since == row[Count.SINCE]:
            break
    if since:
        found[found[Count.PHASE]] += max(0, now - since)
    found[: Count.PAUSE] = 0
    return found
