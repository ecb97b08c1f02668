"""Options of staging, and the progress it reports."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from packtrain._core.arguments import checks_names, flag, number, path_of, whole
from packtrain._core.errors import UsageError
from packtrain._core.sizes import byte_count

from .root import SHM

_MOST_GRACE: Final = 10 * 366 * 86400

Phase = Literal["wait", "copy", "check", "warm"]


@checks_names()
@dataclass(frozen=True)
class StageOptions:
    """The folder to stage to, and limits on what staging may take.

    Attributes:
        to: Folder that holds this user's staged copies, as a text or path. It must be on this machine, not on a network
            file system.
        budget: Maximum number of bytes that all copies in `to` may take together, as a number or a text such as
            ``"200GiB"``; None for no limit other than the available space.
        reserve: Bytes to leave free, for example for the shared memory of loaders, as `budget`; None for a sixteenth of
            the file system, at most 2 GiB.
        grace: Seconds during which the copy is safe from eviction even if nobody reads it; at most ten years.
        partial: If the dataset does not fit, copy the shards that fit; readers take the others from the source. Copies
            of a dataset in an object store are never partial.
        warm: Also read a copy on a disk into the page cache.
        threads: Number of threads that copy; None: 8 from a disk, 16 from an object store.
        budget_bytes: `budget` in bytes.
        reserve_bytes: `reserve` in bytes.

    Raises:
        UsageError: A value is of the wrong type, or out of range.
    """

    to: str | os.PathLike[str] = SHM
    budget: int | str | None = None
    reserve: int | str | None = None
    grace: float = 0
    partial: bool = False
    warm: bool = False
    threads: int | None = None
    budget_bytes: int | None = field(init=False, repr=False)
    reserve_bytes: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        path_of("to", self.to)
        for name in ("budget", "reserve"):
            given = getattr(self, name)
            object.__setattr__(self, f"{name}_bytes", None if given is None else byte_count(name, given, 0))
        number("grace", self.grace, 0, _MOST_GRACE, "0 seconds to ten years")
        for name in ("partial", "warm"):
            flag(name, getattr(self, name))
        if self.threads is not None:
            whole("threads", self.threads, 1)


_COPY_FIRST: Final = "or copy the whole dataset with `packtrain stage`, which accepts it, and open the printed path"
_REFUSED_BY_CACHES: Final = {
    "partial": 'and say how much the cache may hold, as in open_dataset(..., budget="200GiB")',
    "warm": _COPY_FIRST,
    "threads": _COPY_FIRST,
}
"""Options that only a copy honours, and what to do in their place. The table of docs/staging.md has all options."""


def require_cache(options: StageOptions) -> None:
    """Check that a cache of a dataset in an object store can honour some options.

    It makes no difference that there may be a complete copy: machines with and without one behave alike.

    Raises:
        UsageError: It cannot.
    """
    for name, remedy in _REFUSED_BY_CACHES.items():
        if (value := getattr(options, name)) not in (None, False):
            raise UsageError(
                f"StageOptions({name}={value}): a dataset in an object store is read through a cache, which knows "
                f"no `{name}`: leave it out, {remedy}"
            )


def options_from(to: StageOptions | str | os.PathLike[str] | None) -> StageOptions:
    """The options that a caller means: options, a folder to stage to, or None for the defaults.

    Raises:
        UsageError: `to` is none of these.
    """
    if to is None:
        return StageOptions()
    return to if isinstance(to, StageOptions) else StageOptions(to)


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
