"""Processes that keep the filler from deleting something: readers of a generation, and users of an open file."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path
from shlex import quote
from typing import Final

from packtrain._core.generations import generation_path, promised
from packtrain._core.locks import lock_holders
from packtrain._core.opening import closing_descriptor, open_regular

_F_SETSIG: Final = 10
_NO_LEASES: Final = frozenset(
    [errno.EINVAL, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.ENOTTY]
)
"""Errors by which a file system says that it has no leases, and the kernel that this user may not take one."""


def is_open(path: Path) -> bool:
    """Check whether any process has a file open or mapped.

    A write lease can be had only on a file that nobody else has open. It ends at once, when the descriptor is closed.
    Where there are no leases, or the file belongs to another user and this process may not take one, it is False.
    """
    try:
        opened = open_regular(path, follow=False)
    except FileNotFoundError:
        return False
    with closing_descriptor(opened) as descriptor:
        try:
            # Whoever opens the file while the lease is held makes the kernel send a signal. SIGIO, the default, would
            # end this process; SIGURG does nothing.
            fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno not in _NO_LEASES and error.errno != errno.EAGAIN:
                raise
            return error.errno == errno.EAGAIN
    return False


def who_reads(root: Path, number: int) -> str:
    """Say what keeps a generation, for a message; empty if it is not there."""
    try:
        status = generation_path(root, number).stat()
    except FileNotFoundError:
        return ""
    if processes := lock_holders(status):
        return f"generation {number} is read by process {', '.join(map(str, processes))}"
    if left := promised(status):
        return f"generation {number} is promised for another {left:.0f} s"
    return f"generation {number} is read by a process that cannot be named from here"


def who_maps(path: Path) -> str:
    """Say that a file is still open or mapped, for a message."""
    return f"{path.name} is still open: `fuser -v {quote(os.fspath(path))}` shows in which processes"
