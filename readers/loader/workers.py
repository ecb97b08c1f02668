"""The loader's side of its worker processes: start them, give them tickets, hear of them, end them."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from packtrain._core.errors import LoaderError, UsageError

from .arena import Arena, Board
from .batches import BatchMaker
from .samples import traceback_of
from .worker import Assignment, Reply, Ticket, run

# After this many seconds a worker that does not end by itself is killed.
_PATIENCE: Final = 2.0
# A worker that no longer answers has died, or will be seen to have within so many seconds.
_GRACE: Final = 0.2
_HINTS: Final[dict[int, str]] = {
    signal.SIGKILL: "the kernel does so when memory runs out (`dmesg` tells); fewer workers or smaller batches help",
    signal.SIGBUS: "a file that it had mapped was cut or cannot be read; `packtrain verify` finds damage, and "
    "open_dataset(io='pread') makes an ordinary error of it",
    signal.SIGSEGV: "native code crashed: a decoder or a transform",
}


class Workers:
    """Worker processes that fill the slots of an arena.

    They take tickets from one socket, each message going to whichever of them asks first, and each answers on a pipe of
    its own. No lock is shared, so none can be left behind by a worker that is killed.

    Args:
        maker: Makes batches.
        arena: Where they go.
        context: How processes are started.
        init: Called in each worker with its number.
    """

    def __init__(
        self, maker: BatchMaker, arena: Arena, context: BaseContext, init: Callable[[int], None] | None = None
    ) -> None:
        self._maker = maker
        self._arena = arena
        self._unsent: deque[bytes] = deque()
        self._tickets, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tickets.setblocking(False)
        self._processes: list[BaseProcess] = []
        self._selector = selectors.DefaultSelector()
        # Should anything below fail, or the loader be forgotten, this still ends what was started.
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self._processes, self._tickets, self._selector, arena.board
        )
        try:
            for number in range(arena.workers):
                self._start(number, theirs, context, init)
        except BaseException:
            self._finalizer()
            raise
        finally:
            theirs.close()

    def _start(
        self, number: int, tickets: socket.socket, context: BaseContext, init: Callable[[int], None] | None
    ) -> None:
        ours, theirs = context.Pipe(duplex=False)
        inherited = (self._tickets,) if context.get_start_method() == "fork" else ()
        assignment = Assignment(number, self._maker, self._arena, tickets, theirs, os.getpid(), inherited, init)
        process: Any = context.Process(  # type: ignore[attr-defined]
            target=run, args=(assignment,), name=f"packtrain-loader-{number}", daemon=True
        )
        self._arena.board.note(number, -1)
        # Between its start and the line in which it begins to ignore Ctrl-C, the process must not be interrupted by it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        except OSError as error:
            raise LoaderError(f"worker {number} cannot be started ({error.strerror}): choose fewer workers") from error
        except RuntimeError:
            # Python's own words on a script without `if __name__ == "__main__"`.
            raise
        except Exception as error:
            raise UsageError(
                "the dataset, its transforms or collate_fn cannot be sent to a worker "
                f"({type(error).__name__}: {error}): define functions at the top level of a module, "
                "or choose multiprocessing_context='fork'"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._processes.append(process)
        self._selector.register(ours, selectors.EVENT_READ, number)
        self._selector.register(process.sentinel, selectors.EVENT_READ, number)

    def submit(self, ticket: Ticket) -> None:
        """Puts a ticket at the end of the queue."""
        self._unsent.append(ticket.packed())
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._tickets.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            # The socket is full of tickets: the rest follows when there are replies.
            pass
        except (BrokenPipeError, ConnectionResetError):
            # All workers are gone; what they say at the end tells why.
            pass

    def replies(self, *, wait: bool) -> list[Reply]:
        """What the workers have to say.

        Args:
            wait: Until there is something.

        Raises:
            LoaderError: A worker died.
        """
        found: list[Reply] = []
        dead: list[int] = []
        for key, _ in self._selector.select(None if wait else 0):
            number = key.data
            try:
                if isinstance(key.fileobj, Connection):
                    found.append(self._opened(number, key.fileobj.recv_bytes()))
            except (EOFError, OSError):
                dead.append(number)
            if key.fileobj == self._processes[number].sentinel:
                dead.append(number)
        # What a worker said before it died comes first: it may be the reason.
        if dead and not found:
            raise self._death(dead[0])
        self._flush()
        return found

    def _opened(self, number: int, message: bytes) -> Reply:
        try:
            reply: Reply = ForkingPickler.loads(message)
            return reply
        except Exception as error:
            process = self._processes[number]
            # Tensors are fetched from the worker, which may have died since: its end tells more.
            process.join(_GRACE)
            if process.exitcode is not None:
                raise self._death(number) from error
            raise LoaderError(
                f"what collate_fn returned cannot be received: {type(error).__name__}: {error}\n\n{traceback_of(error)}"
            ) from error

    def cancel(self, oldest: int) -> None:
        """Tickets older than this one are no longer wanted; each is still replied to, but not worked on any more."""
        self._arena.board.cancel(oldest)

    def close(self) -> None:
        """Ends the processes; at most one sample each is still finished."""
        self._finalizer()

    def _death(self, number: int) -> LoaderError:
        process = self._processes[number]
        process.join(_PATIENCE)
        code = process.exitcode
        how, hint = f"ended with exit status {code}", "what it wrote to stderr may tell why"
        if code is not None and code < 0:
            name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
            how, hint = f"was killed by {name}", _HINTS.get(-code, hint)
        row = self._arena.board.row(number)
        where = f"at {self._maker.samples.describe(row)}" if row >= 0 else "between two batches"
        return LoaderError(f"loader worker {number} (process {process.pid}) {how} {where}: {hint}")


def _end(
    owner: int,
    processes: list[BaseProcess],
    tickets: socket.socket,
    selector: selectors.BaseSelector,
    board: Board,
) -> None:
    if os.getpid() != owner:
        # A copy of the loader in a process that was forked off: the workers are not its own.
        return
    board.cancel(oldest=1 << 62)
    # Not just closed: processes that were forked off since hold it, too.
    with suppress(OSError):
        tickets.shutdown(socket.SHUT_RDWR)
    tickets.close()
    for key in list(selector.get_map().values()):
        # A worker that is about to reply finds nobody there, and ends.
        if isinstance(key.fileobj, Connection):
            key.fileobj.close()
    selector.close()
    deadline = time.monotonic() + _PATIENCE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join(_PATIENCE)
