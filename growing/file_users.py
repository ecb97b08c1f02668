"""Processes that keep the filler from deleting something: readers of a generation, and users of an open file."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from packtrain._core.generations import generation_path, promised
from packtrain._core.locks import lock_holders
from packtrain._core.opening import open_regular

_F_SETSIG: Final = 10
_NO_LEASES: Final = frozenset(
    [errno.EINVAL, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.ENOTTY]
)
"""Errors by which a file system says that it has no leases, and the kernel that this user may not take one."""
_MOST_NAMED: Final = 4


def is_open(path: Path) -> bool:
    """Check whether any process has a file open or mapped.

    A write lease can be had only on a file that nobody else has open. It ends at once, when the descriptor is closed.
    Where there are no leases, or the file belongs to another user and this process may not take one, it is False.
    """
    try:
        descriptor = open_regular(path, follow=False)
    except FileNotFoundError:
        return False
    try:
        # Whoever opens the file while the lease is held makes the kernel send a signal. SIGIO, the default, would end
        # this process; SIGURG does nothing.
        fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno not in _NO_LEASES and error.errno != errno.EAGAIN:
            raise
        return error.errno == errno.EAGAIN
    finally:
        os.close(descriptor)
    return False


def who_reads(root: Path, number: int) -> str:
    """Name the processes that keep a generation, for a message; empty if there are none."""
    try:
        status = generation_path(root, number).stat()
    except FileNotFoundError:
        return ""
    if processes := lock_holders(status):
        return f"generation {number} is read by {_named(processes)}"
    if left := promised(status):
        return f"generation {number} is promised for another {left:.0f} s"
    return f"generation {number} is read by a process that cannot be named from here"


def who_maps(path: Path) -> str:
    """Name the processes that have a file open or mapped, for a message."""
    named = _named(_users_of(path)) or "a process that cannot be named from here"
    return f"{path.name} is still open in {named}"


def _users_of(path: Path) -> list[int]:
    wanted = os.path.realpath(path)
    return [number for number in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _uses(number, wanted)]


def _uses(process: int, path: str) -> bool:
    folder = Path("/proc") / str(process)
    # The process may end meanwhile, or belong to somebody else.
    with suppress(OSError):
        if path in (folder / "maps").read_text(errors="replace"):
            return True
        for descriptor in os.listdir(folder / "fd"):
            with suppress(OSError):
                if os.readlink(folder / "fd" / descriptor) == path:
                    return True
    return False


def _named(processes: list[int] | tuple[int, ...]) -> str:
    names = [f"process {number}{_command(number)}" for number in processes[:_MOST_NAMED]]
    if len(processes) > _MOST_NAMED:
        names.append(f"{len(processes) - _MOST_NAMED} more")
    return ", ".join(names)


def _command(process: int) -> str:
    with suppress(OSError):
        return f" ({Path('/proc', str(process), 'comm').read_text().strip()})"
    return ""
