"""Other processes, as the kernel shows them in /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


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
    return all(not thread or thread.rpartition(b")")[2].split()[0] in b"ZX" for thread in threads)
