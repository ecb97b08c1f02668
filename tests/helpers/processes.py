"""Other processes, as the kernel shows them in /proc."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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


class Session:
    """A program in a session of its own, and all processes that it starts. A context manager that leaves none behind.

    Args:
        command: The program.
        environment: What it finds in its environment in addition.

    Attributes:
        process: The program's process.
        left_alone: True to leave its processes behind all the same.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        # All processes that it starts inherit its environment.
        self._mark = uuid.uuid4().hex
        self._environment = {**os.environ, **(environment or {}), "PACKTRAIN_TEST_RUN": self._mark}
        self.left_alone = False

    def __enter__(self) -> Self:
        # Files, not pipes: a pipe would not end before the last orphan does.
        self._stdout, self._stderr = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
            env=self._environment,
            # A test runner in the background ignores Ctrl-C, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pid in () if self.left_alone else self.processes():
            if error is not None:
                print(pid, read_proc(pid, "cmdline"), read_proc(pid, "wchan"), *_signals_of(pid))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop()
        self.process.wait()
        if error is not None:
            print(self.stdout, self.stderr)
        self._stdout.close()
        self._stderr.close()

    @property
    def stdout(self) -> str:
        """The text that it has written so far."""
        return _text(self._stdout)

    @property
    def stderr(self) -> str:
        """The text that it has written so far."""
        return _text(self._stderr)

    def stop(self) -> None:
        """Ends its input."""
        assert self.process.stdin
        self.process.stdin.close()

    def processes(self) -> list[int]:
        """The process itself, and every living process that it or its children started."""
        mark = f"PACKTRAIN_TEST_RUN={self._mark}".encode()
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if mark in read_proc(pid, "environ").split(b"\0")]

    def require_nothing_left(self, seconds: float) -> None:
        """Waits until no process of it is left."""
        wait_until(lambda: not self.processes(), f"no process is left of {self.processes()}", seconds)


def _text(file: Any) -> str:
    """All of a file that another process writes to: without moving the position, which the two have in common."""
    return os.pread(file.fileno(), 1 << 20, 0).decode()


def _signals_of(pid: int) -> list[str]:
    """The signals that wait for a process, and those that it blocks, ignores and catches, as hexadecimal masks."""
    return re.findall(r"^(?:S[ih][gd]Pnd|Sig(?:Blk|Ign|Cgt)):\s*\w+", read_proc(pid, "status").decode(), re.MULTILINE)
