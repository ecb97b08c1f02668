"""Progress of a copy, a check or a warm-up, in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CopyProgress:
    """Progress of a copy, a check or a warm-up.

    Attributes:
        done: Bytes finished so far.
        total: Bytes to process in all.
        resumed: Bytes of `done` that were already there from an earlier, interrupted copy.
    """

    done: int
    total: int
    resumed: int = 0


OnCopyProgress = Callable[[CopyProgress], None]


class ProgressCounter:
    """Counts bytes from several threads and reports them from one.

    Args:
        total: Bytes to process in all.
        on_progress: Called by `report` with the current counts.
    """

    def __init__(self, total: int, on_progress: OnCopyProgress | None) -> None:
        self.copied = 0
        self.resumed = 0
        self._taken_back = 0
        self._total = total
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Counts bytes that were read or copied."""
        with self._lock:
            self.copied += count

    def add_resumed(self, count: int) -> None:
        """Counts bytes that an earlier copy left intact."""
        with self._lock:
            self.resumed += count

    def take_back(self, count: int) -> None:
        """Takes back bytes that were counted before and will be copied again."""
        with self._lock:
            self._taken_back += count

    def report(self) -> None:
        """Calls `on_progress`. Only the thread that started the work may call this."""
        if self._on_progress is not None:
            with self._lock:
                progress = CopyProgress(self.copied + self.resumed - self._taken_back, self._total, self.resumed)
            self._on_progress(progress)
