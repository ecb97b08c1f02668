"""The arena: one block of shared memory in slots of a batch each, which workers write and the consumer reads.

It is a memfd, which has no name, so nothing is left in /dev/shm however a process ends. A batch is handed to the
consumer as arrays over its slot, without a copy. The slot is free again when none of these arrays is alive, nor
anything made from them, and when a device that reads it has done its work.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from multiprocessing import reduction
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import LoaderError
from packtrain._core.memory import available_memory

from ..monitoring.counters import WORDS

Arrays = Mapping[str, npt.NDArray[Any]]

# A page: what mmap aligns to, and more than any vector instruction or DMA engine needs.
_ALIGNMENT: Final = 4096


class Field(NamedTuple):
    """One array of a slot.

    Attributes:
        dtype: Dtype as numpy's type string, for example ``"|u1"``.
        shape: Shape without the batch dimension.
        channels_last: True if it is [height, width, channels] here, and [channels, height, width] for the consumer.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    channels_last: bool = False


@dataclass(frozen=True)
class Layout:
    """What a slot holds.

    Attributes:
        batch_size: Number of samples.
        fields: Its arrays by name, in the order in which they lie in memory.
    """

    batch_size: int
    fields: Mapping[str, Field]

    @cached_property
    def slot_bytes(self) -> int:
        """Number of bytes from one slot to the next."""
        return sum(map(self._bytes, self.fields.values()))

    def arrays(self, slot: Any) -> dict[str, npt.NDArray[Any]]:
        """The fields as arrays [batch_size, ...] over `slot`, a buffer of `slot_bytes`."""
        return {
            name: np.ndarray((self.batch_size, *field.shape), field.dtype, slot, offset)
            for (name, field), offset in zip(self.fields.items(), self._offsets, strict=True)
        }

    def new(self) -> dict[str, npt.NDArray[Any]]:
        """The fields as new arrays in ordinary memory."""
        return {name: np.empty((self.batch_size, *field.shape), field.dtype) for name, field in self.fields.items()}

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(map(self._bytes, self.fields.values()), initial=0))[:-1]

    def _bytes(self, field: Field) -> int:
        size = np.dtype(field.dtype).itemsize * math.prod((self.batch_size, *field.shape))
        return -(-size // _ALIGNMENT) * _ALIGNMENT


class Board:
    """The first pages of the arena, where each process reads what the others are doing.

    Each number is one machine word that only one process writes, so no lock is needed.

    Args:
        memory: Its memory, of `Board.bytes` bytes.
        workers: Number of worker processes. The loader's process writes on the board, too.
    """

    def __init__(self, memory: memoryview, workers: int) -> None:
        self._words = words = memory.cast("q")
        self._counters = words[1 + workers : self.bytes(workers) // 8]
        self.counters: Final = np.frombuffer(self._counters, np.int64).reshape(-1, WORDS)
        """The counters of each process, the loader's own last: int64 [workers + 1, WORDS]."""

    @staticmethod
    def bytes(workers: int) -> int:
        """Size of a board in bytes."""
        return 8 * (1 + workers + (workers + 1) * WORDS)

    def words(self, process: int) -> memoryview:
        """The row of `counters` that a process writes, int64 [WORDS]."""
        return self._counters[process * WORDS : (process + 1) * WORDS]

    def cancel(self, oldest: int) -> None:
        """Cancels all tickets older than this one."""
        self._words[0] = oldest

    def oldest(self) -> memoryview:
        """Number of the oldest ticket that is not cancelled, int64 [1]."""
        return self._words[:1]

    def note(self, worker: int, row: int) -> None:
        """Writes the row that a worker is reading; -1 if there is none."""
        self._words[1 + worker] = row

    def current(self, worker: int) -> memoryview:
        """The row that a worker is reading, int64 [1]."""
        return self._words[1 + worker : 2 + worker]

    def row(self, worker: int) -> int:
        """The row that a worker read last; -1 if it is between two batches."""
        return int(self._words[1 + worker])


class Arena:
    """The memory, in the process that made it or in one that received it.

    Args:
        layout: What a slot holds.
        slots: Number of slots.
        workers: Number of processes that fill them.
        descriptor: File descriptor of an existing arena; None makes a new one.

    Raises:
        LoaderError: There is not enough memory.
    """

    def __init__(self, layout: Layout, slots: int, workers: int, descriptor: int | None = None) -> None:
        self.layout: Final = layout
        self.slots: Final = slots
        self.workers: Final = workers
        self._head = -(-Board.bytes(workers) // _ALIGNMENT) * _ALIGNMENT
        size = self._head + slots * layout.slot_bytes
        self.descriptor: Final = _reserve(size) if descriptor is None else descriptor
        self._close = weakref.finalize(self, os.close, self.descriptor)
        try:
            self._memory = mmap.mmap(self.descriptor, size)
            # Mapped a second time, so that keeping the counters does not keep the batches.
            board = mmap.mmap(self.descriptor, self._head)
        except OSError as error:
            raise _no_room(size, error) from error
        self._slot_type = ctypes.c_ubyte * layout.slot_bytes
        self.board: Final = Board(memoryview(board)[: Board.bytes(workers)], workers)

    def slot(self, number: int) -> Any:
        """The bytes of a slot: a new object each time, which lives as long as any array over it.

        A memoryview would not: numpy makes another memoryview of it, and its arrays refer to that one.
        """
        return self._slot_type.from_buffer(self._memory, self._head + number * self.layout.slot_bytes)

    def arrays(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """The fields of a slot as arrays [batch_size, ...]."""
        return self.layout.arrays(self.slot(number))

    def memory(self) -> Any:
        """All bytes as a ctypes array: a new object each time, which keeps them mapped."""
        return (ctypes.c_ubyte * len(self._memory)).from_buffer(self._memory)

    def __reduce__(self) -> tuple[Callable[..., Arena], tuple[Layout, int, int, Any]]:
        # Only used to send the arena to a new process, to which multiprocessing also sends the descriptor.
        return _received, (self.layout, self.slots, self.workers, reduction.DupFd(self.descriptor))


class Event(Protocol):
    """The part of `torch.cuda.Event` that is needed: it is done when all work before it is done."""

    def query(self) -> bool:
        """True if it is done."""

    def synchronize(self) -> None:
        """Waits until it is done."""


class Slots:
    """Which slots of an arena are free. Only for the process that made the arena.

    Args:
        arena: The arena.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._free: deque[int] = deque(range(arena.slots))
        self._events: list[deque[Event]] = [deque() for _ in range(arena.slots)]
        self._lent: dict[int, _Lent] = {}
        # Filled when the last array of a slot dies, which can happen in any thread and between any two instructions.
        # So no line of Python may be needed to fill it: an interrupt could stop that.
        self._returned: deque[_Lent] = deque()

    def __len__(self) -> int:
        """Number of slots that are neither taken nor lent. A device may still be reading some of them."""
        while self._returned:
            number = self._returned.popleft().number
            del self._lent[number]
            self._free.append(number)
        return len(self._free)

    def take(self) -> int | None:
        """Takes a free slot that no device is reading; None if there is none."""
        for _ in range(len(self)):
            number = self._free.popleft()
            events = self._events[number]
            while events and events[0].query():
                events.popleft()
            if not events:
                return number
            self._free.append(number)
        return None

    def wait(self) -> None:
        """Waits until no device is reading the slot that has been free for longest."""
        events = self._events[self._free[0]]
        while events:
            events[0].synchronize()
            events.popleft()

    def give_back(self, number: int) -> None:
        """Makes a taken slot free again."""
        self._free.append(number)

    def lend(self, number: int) -> Loan:
        """Lends a taken slot to the consumer."""
        buffer = self._arena.slot(number)
        self._lent[number] = _Lent(buffer, self._returned.append)
        self._lent[number].number = number
        return Loan(self._arena.layout.arrays(buffer), self._events[number].append)


class _Lent(weakref.ref[Any]):
    """Refers to the bytes of a lent slot, not to one of the arrays over them."""

    number: int


class Loan(NamedTuple):
    """A slot that the consumer has: free again when none of its arrays is alive, nor anything made from them.

    Attributes:
        arrays: The fields as arrays [batch_size, ...].
        after: Takes an event before which the slot must not be written again either. Call it while an array is alive.
    """

    arrays: Arrays
    after: Callable[[Event], None]


def _reserve(size: int) -> int:
    try:
        if size > available_memory():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        descriptor = os.memfd_create("packtrain-arena", os.MFD_CLOEXEC)
        try:
            # Otherwise, missing memory would show as a SIGBUS in a worker.
            os.posix_fallocate(descriptor, 0, size)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _no_room(size, error) from error
    return descriptor


def _no_room(size: int, error: OSError) -> LoaderError:
    return LoaderError(
        f"the loader's batches need {size / 2**20:,.0f} MiB of shared memory, which is not available "
        f"({error.strerror}): use a smaller batch_size, prefetch_factor or num_workers"
    )


def _received(layout: Layout, slots: int, workers: int, descriptor: Any) -> Arena:
    return Arena(layout, slots, workers, descriptor.detach())
