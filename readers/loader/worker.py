"""What a worker process does: it takes tickets and fills the slots they name, until the loader is gone."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, Self

import torch

from packtrain._codec.stages import Stage
from packtrain._core.errors import LoaderError, PacktrainError

from ..monitoring.timing import StageTimer
from .arena import Arena
from .batches import BatchMaker, Made
from .samples import traceback_of

NO_TICKET: Final = -1
"""Stands for the ticket number in the result of a worker that could not begin at all."""
# Number, slot and size are signed; the key takes all 64 bits.
_TICKET: Final = "<qqqQ"
# Seconds between two checks that the parent is alive, where the kernel cannot report its end.
_INTERVAL: Final = 0.5


class Ticket(NamedTuple):
    """A job as a message to the workers. Positions and rows of its samples lie in the slot.

    Attributes:
        number: Number of the ticket. Later tickets have higher numbers.
        slot: Number of the arena's slot to fill.
        size: Number of samples.
        key: Key of the epoch's random numbers.
    """

    number: int
    slot: int
    size: int
    key: int

    def packed(self) -> bytes:
        """The ticket as one message."""
        return struct.pack(_TICKET, *self)

    @classmethod
    def unpacked(cls, message: bytes) -> Self:
        """The ticket in a message."""
        return cls(*struct.unpack(_TICKET, message))


@dataclass(frozen=True)
class Assignment:
    """All that a worker is given.

    Attributes:
        number: Number of the worker, from 0.
        maker: Makes batches.
        arena: The slots that batches are written to.
        tickets: Socket of one message per ticket; each message goes to one of the workers.
        results: Pipe of this worker, for the number of each ticket and its result.
        parent: Process id of the loader.
        inherited: The loader's ends of sockets, which a forked worker must close.
        init: The user's `worker_init_fn`.
    """

    number: int
    maker: BatchMaker
    arena: Arena
    tickets: socket.socket
    results: Connection
    parent: int
    inherited: Sequence[socket.socket]
    init: Callable[[int], None] | None


def run(assignment: Assignment) -> None:
    """The main function of a worker process."""
    # Ctrl-C reaches the whole foreground group; it is for the loader to decide what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # The parent may have a handler, one that saves a checkpoint for example. It must not run in the workers.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in assignment.inherited:
        end.close()
    _end_with(assignment.parent)
    torch.set_num_threads(1)
    # Objects from before stay: searching them for garbage would take time, and would copy memory shared by fork.
    gc.freeze()
    try:
        _work(assignment)
    except (BrokenPipeError, ConnectionResetError):
        # The loader is gone, so there is nobody to report to.
        return


def _work(assignment: Assignment) -> None:
    board, number, results = assignment.arena.board, assignment.number, assignment.results
    timer = StageTimer(board.words(number), assignment.maker.samples.stores, current=board.current(number))
    timer.idle()
    if assignment.init is not None:
        try:
            assignment.init(number)
        except Exception as error:
            reason = f"worker_init_fn({number}) failed: {type(error).__name__}: {error}\n\n{traceback_of(error)}"
            results.send((NO_TICKET, Made(error=LoaderError(reason))))
            return
    timer.discard_usage()
    while message := assignment.tickets.recv(struct.calcsize(_TICKET)):
        ticket = Ticket.unpacked(message)
        timer.begin_batch()
        made = _made(assignment, ticket, timer)
        timer.end_stage(None)
        # Before the consumer has the batch, whose figures are then complete. Sending it counts with the next batch.
        timer.count_usage()
        _send(results, ticket.number, made)
        timer.end_stage(Stage.HANDOFF)
        board.note(number, -1)
        timer.idle()


def _made(assignment: Assignment, ticket: Ticket, timer: StageTimer) -> Made:
    arena = assignment.arena
    number, oldest = ticket.number, arena.board.oldest()

    def cancelled() -> bool:
        return number < oldest[0]

    try:
        arrays = arena.arrays(ticket.slot)
        return assignment.maker.make(ticket.key, ticket.size, arena.layout, arrays, timer, cancelled)
    except PacktrainError as error:
        return Made(error=error)
    except Exception as error:
        reason = f"a batch could not be made: {type(error).__name__}: {error}\n\n{traceback_of(error)}"
        return Made(error=LoaderError(reason))


def _send(results: Connection, ticket: int, made: Made) -> None:
    try:
        results.send((ticket, made))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        reason = f"what collate_fn returned cannot be sent: {type(error).__name__}: {error}\n\n{traceback_of(error)}"
        results.send((ticket, Made(error=LoaderError(reason))))


def _end_with(parent: int) -> None:
    """Ends this process as soon as its parent is gone, whatever it is doing."""
    try:
        gone = _end_of(os.pidfd_open(parent))
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        # Linux before 5.3, a Python that was built on one, or a container that forbids it.
        gone = _orphaned(os.getppid())

    def wait() -> None:
        gone()
        os._exit(1)

    threading.Thread(target=wait, name="packtrain-parent", daemon=True).start()


def _end_of(pidfd: int) -> Callable[[], object]:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return poll.poll


def _orphaned(starter: int) -> Callable[[], object]:
    """Waits for the end of the process that started this one: the parent, or the fork server, which ends with it."""

    def wait() -> None:
        while os.getppid() == starter:
            time.sleep(_INTERVAL)

    return wait
