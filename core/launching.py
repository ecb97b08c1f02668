"""Starts interpreters of our own, and ends child processes with their parent.

An interpreter that `launch` starts inherits a descriptor or two, nothing else: no thread, lock or memory of a process
that may fork. It finds its modules where this process does, but in the current folder only if it imports the user's
code: in a notebook and at Python's prompt that folder comes first, and anything may lie there. It gets its job over
standard input. Three contracts:

=================  ==========================================  =====================
Process            Lives until                                 Imports the user's code
=================  ==========================================  =====================
service of stores  its owner ends (`Launched`)                 never
fetcher of chunks  nobody needs it (``detached=True``)         never
filler of a cache  its owner ends, or its source (either)      the source's module
=================  ==========================================  =====================

Not multiprocessing: that would import the user's main program in each of them. The filler does so itself, for a source
that lies there.

A `Lifeline` ends a child when its parent ends, whatever either of them is doing, and even if it is stopped. It is a
pipe that nobody writes to. The parent holds one end, and the child asks the kernel for a SIGKILL when that end is
closed, which the kernel does when the parent ends. So it does not matter how the child was started, nor from which
thread.
``PR_SET_PDEATHSIG`` would mean something else: its signal comes when the *thread* that started the child ends, and the
parent of a process from a fork server is the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from typing import Any, Final

from .forks import call_in_forked
from .interrupts import postponed_ctrl_c
from .processes import how_ended


class Lifeline:
    """The parent's end. The child is killed when it is closed or garbage-collected, or when the parent ends.

    Attributes:
        child: The child's end, to be sent to the child. Close it in the parent once the child has been started.
    """

    def __init__(self) -> None:
        self.child, self._parent = Pipe(duplex=False)
        # A forked process that held this end, too, would keep the child alive after its parent.
        call_in_forked(self._parent.close)

    def close(self) -> None:
        """Kills the child if it still lives."""
        self.child.close()
        self._parent.close()


def depend_on(end: Connection) -> None:
    """Makes this process end when the other end of a lifeline is closed. Keep `end` open."""
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    # The parent may have ended before there was a signal for it.
    if end.poll():
        os.kill(os.getpid(), signal.SIGKILL)


class Launched:
    """A process that ends with this one. A process that was forked from this one has nothing to do with it.

    Args:
        main: Its main function, ``"MODULE:FUNCTION"``, which gets the number of its end of `channel`, and `job`.
        channel: A descriptor that it is to have.
        job: What it is to do.
        stdout: Where its standard output goes; None: where that of this process goes.
        grace: Seconds after SIGTERM for which it may finish what it is doing; 0: it is killed at once.
        users_code: As for `launch`.
    """

    def __init__(
        self,
        main: str,
        channel: int,
        job: bytes = b"",
        *,
        stdout: int | None = None,
        grace: float = 0.0,
        users_code: bool = False,
    ) -> None:
        self._owner: Final = os.getpid()
        self._grace = grace
        lifeline = Lifeline()
        with lifeline.child as end:
            self._process = _popen(main, channel, end.fileno(), stdout=stdout, users_code=users_code)
        self._end = weakref.finalize(self, _end, self._process, lifeline)
        call_in_forked(self._leave_to_the_parent)
        try:
            _send(self._process, job)
        except BaseException:
            self._end()
            raise

    def _leave_to_the_parent(self) -> None:
        # It is not a child of this process, which can neither wait for it nor end it.
        self._process.returncode = 0

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def ended(self, seconds: float | None = 0.0) -> str | None:
        """Return how the process ended; None if it still runs after so many seconds, or is another process's child."""
        if self._owner != os.getpid():
            return None
        try:
            return how_ended(self._process.wait(seconds))
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Ends the process, and waits for that."""
        try:
            if self._end.alive and self._grace:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(self._grace)
        finally:
            self._end()


class NotBegun(Exception):
    """A process ended, or said nothing in time, before it could begin; the message says which."""


def launch(
    main: str,
    job: bytes,
    *,
    detached: bool,
    output: int | None = None,
    seconds: float | None = None,
    grace: float = 0.0,
    users_code: bool = False,
) -> tuple[Launched | None, dict[str, Any]]:
    """Starts a process that says when it has begun, by way of `Answer`, or why it cannot.

    Args:
        main: As for `Launched`; the channel is for `Answer`.
        job: What it is to do.
        detached: True to let it live on when this process ends, as nobody's child, in a session of its own.
        output: Where the output of a detached process goes; None: where that of this process goes.
        seconds: How long to wait for its answer; None: for ever.
        grace: As for `Launched`.
        users_code: True if it imports the user's code, which may lie in the current folder.

    Returns:
        The process, None if it is detached; and what it said.

    Raises:
        NotBegun: It has said nothing.
    """
    launched: Launched | None = None
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as answers:
        try:
            if detached:
                # The process in between, which ends at once.
                process = _popen(main, theirs, stdout=output, stderr=output, users_code=users_code)
                _send(process, job)
                process.wait()
            else:
                launched = Launched(main, theirs, job, grace=grace, users_code=users_code)
        finally:
            os.close(theirs)
        try:
            # Not select.select, which refuses descriptors above 1023.
            ready = select.poll()
            ready.register(ours, select.POLLIN)
            if not ready.poll(None if seconds is None else seconds * 1000):
                raise NotBegun(f"it has said nothing within {seconds:.0f} s")
            if not (said := answers.read()):
                how = launched.ended(None) if launched else "ended before it began"
                raise NotBegun(f"its process {how}")
        except BaseException:
            if launched:
                launched.close()
            raise
    return launched, json.loads(said)


class Answer:
    """The one answer of a process that `launch` has started.

    Args:
        channel: Number of the descriptor that its main function gets.
    """

    def __init__(self, channel: int) -> None:
        self._channel: int | None = channel

    def give(self, **said: object) -> bool:
        """Says whether this process has begun. False if that has been said."""
        channel, self._channel = self._channel, None
        if channel is None:
            return False
        with suppress(BrokenPipeError):
            os.write(channel, json.dumps(said).encode())
        os.close(channel)
        return True


def _popen(
    main: str, *ends: int, stdout: int | None, stderr: int | None = None, users_code: bool
) -> subprocess.Popen[bytes]:
    """Starts an interpreter with a channel and, unless it is to be detached, its end of a lifeline."""
    detached = len(ends) == 1
    fork = "os.fork() and os._exit(0); " if detached else ""
    # "" is the current folder.
    path = [os.path.abspath(each) for each in sys.path if each or users_code]
    program = f"import os, sys; {fork}sys.path[:] = {path!r}; from {__name__} import _run; _run({main!r}, *{ends})"
    # Ctrl-C is for this process to act on. Until the other one ignores it, it must not get it.
    with postponed_ctrl_c():
        return subprocess.Popen(
            [spawn.get_executable(), "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            pass_fds=ends,
            start_new_session=detached,
        )


def _send(process: subprocess.Popen[bytes], job: bytes) -> None:
    assert process.stdin is not None
    # Of a process that has ended, the exit code says more.
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(job)


def _run(main: str, channel: int, lifeline: int | None = None) -> None:
    """Run the main function of the process that was started."""
    # Ctrl-C reaches the whole foreground group; what happens then is for the owner to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.set_inheritable(channel, False)
    if lifeline is not None:
        os.set_inheritable(lifeline, False)
        end = Connection(lifeline, writable=False)
        depend_on(end)
    module, _, name = main.partition(":")
    getattr(import_module(module), name)(channel, sys.stdin.buffer.read())


def _end(process: subprocess.Popen[bytes], lifeline: Lifeline) -> None:
    with suppress(OSError):
        process.kill()
        process.wait()
    lifeline.close()
