"""Drives the processes of `child.py`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from helpers.processes import ended
from helpers.waiting import wait_until

PATIENCE = 60
"""Seconds after which a process that does not answer is considered hung."""


class Refused(Exception):
    """A process answered with an error.

    Args:
        kind: Name of the error's class.
        message: Message of the error.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Child:
    """A process that executes requests."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self._connection = connection
        self._connection.settimeout(PATIENCE)
        self._stream = connection.makefile("rw")
        self._address = address
        self.pid = int(self._stream.readline())

    def send(self, do: str, **arguments: Any) -> None:
        """Sends a request: the name and arguments of a function in `child.py`."""
        print(json.dumps({"do": do, **arguments}, default=os.fspath), file=self._stream, flush=True)

    def answer(self) -> Any:
        """Waits for the answer to a request.

        Raises:
            Refused: The request failed.
            EOFError: The process has died.
        """
        line = self._stream.readline()
        if not line:
            raise EOFError(f"process {self.pid} died")
        reply = json.loads(line)
        if "error" in reply:
            raise Refused(reply["error"], reply["message"])
        return reply["result"]

    def do(self, do: str, **arguments: Any) -> Any:
        """Sends a request and waits for the answer."""
        self.send(do, **arguments)
        return self.answer()

    def attempt(self, do: str, **arguments: Any) -> Any:
        """The result of `do`, or the `Refused` that it raises."""
        self.send(do, **arguments)
        return self.outcome()

    def outcome(self) -> Any:
        """The result of `answer`, or the `Refused` that it raises."""
        try:
            return self.answer()
        except Refused as refused:
            return refused

    def kill(self) -> None:
        """Kills the process, and waits until the kernel has closed its descriptors."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.gone()

    def end(self) -> None:
        """Lets the process end by itself."""
        self._connection.shutdown(socket.SHUT_WR)
        self.gone()

    def gone(self) -> None:
        with suppress(OSError):
            self._stream.close()
        self._connection.close()
        wait_until(lambda: ended(self.pid), f"process {self.pid} has ended")


class Children:
    """Starts processes by forking one that has imported everything. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen()
        self._listener.settimeout(PATIENCE)
        script = Path(__file__).with_name("child.py")
        self._parent = subprocess.Popen([sys.executable, "-P", script, self._address], stdin=subprocess.PIPE, text=True)
        self._started: list[Child] = []

    def start(self) -> Child:
        """Starts a new process."""
        assert self._parent.stdin is not None
        print(file=self._parent.stdin, flush=True)
        return self._accept()

    def fork(self, child: Child) -> Child:
        """Lets a process fork, and returns the new one."""
        child.do("fork", address=self._address)
        return self._accept()

    def kill_all(self) -> None:
        for child in self._started:
            child.kill()
        self._started.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill_all()
        self._listener.close()
        self._parent.communicate()

    def _accept(self) -> Child:
        connection, _ = self._listener.accept()
        child = Child(connection, self._address)
        self._started.append(child)
        return child
