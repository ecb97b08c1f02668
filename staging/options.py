"""What a caller says of staging, and what it is told meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .root import SHM
from .transfer import THREADS, CopyProgress

Phase = Literal["wait", "copy", "check", "warm"]


@dataclass(frozen=True)
class StageOptions:
    """Where a dataset is staged, and what that may cost.

    Attributes:
        to: Folder below which this user's copies lie; on this machine, not on a network file system.
        budget: Bytes that all of them together may take; None: what the file system holds.
        reserve: Bytes to leave free for others, such as the shared memory of loaders; None: see `room.default_reserve`.
        grace: Seconds for which the path stays safe from eviction even when nobody reads it.
        partial: Where there is no room for all of it, copy what fits; readers take the rest from the source.
        warm: Read a copy on a disk into the page cache, too.
        threads: Threads that copy.
    """

    to: Path = SHM
    budget: int | None = None
    reserve: int | None = None
    grace: float = 0
    partial: bool = False
    warm: bool = False
    threads: int = THREADS


@dataclass(frozen=True)
class StageProgress:
    """How far staging is.

    Attributes:
        phase: ``"wait"`` for another process that copies the same, ``"copy"``, ``"check"`` or ``"warm"``.
        done: Bytes dealt with, those of earlier runs included.
        total: Bytes to deal with.
        resumed: Bytes that earlier runs have copied.
        note: More for people.
    """

    phase: Phase
    done: int
    total: int
    resumed: int = 0
    note: str = ""


Show = Callable[[StageProgress], None]
Warn = Callable[[str], None]


def relay(show: Show, phase: Phase) -> Callable[[CopyProgress], None]:
    """Passes on how far a transfer is, as a phase of staging."""
    return lambda progress: show(StageProgress(phase, progress.done, progress.total, progress.resumed))
