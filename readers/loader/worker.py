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

from ..monitoring.timing import Timekeeper
from .arena import Arena
from .batches import BatchMaker, Made, Unwanted
from .samples import traceback_of

# Number, slot and size are signed, the key takes all of 64 bits.
_TICKET: Final = "<qqqQ"
# Seconds between two looks whether the parent is still there, where it cannot be waited for.
_INTERVAL: Final = 0.5


class Ticket(NamedTuple):
    """A batch to be made. Which samples are in it is written in its slot.

    Attributes:
        number: Of the ticket.
        slot: Of the arena.
        size: Samples.
        key: Of the epoch's random numbers.
    """

    number: int
    slot: int
    size: int
    key: int

    def packed(self) -> bytes:
        """As one message."""
        return struct.pack(_TICKET, *self)

    @classmethod
    def unpacked(cls, message: bytes) -> Self:
        """What `packed` packed."""
        return cls(*struct.unpack(_TICKET, message))


class Reply(NamedTuple):
    """What became of a ticket.

    Attributes:
        ticket: Its number; -1 if the worker could not begin at all.
        made: The batch; None if there was an error, or it was no longer wanted.
        error: What went wrong.
    """

    ticket: int
    made: Made | None
    error: PacktrainError | None = None


@dataclass(frozen=True)
class Assignment:
    """All that a worker is given.

    Attributes:
        number: Of the worker, from 0.
        maker: Makes batches.
        arena: Where they go.
        tickets: One message each; every message goes to one of the workers.
        replies: The worker's own.
        parent: Process id of the loader.
        inherited: Of the loader's ends, those that a forked worker finds itself with.
        init: The user's `worker_init_fn`.
    """

    number: int
    maker: BatchMaker
    arena: Arena
    tickets: socket.socket
    replies: Connection
    parent: int
    inherited: Sequence[socket.socket]
    init: Callable[[int], None] | None


def run(assignment: Assignment) -> None:
    """The main function of a worker process."""
    # Ctrl-C reaches the whole foreground group; what is to happen then is up to the loader.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # A handler of the parent's, that saves a checkpoint say, is not for its workers.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in assignment.inherited:
        end.close()
    _end_with(assignment.parent)
    torch.set_num_threads(1)
    # What is there now stays: looking through it for garbage would take time, and copy memory that is shared by fork.
    gc.freeze()
    try:
        _work(assignment)
    except (BrokenPipeError, ConnectionResetError):
        # Nobody is left who could be told anything.
        return


def _work(assignment: Assignment) -> None:
    board, number, replies = assignment.arena.board, assignment.number, assignment.replies
    progress = _OnBoard(assignment)
    progress.idle()
    if assignment.init is not None:
        try:
            assignment.init(number)
        except Exception as error:
            reason = f"worker_init_fn({number}) failed: {type(error).__name__}: {error}\n\n{traceback_of(error)}"
            replies.send(Reply(-1, None, LoaderError(reason)))
            return
    progress.disregard()
    while message := assignment.tickets.recv(struct.calcsize(_TICKET)):
        ticket = Ticket.unpacked(message)
        progress.ticket = ticket.number
        progress.begin_batch()
        reply = _made(assignment, ticket, progress)
        progress.end(None)
        # Before the consumer has it: what was read is complete then. What is used to send it counts with the next one.
        progress.account()
        _send(replies, reply)
        progress.end(Stage.HANDOFF)
        board.note(number, -1)
        progress.idle()


class _OnBoard(Timekeeper):
    """Tells everybody.

    Attributes:
        ticket: Number of the one that is worked on.
    """

    def __init__(self, assignment: Assignment) -> None:
        board = assignment.arena.board
        super().__init__(board.words(assignment.number), assignment.maker.samples.stores)
        self.current, self._oldest = board.current(assignment.number), board.oldest()
        self.ticket = 0

    def note(self, row: int) -> None:
        self.current[0] = row
        if self.ticket < self._oldest[0]:
            raise Unwanted


def _made(assignment: Assignment, ticket: Ticket, progress: _OnBoard) -> Reply:
    arena = assignment.arena
    try:
        made = assignment.maker.make(ticket.key, ticket.size, arena.layout, arena.arrays(ticket.slot), progress)
        return Reply(ticket.number, made)
    except Unwanted:
        return Reply(ticket.number, None)
    except PacktrainError as error:
        return Reply(ticket.number, None, error)
    except Exception as error:
        reason = f"a batch could not be made: {type(error).__name__}: {error}\n\n{traceback_of(error)}"
        return Reply(ticket.number, None, LoaderError(reason))


def _send(replies: Connection, reply: Reply) -> None:
    try:
        replies.send(reply)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        reason = f"what collate_fn returned cannot be sent: {type(error).__name__}: {error}\n\n{traceback_of(error)}"
        replies.send(Reply(reply.ticket, None, LoaderError(reason)))


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, whatever it is doing then."""
    try:
        gone = _end_of(os.pidfd_open(parent))
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        # Linux before 5.3, a Python that was built there, or a container that forbids it.
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
