"""The loader's side of its worker processes: starts them, sends tickets, receives results, ends them."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.process
import os
import selectors
import signal
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final

from packtrain._core.errors import LoaderError, UsageError
from packtrain._core.interrupts import postponed_ctrl_c
from packtrain._core.launching import Lifeline
from packtrain._core.processes import how_ended

from .arena import Board, Layout
from .batches import BatchMaker, Made, Probe
from .recipe import Announced, common_to, definitions, packed
from .samples import blamed
from .slots import forking_worker
from .worker import LOOK, PROBE, TICKET, Assignment, Ticket, result_of, run

# Seconds after which a worker that does not end by itself is killed.
_PATIENCE: Final = 2.0
# Seconds within which a worker that no longer answers is seen to have died.
_GRACE: Final = 0.2
_HINTS: Final[dict[int, str]] = {
    signal.SIGKILL: "the kernel does so when memory runs out (see `dmesg`); try fewer workers or smaller batches",
    signal.SIGBUS: "a file that it had mapped was truncated or cannot be read; `packtrain verify` finds damage, and "
    "open_dataset(io='pread') turns the signal into an ordinary error",
    signal.SIGSEGV: "native code crashed: a decoder or a transform",
}
# What may be wrong where a worker has to import what it calls.
_SCRIPT: Final = (
    '. Each worker imports the script. Put what the script does under `if __name__ == "__main__":`, and functions and '
    "classes that the workers need outside of it"
)
_NOTEBOOK: Final = (
    ". A function or class that was defined in a notebook cannot be found there: put it into a module, or use "
    "multiprocessing_context='fork'"
)


@dataclass(frozen=True)
class WorkerOptions:
    """Options of the worker processes.

    Attributes:
        count: Number of processes; 0: batches are made in this process.
        prefetch_factor: Number of batches that each makes ahead.
        context: Starts the processes.
        init: Called in each of them with its number.
        timeout: Seconds to wait for a result; 0: for ever.
    """

    count: int
    prefetch_factor: int
    context: BaseContext
    init: Callable[[int], None] | None = None
    timeout: float = 0


class Workers:
    """Worker processes that fill the slots of an arena.

    They take tickets from one socket, where each message goes to whichever worker asks first, and each sends its
    results on a pipe of its own. No lock is shared, so a worker that is killed cannot leave one locked.

    Args:
        maker: Makes batches.
        board: The board of the arena that batches are written to.
        probe: The samples that show what a batch looks like.
        options: How they are started.

    Raises:
        LoaderError: A worker cannot be started.
        UsageError: Something cannot be sent to it, or this process may not start any.
    """

    def __init__(self, maker: BatchMaker, board: Board, probe: Probe, options: WorkerOptions) -> None:
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "this is a daemonic process, which cannot start the loader's workers: give num_workers=0, or start the "
                "process with daemon=False"
            )
        self._describe: Callable[[int], str] = maker.samples.describe
        self._common = common_to(maker)
        self._board = board
        self._options: Final = options
        self._timeout: Final = options.timeout or None
        self._forks: Final = options.context.get_start_method() == "fork"
        self._known: Final = definitions()
        self._told = Announced(Layout(0, {}), 0, 0)
        self._unsent: deque[bytes] = deque()
        self._tickets, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LOOK)
        self._tickets.setblocking(False)
        self._started: list[tuple[BaseProcess, Lifeline]] = []
        self._selector = selectors.DefaultSelector()
        # Ends what was started even if something below fails, or if the loader is dropped without being closed.
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._started, self._tickets, self._selector, board)
        try:
            for number in range(board.workers):
                self._start(number, maker, theirs, probe)
        except OSError as error:
            self._finalizer()
            hint = (
                "raise the number of open files (`ulimit -n`)" if error.errno == errno.EMFILE else "use fewer workers"
            )
            raise LoaderError(f"the loader's workers cannot be started ({error.strerror}): {hint}") from error
        except BaseException:
            self._finalizer()
            raise
        finally:
            theirs.close()

    def _start(self, number: int, maker: BatchMaker, tickets: socket.socket, probe: Probe) -> None:
        context, inherited = self._options.context, (self._tickets,) * self._forks
        ours, theirs = context.Pipe(duplex=False)
        lifeline = Lifeline()
        assignment = Assignment(
            number, maker, self._board, probe, tickets, theirs, lifeline.child, inherited, self._options.init
        )
        process: Any = context.Process(  # type: ignore[attr-defined]
            target=run, args=(assignment,), name=f"packtrain-loader-{number}", daemon=True
        )
        self._board.rows[number] = -1
        if not self._forks:
            # Otherwise the first worker would start it, which unblocks Ctrl-C.
            resource_tracker.ensure_running()
        # Until the process itself ignores Ctrl-C, it must not be interrupted by it.
        with postponed_ctrl_c(), forking_worker():
            try:
                process.start()
            except (OSError, RuntimeError):
                # The latter is Python's own message about a script without `if __name__ == "__main__"`.
                raise
            except Exception as error:
                raise UsageError(
                    "the dataset, its transforms or collate_fn cannot be sent to a worker "
                    f"({type(error).__name__}: {error}): define functions at the top level of a module, "
                    "or use multiprocessing_context='fork'"
                ) from error
            self._started.append((process, lifeline))
        _processes.add(process)
        for end in (theirs, lifeline.child):
            end.close()
        self._selector.register(ours, selectors.EVENT_READ, number)
        self._selector.register(process.sentinel, selectors.EVENT_READ, number)

    def change(self, maker: BatchMaker, probe: Probe) -> Layout | None:
        """Lets the workers make batches in another way from now on. No ticket may be out.

        Args:
            maker: Makes batches.
            probe: The samples that show what a batch looks like.

        Returns:
            What a batch looks like; None if the workers that are running cannot take this.

        Raises:
            LoaderError: There is not enough memory.
            PacktrainError: No sample can be made, or no array can hold it.
        """
        message = packed(maker, probe, self._common, self._known)
        if message is None:
            return None
        self._tell(self._told._replace(number=self._told.number + 1, recipe=message))
        # Only from now on: until then, a worker may not have had a lease on what it read.
        self._describe = maker.samples.describe
        return self.probed()

    def announce(self, layout: Layout, slots: int, start: int) -> None:
        """Tells the workers where the slots are, see `Announced`. No ticket may be out."""
        self._tell(self._told._replace(layout=layout, slots=slots, start=start))

    def _tell(self, announced: Announced) -> None:
        self._board.announce(announced.to_bytes())
        self._told = announced

    def probed(self) -> Layout | None:
        """Return the layout of a batch, which the first worker that is ready finds out; None if it has no maker.

        Raises:
            PacktrainError: No sample can be made, or no array can hold it.
        """
        self.submit(Ticket(PROBE, 0, 0, 0))
        answer: Made | None = None
        while answer is None:
            # All of them: another worker may have failed to begin at the same time.
            for _, made in self.results(wait=True):
                if made.error is not None:
                    raise made.error
                answer = answer or made
        return answer.layout

    def submit(self, ticket: Ticket) -> None:
        """Puts a ticket at the end of the queue."""
        self._unsent.append(TICKET.pack(*ticket))
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._tickets.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            # The socket is full: the rest follows when results arrive.
            pass
        except (BrokenPipeError, ConnectionResetError):
            # All workers are gone. Reading their pipes tells why.
            pass

    def results(self, *, wait: bool) -> list[tuple[int, Made]]:
        """The numbers of the tickets that the workers have finished, and their results.

        Args:
            wait: True to wait until there is at least one.

        Raises:
            LoaderError: A worker died, or waiting took too long.
        """
        found: list[tuple[int, Made]] = []
        dead: list[int] = []
        ready = self._selector.select(self._timeout if wait else 0)
        if wait and not ready:
            where = ", ".join(f"worker {number} is {self._where(number)}" for number in range(len(self._started)))
            raise LoaderError(f"no worker has finished a batch within timeout={self._timeout:g} seconds; {where}")
        for key, _ in ready:
            number = key.data
            try:
                if isinstance(key.fileobj, Connection):
                    found.append(self._opened(number, key.fileobj.recv_bytes()))
            except (EOFError, OSError):
                dead.append(number)
            if key.fileobj == self._started[number][0].sentinel:
                dead.append(number)
        # What a worker sent before it died comes first: it may be the reason.
        if dead and not found:
            raise self._death(dead[0])
        self._flush()
        return found

    def _opened(self, number: int, message: bytes) -> tuple[int, Made]:
        try:
            return result_of(message)
        except Exception as error:
            process, _ = self._started[number]
            # Tensors are fetched from the worker. If it has died since, that is the better explanation.
            process.join(_GRACE)
            if process.exitcode is not None:
                raise self._death(number) from error
            raise blamed("what collate_fn returned cannot be received", error) from error

    def cancel(self, oldest: int) -> None:
        """Cancels all tickets older than this one. Each still has a result, but the workers stop working on it."""
        self._board.oldest[0] = oldest

    def close(self) -> None:
        """Ends the processes. Each finishes at most the sample it is working on."""
        self._finalizer()
        # A pass that the consumer still has refers to this, and would keep the dataset as it was then.
        self._describe, self._common = "row {}".format, ()

    def _death(self, number: int) -> LoaderError:
        process, _ = self._started[number]
        process.join(_PATIENCE)
        code = process.exitcode or 0
        hint = "what it wrote to stderr may say why"
        if not self._forks:
            hint += _SCRIPT if getattr(sys.modules["__main__"], "__file__", None) else _NOTEBOOK
        how, hint = how_ended(code), _HINTS.get(-code, hint)
        return LoaderError(f"loader worker {number} (process {process.pid}) {how} {self._where(number)}: {hint}")

    def _where(self, number: int) -> str:
        row = self._board.rows[number]
        return f"at {self._describe(row)}" if row >= 0 else "between two batches"


def _end(
    owner: int,
    started: list[tuple[BaseProcess, Lifeline]],
    tickets: socket.socket,
    selector: selectors.BaseSelector,
    board: Board,
) -> None:
    if os.getpid() != owner:
        # A copy of the loader in a forked process: the workers belong to the original.
        return
    try:
        board.oldest[0] = 1 << 62
        # Closing is not enough: processes forked since then hold the socket, too.
        with suppress(OSError):
            tickets.shutdown(socket.SHUT_RDWR)
        tickets.close()
        for key in list(selector.get_map().values()):
            # A worker that is about to send a result finds the pipe closed, and ends.
            if isinstance(key.fileobj, Connection):
                key.fileobj.close()
        selector.close()
        deadline = time.monotonic() + _PATIENCE
        for process, _ in started:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        # Also after another Ctrl-C, from somebody who does not want to wait for the last samples.
        with postponed_ctrl_c():
            for process, lifeline in started:
                process.kill()
                process.join(_PATIENCE)
                lifeline.close()


_processes: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


def _disown() -> None:
    # At its end, Python terminates the daemonic processes that it counts as its children.
    children: set[BaseProcess] = vars(multiprocessing.process).get("_children", set())
    children.difference_update(_processes)
    _processes.clear()


os.register_at_fork(after_in_child=_disown)
