"""Kernel locks on files: they end with the processes that hold them, however those end.

All of them are `flock` locks. Such a lock belongs to an open file description: a forked process shares its parent's
lock, and the lock ends when its last descriptor is closed. So there are no counters, no heartbeats and nothing to clean
up. For the same reason no lock is ever released with ``LOCK_UN``: in a forked process, that would also release the
parent's lock. A forked process keeps shared locks, unless they were taken for this process alone. It closes exclusive
locks at once: otherwise a worker that is forked while another thread holds one would hold it for the rest of its life.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Self

from .forks import call_in_forked


class Lock:
    """A `flock` lock, held until it is closed or garbage-collected.

    Args:
        path: The lock file.
        shared: Whether others may hold the lock too.
        wait: Whether to wait while others hold the lock in a way that excludes this one.
        inherited: Whether a forked process holds the lock, too; None: if it is shared.
        flags: Flags for `os.open`. By default the file is opened for reading, which is enough on a local file system,
            and created if it is missing. An exclusive lock on NFS needs ``O_RDWR``.
        opener: Called like `os.open` to open the file.

    Raises:
        BlockingIOError: `wait` is False and somebody else holds the lock.
    """

    def __init__(
        self,
        path: Path,
        *,
        shared: bool = False,
        wait: bool = True,
        inherited: bool | None = None,
        flags: int = os.O_RDONLY | os.O_CREAT,
        opener: Callable[[Path, int, int], int] = os.open,
    ) -> None:
        self.path = path
        self._descriptor = opener(path, flags | os.O_CLOEXEC, 0o600)
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)
        if not (shared if inherited is None else inherited):
            call_in_forked(self.close)
        try:
            mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(self._descriptor, mode if wait else mode | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor. A process that inherits it holds the lock too."""
        return self._descriptor

    @property
    def held(self) -> bool:
        """False once this process has released the lock, or if it was forked and does not hold it."""
        return self._finalizer.alive

    def close(self) -> None:
        """Releases the lock for this process."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_locked(path: Path, *, shared: bool = False, opener: Callable[[Path, int, int], int] = os.open) -> bool:
    """Tells whether somebody holds a lock with which this one does not go together.

    Raises:
        OSError: The file cannot be opened or locked.
    """
    try:
        Lock(path, shared=shared, wait=False, inherited=False, opener=opener).close()
    except BlockingIOError:
        return True
    return False


def lock_holders(status: os.stat_result, locks: Path = Path("/proc/locks")) -> tuple[int, ...]:
    """Ids of the processes that took a lock on the file of this status, as far as the kernel tells.

    Forked processes that share a lock are not listed.
    """
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return ()
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in lines)
    # "1: FLOCK ADVISORY READ 4711 00:1b:42 0 EOF"; a waiting process has an arrow in the second field.
    found = {int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == wanted}
    return tuple(sorted(pid for pid in found if pid > 0))
