"""Starts the programs that tests need, and ends each of them, whatever becomes of the test."""

from __future__ import annotations

import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

HOST: Final = "127.0.0.1"


class NotReadyError(Exception):
    """A program ended, or does not answer; the message has the end of its log."""


def find(name: str, remedy: str, *, required: bool = False) -> str:
    """Path of a program: beside this Python, among the npm packages in its environment, on the PATH, or root's.

    Without it the test is skipped. If it is `required` and PACKTRAIN_REQUIRE_TOOLS=1 is set, the test fails.
    """
    places = (Path(sys.executable).parent, Path(sys.prefix, "node_modules", ".bin"))
    path = os.pathsep.join((*map(str, places), os.environ.get("PATH", os.defpath), "/usr/sbin"))
    return shutil.which(name, path=path) or absent(f"{name} is not installed: {remedy}", required=required)


def absent(message: str, *, required: bool) -> str:
    """Skips the test because something is not installed, or fails it; see `find`."""
    if required and os.environ.get("PACKTRAIN_REQUIRE_TOOLS") == "1":
        pytest.fail(message)
    pytest.skip(message)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in found]


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    ready: Callable[[], bool],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program from the moment at which it is ready until the end of the `with` block.

    It is killed, because all that it has is in a folder that is about to be removed. It dies with this process, too,
    however that ends: the kernel kills it when the other end of a pipe that it inherits is closed.

    Raises:
        NotReadyError: It ended or did not become ready.
    """
    theirs, ours = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, ours)
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **(environment or {})},
                    pass_fds=[theirs],
                    start_new_session=True,
                )
            stack.callback(_end, process)
            fcntl.fcntl(theirs, fcntl.F_SETOWN, process.pid)
            fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(theirs, fcntl.F_SETFL, fcntl.fcntl(theirs, fcntl.F_GETFL) | os.O_ASYNC)
        finally:
            os.close(theirs)
        end = time.monotonic() + seconds
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                state = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
                raise NotReadyError(f"{Path(command[0]).name} {state}:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        yield process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def ask(
    port: int,
    method: str,
    target: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float = 60,
) -> tuple[int, bytes]:
    """One request to a server on this machine. Returns the status and the body of its answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request(method, target, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def answers(port: int, target: str = "/", *, method: str = "GET", statuses: Sequence[int] = (200,)) -> bool:
    """True if a server answers, and with one of these statuses."""
    with suppress(OSError, http.client.HTTPException):
        return ask(port, method, target, timeout=5)[0] in statuses
    return False
