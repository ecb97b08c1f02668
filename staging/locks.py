"""Kernel locks by which processes agree who copies, who reads and who may evict.

All are `flock` locks. They belong to an open file description: a forked process shares its parent's, and the lock ends
when the last descriptor of it is closed, however the processes end. Hence no counters, no heartbeats, nothing to
clean up. For the same reason none is ever given up with ``LOCK_UN``, which in a forked process would take it away from
the parent, too; and lock files are never removed, since two processes could then hold locks on two files of one name.
Leases are for forked processes, too; exclusive locks are not: a worker that is forked while another thread copies
would hold them for the rest of its life, so it closes them first thing.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

_exclusive: weakref.WeakSet[Lock] = weakref.WeakSet()
_FLAGS = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC


class Lock:
    """A `flock` lock, held until it is closed or dropped.

    Args:
        path: The lock file; it is made where it is missing.
        shared: Whether others may hold it too.
        wait: Whether to wait for those who hold it otherwise.

    Raises:
        BlockingIOError: Not `wait`, and somebody holds it.
    """

    def __init__(self, path: Path, *, shared: bool = False, wait: bool = True) -> None:
        self.path = path
        self._descriptor = os.open(path, _FLAGS, 0o600)
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)
        if not shared:
            _exclusive.add(self)
        try:
            how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(self._descriptor, how if wait else how | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor. Whoever inherits it holds the lock, too."""
        return self._descriptor

    def close(self) -> None:
        """Gives it up, for this process."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lease(Lock):
    """A reader's lock on an entry, which keeps it from being evicted; taking it is what counts as using the entry.

    Forked processes share it. Pickled, it is taken anew where it arrives.

    Args:
        path: The entry's lease file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, shared=True)
        # On a read-only mount the lock holds all the same.
        with suppress(OSError):
            os.utime(self._descriptor)

    def __reduce__(self) -> tuple[Callable[..., Lease], tuple[Path]]:
        return Lease, (self.path,)


def _close_exclusive() -> None:
    for lock in list(_exclusive):
        lock.close()


os.register_at_fork(after_in_child=_close_exclusive)


def try_lock(path: Path) -> Lock | None:
    """The exclusive lock, or None if anybody holds it."""
    try:
        return Lock(path, wait=False)
    except BlockingIOError:
        return None


def is_held(path: Path, *, shared: bool = False) -> bool:
    """Whether somebody holds the lock; with `shared`, whether somebody holds it exclusively."""
    try:
        Lock(path, shared=shared, wait=False).close()
    except BlockingIOError:
        return True
    return False


def holders(path: Path, locks: Path = Path("/proc/locks")) -> tuple[int, ...]:
    """Processes that took a lock on `path`, as far as the kernel tells; forked ones that share it are not named."""
    try:
        status = path.stat()
        lines = locks.read_text().splitlines()
    except OSError:
        return ()
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in lines)
    # "1: FLOCK ADVISORY READ 4711 00:1b:42 0 EOF"; a waiting one has an arrow in its second field.
    found = {int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == wanted}
    return tuple(sorted(pid for pid in found if pid > 0))


def extend(path: Path, until: float) -> None:
    """Keeps a promise: the time (seconds since 1970) that the file's mtime names is `until` at the earliest."""
    with Lock(path):
        if path.stat().st_mtime < until:
            os.utime(path, (until, until))
