"""Other processes, as the kernel shows them in /proc."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from .waiting import wait_until


def read_proc(pid: int | str, name: str) -> bytes:
    """A file of a process; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def children(pid: int | str = "self") -> set[int]:
    """Ids of the processes that a process has started, from any thread, and not waited for."""
    found: set[int] = set()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= set(map(int, read_proc(pid, f"task/{task.name}/children").split()))
    return found


def ended(pid: int) -> bool:
    """True if all threads of a process have ended, so that its files are closed, though it may still be a zombie."""
    try:
        threads = [read_proc(pid, f"task/{task.name}/stat") for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True
    return all(not thread or _state(thread) in b"ZX" for thread in threads)


def stop(pid: int) -> None:
    """Stops a process by SIGSTOP. Until it has been stopped, it may still take what it waits for."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _state(read_proc(pid, "stat")) in b"T", f"process {pid} has been stopped")


def _state(stat: bytes) -> bytes:
    return stat.rpartition(b")")[2].split()[0]
