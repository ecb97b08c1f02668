"""A worker process: it takes tickets and fills the slots they name, until the loader is gone."""

from __future__ import annotations

import gc
import json
import resource
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from packtrain._codec.stages import Stage
from packtrain._core.errors import PacktrainError
from packtrain._core.launching import depend_on

from ..monitoring.timing import StageTimer
from .arena import Arena, Board
from .batches import CANCELLED, BatchMaker, Made, Probe
from .recipe import Announced, common_to, unpacked
from .samples import blamed, sendable

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_TICKET: Final = -1
"""Stands for the ticket number in the result of a worker that could not begin at all."""
PROBE: Final = -2
"""Number of the first ticket, and of the first by another recipe, which asks what a batch looks like."""
# Number, slot and size are signed; the key takes all 64 bits.
TICKET: Final = struct.Struct("<qqqQ")
"""A ticket as a message."""
# What the message of a batch begins with: a mark that no pickle begins with, ticket, samples, and the length of a JSON
# list of what is wrong with the samples that were left out. The blob follows.
_BATCH: Final = struct.Struct("<cqqq")
_MARK: Final = b"B"
LOOK: Final = struct.pack("@ll", 0, 200_000)
"""Seconds and microseconds after which a worker without a ticket looks whether something was announced."""
# The most descriptors that a worker asks for. Each shard and each index that is mapped holds one.
_DESCRIPTORS: Final = 1 << 16


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


def message_of(ticket: int, made: Made) -> Buffer:
    """The number of a ticket and its result as one message.

    A batch has a form of its own: what is in it is neither pickled nor, by the consumer, unpickled. Anything else is
    pickled: errors, the layout, and what `collate_fn` returned.
    """
    if made.error is not None or made.layout is not None or made.collated is not None:
        return ForkingPickler.dumps((ticket, made))
    skipped = json.dumps(made.skipped).encode() if made.skipped else b""
    return b"".join((_BATCH.pack(_MARK, ticket, made.size, len(skipped)), skipped, *made.blob))


def result_of(message: bytes) -> tuple[int, Made]:
    """Return the arguments of `message_of`."""
    if message[:1] != _MARK:
        result: tuple[int, Made] = ForkingPickler.loads(message)
        return result
    _, ticket, size, length = _BATCH.unpack_from(message)
    blob = memoryview(message)[_BATCH.size :]
    skipped = json.loads(bytes(blob[:length])) if length else ()
    return ticket, Made(size, skipped, (blob[length:],))


@dataclass(frozen=True)
class Assignment:
    """All that a worker is given.

    Attributes:
        number: Number of the worker, from 0.
        maker: Makes batches, until the board says otherwise.
        board: The board, behind which lie the slots that batches are written to.
        probe: The samples that show what a batch looks like.
        tickets: Socket of one message per ticket; each message goes to one of the workers.
        results: Pipe of this worker, for the number of each ticket and its result.
        lifeline: Ends the worker when the loader's process ends.
        inherited: The loader's ends of sockets, which a forked worker must close.
        init: The user's `worker_init_fn`.
    """

    number: int
    maker: BatchMaker
    board: Board
    probe: Probe
    tickets: socket.socket
    results: Connection
    lifeline: Connection
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
    depend_on(assignment.lifeline)
    _allow_descriptors()
    torch.set_num_threads(1)
    # Objects from before stay: searching them for garbage would take time, and would copy memory shared by fork.
    gc.freeze()
    try:
        _work(assignment)
    except (BrokenPipeError, ConnectionResetError):
        # The loader is gone, so there is nobody to report to.
        return


def _work(assignment: Assignment) -> None:
    board, number, results = assignment.board, assignment.number, assignment.results
    current = board.rows[number : number + 1]
    timer = StageTimer(board.words(number), assignment.maker.samples.opened, current=current)
    timer.idle()
    if assignment.init is not None:
        try:
            assignment.init(number)
        except Exception as error:
            results.send((NO_TICKET, _failed(f"worker_init_fn({number}) failed", error)))
            return
    timer.discard_usage()
    state = _WorkerState(assignment, current)
    while True:
        try:
            message = assignment.tickets.recv(TICKET.size)
        except BlockingIOError:
            # There has been no ticket for a while.
            if state.look():
                timer.discard_usage()
        else:
            if not message:
                # The loader is gone.
                return
            _answer(Ticket(*TICKET.unpack(message)), state, timer, results)
            current[0] = -1
            timer.idle()


