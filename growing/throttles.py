"""Throttles of a filler: bytes per second, and samples that readers take for each sample that is written."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from packtrain._core.reader_reports import EndedReaders, reports
from packtrain._core.typed import MOST


class TokenBucket:
    """A token bucket: the bytes that may pass are those that have accrued since the last ones.

    Until any time t, at most ``burst + bytes_per_second * t`` bytes pass, apart from the last piece. Time that was lost
    to sleeping too long is made up for within the burst, so that the rate is right over minutes.

    Args:
        bytes_per_second: The rate; None for no limit.
        burst: The most bytes that may pass at once after a pause; None for those of half a second.
        clock: Tells the time in seconds.
    """

    def __init__(
        self, bytes_per_second: float | None, burst: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate: Final = bytes_per_second
        half_a_second = 0.0 if bytes_per_second is None else bytes_per_second / 2
        self._burst: Final = half_a_second if burst is None else min(burst, half_a_second)
        self._clock: Final = clock
        self._accrued = 0.0
        self._at = clock()

    def wait_for(self, size: int) -> float:
        """Account for a piece of this size that is about to pass.

        Returns:
            Seconds to wait first; 0 if it may pass at once.
        """
        if self._rate is None:
            return 0.0
        now = self._clock()
        self._accrued = min(self._burst, self._accrued + (now - self._at) * self._rate) - size
        self._at = now
        return max(0.0, -self._accrued / self._rate)


class ReaderThrottle:
    """Throttle that lets the filler write as many samples as readers have made room for.

    With `samples_per_insert`, sample number n is written only when readers have taken at least
    ``samples_per_insert * (n - started)`` samples. `started` is the number of samples that had been written when the
    first one was taken, or when the cache was full for the first time, whichever came first. Until then there is no
    limit. This is the rule of Reverb's ``SampleToInsertRatio``, with `started` as its ``min_size_to_sample``.

    Args:
        root: The cache's folder.
        samples_per_insert: Samples taken for each one that is written; None or 0: no limit.

    Attributes:
        taken: Samples that all readers have taken, also those that have ended.
        seen: Some reader has gone through a whole generation that ended before the sample of this number.

    Raises:
        CorruptFile: What is known about readers that have ended is damaged.
    """

    def __init__(self, root: Path, samples_per_insert: float | None) -> None:
        self._root: Final = root
        self._ratio: Final = samples_per_insert or 0.0
        self._ended = EndedReaders.load(root)
        self.taken = self._ended.taken
        self.seen = self._ended.seen

    def look(self, written: int, *, full: bool = False) -> None:
        """Read the reports of all readers.

        Args:
            written: Number of samples that have been published, ever.
            full: True if the newest generation has left out samples.
        """
        found = list(reports(self._root))
        self._ended = self._ended.with_ended(self._root, found)
        alive = [report for report in found if report.alive]
        self.taken = min(MOST, self._ended.taken + sum(report.taken for report in alive))
        self.seen = max([self._ended.seen, *(report.seen for report in alive)])
        if self._ended.started is None and (self.taken or full):
            self._ended = replace(self._ended, started=written)
            self._ended.save(self._root)

    @property
    def limit(self) -> float:
        """The number of the first sample that must not be written yet."""
        if self._ended.started is None or not self._ratio:
            return math.inf
        return self._ended.started + math.floor(self.taken / self._ratio) + 1

    def lacking(self, number: int) -> int:
        """Return how many samples readers are to take before the sample of this number may be written."""
        started = self._ended.started or 0
        return max(0, math.ceil(self._ratio * (number - started)) - self.taken)
