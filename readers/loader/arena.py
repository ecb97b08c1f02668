"""The arena: one block of shared memory in slots of a batch each, which workers write and the consumer reads.

It is a memfd: without a name, so that nothing is left in /dev/shm however a process ends. A batch is handed to the
consumer as arrays over its slot, without a copy. The slot is free again when none of them lives, nor anything made from
them, and when the work on a device that reads it has been done.
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

# A page: what mmap aligns to, and more than what any vector instruction or DMA engine asks for.
_ALIGNMENT: Final = 4096


class Field(NamedTuple):
    """One array of a slot.

    Attributes:
        dtype: numpy's type string.
        shape: Without the batch dimension.
        channels_last: Whether it is [height, width, channels] here, and [channels, height, width] for the consumer.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    channels_last: bool = False


@dataclass(frozen=True)
class Layout:
    """What a slot holds.

    Attributes:
        batch_size: Samples.
        fields: Its arrays by name, in the order in which they lie.
    """

    batch_size: int
    fields: Mapping[str, Field]

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next."""
        return sum(map(self._bytes, self.fields.values()))

    def arrays(self, slot: Any) -> dict[str, npt.NDArray[Any]]:
        """The fields [batch_size, ...] as arrays over `slot`, a buffer of `slot_bytes`."""
        return {
            name: np.ndarray((self.batch_size, *field.shape), field.dtype, slot, offset)
            for (name, field), offset in zip(self.fields.items(), self._offsets, strict=True)
        }

    def new(self) -> dict[str, npt.NDArray[Any]]:
        """The fields in ordinary memory."""
        return {name: np.empty((self.batch_size, *field.shape), field.dtype) for name, field in self.fields.items()}

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(map(self._bytes, self.fields.values()), initial=0))[:-1]

    def _bytes(self, field: Field) -> int:
        size = np.dtype(field.dtype).itemsize * math.prod((self.batch_size, *field.shape))
        return -(-size // _ALIGNMENT) * _ALIGNMENT


class Board:
    """The first pages of the arena, on which the processes read what the others are doing.

    Each number is written by one process alone, in one machine word, so no lock is needed.

    Args:
        memory: Of `Board.bytes`.
        workers: How many write on it, beside the process of the loader.
    """

    def __init__(self, memory: memoryview, workers: int) -> None:
        self._words = words = memory.cast("q")
        self._gauges = words[1 + workers : self.bytes(workers) // 8]
        self.gauges: Final = np.frombuffer(self._gauges, np.int64).reshape(-1, WORDS)
        """What each process says of its work, the loader's own last: int64 [workers + 1, `WORDS`]."""

    @staticmethod
    def bytes(workers: int) -> int:
        """Its size."""
        return 8 * (1 + workers + (workers + 1) * WORDS)

    def words(self, process: int) -> memoryview:
        """A row of `gauges`, int64 [`WORDS`]."""
        return self._gauges[process * WORDS : (process + 1) * WORDS]

    def cancel(self, oldest: int) -> None:
        """Tickets older than this one are no longer wanted."""
        self._words[0] = oldest

    def oldest(self) -> memoryview:
        """The oldest ticket that is wanted, int64 [1]."""
        return self._words[:1]

    def note(self, worker: int, row: int) -> None:
        """A worker begins with a row; -1 when it has none."""
        self._words[1 + worker] = row

    def current(self, worker: int) -> memoryview:
        """The row that a worker is at, int64 [1]."""
        return self._words[1 + worker : 2 + worker]

    def row(self, worker: int) -> int:
        """The row that a worker was at last, -1 if it was between two batches."""
        return int(self._words[1 + worker])


