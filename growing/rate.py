"""Holds a filler to a rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final


class Rate:
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
        """Takes note that a piece of this size is about to pass.

        Returns:
            Seconds to wait first; 0 if it may pass at once.
        """
        if self._rate is None:
            return 0.0
        now = self._clock()
        self._accrued = min(self._burst, self._accrued + (now - self._at) * self._rate) - size
        self._at = now
        return max(0.0, -self._accrued / self._rate)
