"""How far a copy, a check or a warm-up is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CopyProgress:
    """How far a copy, check or warm-up is.

    Attributes:
        done: Bytes that are where they belong.
        total: Bytes in all.
        resumed: Bytes of `done` that an earlier, interrupted copy had left.
    """

    done: int
    total: int
    resumed: int = 0


Show = Callable[[CopyProgress], None]


class Tally:
    """Bytes done, counted by all threads and shown by one."""

    def __init__(self, total: int, show: Show | None) -> None:
        self.copied = 0
        self.resumed = 0
        self._again = 0
        self._total = total
        self._show = show
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """So many bytes were read or copied."""
        with self._lock:
            self.copied += count

    def resume(self, count: int) -> None:
        """So many bytes were there already, and sound."""
        with self._lock:
            self.resumed += count

    def again(self, count: int) -> None:
        """So many bytes, counted already, will be copied once more."""
        with self._lock:
            self._again += count

    def show(self) -> None:
        """Tells the caller; for the calling thread alone."""
        if self._show is not None:
            with self._lock:
                progress = CopyProgress(self.copied + self.resumed - self._again, self._total, self.resumed)
            self._show(progress)
