"""Options of staging, and the progress it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .progress import OnCopyProgress
from .root import SHM
from .transfer import THREADS

Phase = Literal["wait", "copy", "check", "warm"]


@dataclass(frozen=True)
class StageOptions:
    """Where a dataset is staged, and what resources that may take.

    Attributes:
        to: Folder that holds this user's staged copies. It must be on this machine, not on a network file system.
        budget: Maximum number of bytes that all copies in `to` may take together; None for no limit other than the
            available space.
        reserve: Bytes to leave free, for example for the shared memory of loaders; None for a sixteenth of the file
            system, at most 2 GiB.
        grace: Seconds during which the copy is safe from eviction even if nobody reads it.
        partial: If the dataset does not fit, copy the shards that fit; readers take the others from the source.
        warm: Also read a copy on a disk into the page cache.
        threads: Number of threads that copy.
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
    """Progress of staging.

    Attributes:
        phase: What is happening now: ``"wait"`` (another process is copying the same dataset), ``"copy"``,
            ``"check"`` or ``"warm"``.
        done: Bytes processed so far, including those of earlier runs.
        total: Bytes to process in this phase.
        resumed: Bytes of `done` that earlier runs copied.
        note: Additional text for people.
    """

    phase: Phase
    done: int
    total: int
    resumed: int = 0
    note: str = ""


OnStageProgress = Callable[[StageProgress], None]
OnWarning = Callable[[str], None]


def relay(on_progress: OnStageProgress, phase: Phase) -> OnCopyProgress:
    """A callback that passes the progress of a transfer on as progress of a phase of staging."""
    return lambda progress: on_progress(StageProgress(phase, progress.done, progress.total, progress.resumed))