def _answer(ticket: Ticket, state: _WorkerState, timer: StageTimer, results: Connection) -> None:
    if ticket.number == PROBE:
        _send(results, PROBE, _guarded(state.probed))
        timer.discard_usage()
        return
    timer.begin_batch()
    made = _guarded(partial(state.made, ticket, timer))
    timer.end_stage(None)
    # Before the consumer has the batch, whose figures are then complete. Sending it counts with the next batch.
    timer.count_usage()
    _send(results, ticket.number, made)
    # The traceback of an error refers to this frame, too, and would keep the record that it is about.
    del made
    timer.end_stage(Stage.HANDOFF)


def _allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _WorkerState:
    """Maker and arena of a worker, as the board says.

    What is announced there changes only while no ticket is out, so it belongs to the ticket at hand. A worker that gets
    none looks at it now and then, so that it does not keep what nobody needs any more.

    Args:
        assignment: What it begins with.
        current: Gets the row that is being read, int64 [1].
    """

    def __init__(self, assignment: Assignment, current: memoryview) -> None:
        self._board = assignment.board
        self._current = current
        self._maker, self._probe = assignment.maker, assignment.probe
        self._common = common_to(assignment.maker)
        self._edition = 0
        self._announced: Announced | None = None
        self._arena: Arena | None = None

    def look(self) -> bool:
        """Takes in what has been announced, without a ticket. True if there was anything."""
        for store in self._maker.samples.stores:
            if store.chunks is not None:
                # Others wait for the space of what has been removed.
                store.close_unused()
        try:
            return self._follow()
        except Exception:
            # It is being written, and can be read at the next look; or it is wrong, which the next ticket will show.
            return False

    def probed(self) -> Made:
        """Return the layout of a batch; nothing if the samples that show it cannot be received."""
        try:
            self._follow()
        except Exception:
            # The loader starts new workers, which get all of it in another way or say what is wrong.
            return Made()
        return Made(layout=self._maker.layout(self._probe, StageTimer(current=self._current)))

    def made(self, ticket: Ticket, timer: StageTimer) -> Made:
        """The batch of a ticket."""
        number, oldest = ticket.number, self._board.oldest

        def cancelled() -> bool:
            return number < oldest[0]

        if cancelled():
            return CANCELLED
        self._follow()
        if self._arena is None:
            assert self._announced is not None
            self._arena = Arena(self._board, *self._announced[:3])
        arena = self._arena
        return self._maker.make(ticket.key, ticket.size, arena.layout, arena.arrays(ticket.slot), timer, cancelled)

    def _follow(self) -> bool:
        """Takes in what has been announced since, and lets go of what came before it. True if there was anything."""
        edition = self._board.edition()
        if edition == self._edition:
            return False
        found, earlier = Announced.from_bytes(self._board.announced(edition)), self._announced
        if found.number != (0 if earlier is None else earlier.number):
            before = self._maker
            self._maker, self._probe = unpacked(found.recipe, self._common)
            # The assignment still refers to the first of them.
            for store in set(before.samples.stores).difference(self._maker.samples.stores):
                store.release()
            for store in self._maker.samples.stores:
                store.close_unused()
        if earlier is not None and found[:3] != earlier[:3]:
            self._arena = None
        self._edition, self._announced = edition, found._replace(recipe=b"")
        return True


def _guarded(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except PacktrainError as error:
        return Made(error=sendable(error))
    except Exception as error:
        return _failed("a batch could not be made", error)


def _failed(message: str, error: Exception) -> Made:
    failure = blamed(message, error)
    failure.__cause__ = error
    return Made(error=sendable(failure))


def _send(results: Connection, ticket: int, made: Made) -> None:
    try:
        results.send_bytes(message_of(ticket, made))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        results.send((ticket, _failed("what collate_fn returned cannot be sent", error)))
