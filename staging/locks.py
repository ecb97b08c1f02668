"""Locks by which processes agree on who copies, who reads and who may evict.

How these locks behave across forks and crashes is described in `packtrain._core.locks`. Lock files are never removed:
two processes could then hold locks on two different files of the same name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from packtrain._core.locks import Lock


class Lease(Lock):
    """A reader's lock on an entry, which keeps it from being evicted. Taking it counts as using the entry.

    Forked processes share the lease. When a lease is unpickled, it is taken again in the receiving process.

    Args:
        path: The entry's lease file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, shared=True)
        # The time cannot be set on a read-only mount, but the lock still holds there.
        with suppress(OSError):
            os.utime(self._descriptor)

    def __reduce__(self) -> tuple[Callable[..., Lease], tuple[Path]]:
        return Lease, (self.path,)


def try_lock(path: Path) -> Lock | None:
    """Takes the exclusive lock, or returns None if anybody holds it."""
    try:
        return Lock(path, wait=False)
    except BlockingIOError:
        return None


def is_held(path: Path, *, shared: bool = False) -> bool:
    """True if somebody holds the lock; with `shared`, True if somebody holds it exclusively."""
    try:
        Lock(path, shared=shared, wait=False).close()
    except BlockingIOError:
        return True
    return False


def holders(path: Path, locks: Path = Path("/proc/locks")) -> tuple[int, ...]:
    """Ids of the processes that took a lock on `path`, as far as the kernel tells.

    Forked processes that share a lock are not listed.
    """
    try:
        status = path.stat()
        lines = locks.read_text().splitlines()
    except OSError:
        return ()
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in lines)
    # "1: FLOCK ADVISORY READ 4711 00:1b:42 0 EOF"; a waiting process has an arrow in the second field.
    found = {int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == wanted}
    return tuple(sorted(pid for pid in found if pid > 0))


def extend(path: Path, until: float) -> None:
    """Extends a promise: sets the file's mtime to `until` (seconds since 1970), unless it is later already."""
    with Lock(path):
        if path.stat().st_mtime < until:
            os.utime(path, (until, until))