class Arena:
    """The memory, in the process that made it or in one that it was handed to.

    Args:
        layout: What a slot holds.
        slots: How many.
        workers: How many processes fill them.
        descriptor: Of an arena that exists; None makes one.

    Raises:
        LoaderError: There is not so much memory.
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
            # Mapped once more: who keeps figures does not keep batches.
            board = mmap.mmap(self.descriptor, self._head)
        except OSError as error:
            raise _no_room(size, error) from error
        self._slot_type = ctypes.c_ubyte * layout.slot_bytes
        self.board: Final = Board(memoryview(board)[: Board.bytes(workers)], workers)

    def slot(self, number: int) -> Any:
        """The bytes of a slot: a new object each time, that lives as long as any array over it.

        Of a memoryview that would not be true: numpy makes another one of it, and its arrays refer to that.
        """
        return self._slot_type.from_buffer(self._memory, self._head + number * self.layout.slot_bytes)

    def arrays(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """The fields of a slot."""
        return self.layout.arrays(self.slot(number))

    def memory(self) -> Any:
        """All bytes, as a ctypes array: a new object each time, that keeps them where they are."""
        return (ctypes.c_ubyte * len(self._memory)).from_buffer(self._memory)

    def __reduce__(self) -> tuple[Callable[..., Arena], tuple[Layout, int, int, Any]]:
        # Only on the way into a new process, where multiprocessing carries the descriptor along.
        return _received, (self.layout, self.slots, self.workers, reduction.DupFd(self.descriptor))


class Event(Protocol):
    """What `torch.cuda.Event` does: tells when the work before it has been done."""

    def query(self) -> bool:
        """Whether it has been done."""

    def synchronize(self) -> None:
        """Waits until it has been done."""


class Slots:
    """Which slots of an arena are free; in the process that made it.

    Args:
        arena: The arena.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._free: deque[int] = deque(range(arena.slots))
        self._events: list[deque[Event]] = [deque() for _ in range(arena.slots)]
        self._lent: dict[int, _Lent] = {}
        # Filled when a slot's last array dies, in whichever thread and between whichever two instructions that is. So
        # it is filled without a line of Python, which an interrupt could stop.
        self._returned: deque[_Lent] = deque()

    def __len__(self) -> int:
        """How many are neither in use nor lent; on some of them a device may still be at work."""
        while self._returned:
            number = self._returned.popleft().number
            del self._lent[number]
            self._free.append(number)
        return len(self._free)

    def take(self) -> int | None:
        """A free slot on which no device is at work, or None."""
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
        """Waits until no device is at work on the slot that has been free for longest."""
        events = self._events[self._free[0]]
        while events:
            events[0].synchronize()
            events.popleft()

    def give_back(self, number: int) -> None:
        """A slot that was taken is free again."""
        self._free.append(number)

    def lend(self, number: int) -> Loan:
        """A taken slot for the consumer."""
        buffer = self._arena.slot(number)
        self._lent[number] = _Lent(buffer, self._returned.append)
        self._lent[number].number = number
        return Loan(self._arena.layout.arrays(buffer), self._events[number].append)


class _Lent(weakref.ref[Any]):
    """Refers to the bytes of a lent slot, not to one array over them."""

    number: int


class Loan(NamedTuple):
    """A slot in the consumer's hands: free again when no array of it, and nothing made from one, lives.

    Attributes:
        arrays: The fields.
        after: Takes an event before which the slot must not be written again either; to be called while an array lives.
    """

    arrays: Arrays
    after: Callable[[Event], None]


def _reserve(size: int) -> int:
    try:
        if size > available_memory():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        descriptor = os.memfd_create("packtrain-arena", os.MFD_CLOEXEC)
        try:
            # Memory that is not there would else be found out by a SIGBUS in a worker.
            os.posix_fallocate(descriptor, 0, size)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _no_room(size, error) from error
    return descriptor


def _no_room(size: int, error: OSError) -> LoaderError:
    return LoaderError(
        f"the loader's batches need {size / 2**20:,.0f} MiB of shared memory, and there is no room for them "
        f"({error.strerror}): choose a smaller batch_size, prefetch_factor or num_workers"
    )


def _received(layout: Layout, slots: int, workers: int, descriptor: Any) -> Arena:
    return Arena(layout, slots, workers, descriptor.detach())
