"""The arena: one block of shared memory in slots of a batch each, which workers write and the consumer reads.

It is a memfd, which has no name, so nothing is left in /dev/shm however a process ends. A batch is handed to the
consumer as arrays over its slot, without a copy.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from multiprocessing import reduction
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import LoaderError, UsageError
from packtrain._core.memory import available_memory

from ..monitoring.counters import WORDS

Arrays = Mapping[str, npt.NDArray[Any]]

# A page: what mmap aligns to, and more than any vector instruction or DMA engine needs.
_ALIGNMENT: Final = 4096
# Room on the board for the description of a batch, with dozens of fields.
_PLAN_BYTES: Final = 16 * _ALIGNMENT


class Field(NamedTuple):
    """One array of a slot.

    Attributes:
        dtype: Dtype as numpy's type string, for example ``"|u1"``.
        shape: Shape without the batch dimension.
        channels_last: True if it is [height, width, channels] here, and [channels, height, width] for the consumer.
        small: True if the consumer gets a copy. Keeping the field then does not keep the whole slot.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    channels_last: bool = False
    small: bool = False


class Varying(NamedTuple):
    """A field whose values differ in size, so that they lie in no slot but travel behind the result of the batch.

    Attributes:
        kind: ``"text"``, ``"json"``, ``"bytes"``, or ``"ragged"`` for arrays whose first size differs.
        dtype: Dtype of arrays as numpy's type string; otherwise empty.
        shape: Shape of arrays without the first size; otherwise empty.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """What a batch consists of, and how it lies in a slot.

    Attributes:
        batch_size: Number of samples.
        fields: The arrays of a slot by name, in the order in which they lie in memory.
        varying: What lies in no slot, by name.
        columns: Names of what the consumer gets, in order; empty if that is what `collate_fn` returns.
        named: True if the consumer gets a named tuple of these names.
    """

    batch_size: int
    fields: Mapping[str, Field]
    varying: Mapping[str, Varying] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    named: bool = False

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
        return _aligned(size)


class Board:
    """The first pages of the shared memory, where each process reads what the others are doing.

    Each number is one machine word that only one process writes, so no lock is needed. The workers have the board from
    the start. The slots come behind it, once a worker has found out what a batch looks like.

    Args:
        workers: Number of worker processes. The loader's process writes on the board, too.
        descriptor: File descriptor of the memory of an existing board; None makes a new one.

    Raises:
        LoaderError: There is not enough memory.
    """

    def __init__(self, workers: int, descriptor: int | None = None) -> None:
        self.workers: Final = workers
        words = 1 + workers + (workers + 1) * WORDS
        self.size: Final = _aligned(8 * words) + _PLAN_BYTES
        if descriptor is None:
            try:
                descriptor = os.memfd_create("packtrain-arena", os.MFD_CLOEXEC)
            except OSError as error:
                raise _no_room(self.size, error) from error
        self.descriptor: Final = descriptor
        weakref.finalize(self, os.close, descriptor)
        _reserve(descriptor, self.size)
        memory = memoryview(mmap.mmap(descriptor, self.size))
        self._plan = memory[-_PLAN_BYTES:]
        self._words = memory[: 8 * words].cast("q")
        self._counters = self._words[1 + workers :]
        self.counters: Final = np.frombuffer(self._counters, np.int64).reshape(-1, WORDS)
        """The counters of each process, the loader's own last: int64 [workers + 1, WORDS]."""

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

    def announce(self, slots: int, layout: Layout) -> None:
        """Writes what lies behind the board, before the first ticket that needs it.

        Raises:
            UsageError: There are too many fields.
        """
        described = layout.batch_size, layout.fields, layout.varying, layout.columns, layout.named
        text = json.dumps([slots, *described]).encode()
        if len(text) > len(self._plan):
            raise UsageError(
                f"a batch of {len(layout.columns)} fields is more than the loader can describe: take fewer"
            )
        self._plan[: len(text)] = text

    def announced(self) -> tuple[int, Layout]:
        """What `announce` wrote."""
        slots, batch_size, fields, varying, columns, named = json.loads(self._plan.tobytes().rstrip(b"\0"))
        arrays = {name: Field(dtype, tuple(shape), *rest) for name, (dtype, shape, *rest) in fields.items()}
        others = {name: Varying(kind, dtype, tuple(shape)) for name, (kind, dtype, shape) in varying.items()}
        return slots, Layout(batch_size, arrays, others, tuple(columns), named)

    def __reduce__(self) -> tuple[Callable[..., Board], tuple[int, Any]]:
        # Only used to send the board to a new process, to which multiprocessing also sends the descriptor.
        return _received, (self.workers, reduction.DupFd(self.descriptor))


class Arena:
    """The memory behind a board, in slots. The process that made the board makes it, and the others find it there.

    Args:
        board: The board.
        layout: What a slot holds.
        slots: Number of slots.

    Raises:
        LoaderError: There is not enough memory.
    """

    def __init__(self, board: Board, layout: Layout, slots: int) -> None:
        self.board: Final = board
        self.layout: Final = layout
        self.slots: Final = slots
        size = board.size + slots * layout.slot_bytes
        _reserve(board.descriptor, size)
        try:
            # The board is mapped apart, so that keeping its counters does not keep the batches.
            self._memory = mmap.mmap(board.descriptor, size)
        except OSError as error:
            raise _no_room(size, error) from error
        self._slot_type = ctypes.c_ubyte * layout.slot_bytes

    @classmethod
    def behind(cls, board: Board) -> Self:
        """The arena that another process has made and announced on the board."""
        slots, layout = board.announced()
        return cls(board, layout, slots)

    def slot(self, number: int) -> Any:
        """The bytes of a slot: a new object each time, which lives as long as any array over it.

        A memoryview would not: numpy makes another memoryview of it, and its arrays refer to that one.
        """
        return self._slot_type.from_buffer(self._memory, self.board.size + number * self.layout.slot_bytes)

    def arrays(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """The fields of a slot as arrays [batch_size, ...]."""
        return self.layout.arrays(self.slot(number))

    def memory(self) -> Any:
        """All bytes as a ctypes array: a new object each time, which keeps them mapped."""
        return (ctypes.c_ubyte * len(self._memory)).from_buffer(self._memory)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _reserve(descriptor: int, size: int) -> None:
    """Makes a memfd at least this large."""
    missing = size - os.fstat(descriptor).st_size
    if missing <= 0:
        return
    try:
        if missing > available_memory():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        # Otherwise, missing memory would show as a SIGBUS in a worker.
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise _no_room(size, error) from error


def _no_room(size: int, error: OSError) -> LoaderError:
    return LoaderError(
        f"the loader's batches need {size / 2**20:,.0f} MiB of shared memory, which is not available "
        f"({error.strerror}): use a smaller batch_size, prefetch_factor or num_workers"
    )


def _received(workers: int, descriptor: Any) -> Board:
    return Board(workers, descriptor.detach())
