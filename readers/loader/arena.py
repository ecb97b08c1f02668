"""The arena: one block of shared memory in slots of a batch each, which workers write and the consumer reads.

It is a memfd, which has no name, so nothing is left in /dev/shm however a process ends. A batch is handed to the
consumer as arrays over its slot, without a copy.

When batches get another size, the slots move to another range of the same file, so that what the consumer holds stays
where it is. What nobody uses any more is a hole in the file, whoever has it mapped.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from multiprocessing import reduction
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.errors import LoaderError
from packtrain._core.memory import available_memory

from ..monitoring.counters import WORDS

Arrays = Mapping[str, npt.NDArray[Any]]

# A page: what mmap aligns to, and more than any vector instruction or DMA engine needs.
_ALIGNMENT: Final = 4096
# Words of the board before the row of each worker: the oldest ticket that is not cancelled, and the number, place, size
# and checksum of what was announced last.
_HEAD: Final = 5
# FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of fallocate.
_PUNCH: Final = 0x01 | 0x02


class SlotArray(NamedTuple):
    """One array of a slot.

    Attributes:
        dtype: Dtype as numpy's type string, for example ``"|u1"``.
        shape: Shape without the batch dimension.
        channels_last: True if it is [height, width, channels] here, and [channels, height, width] for the consumer.
        small: True if the consumer gets a copy. Keeping the field then does not keep the whole slot.
        unfinished: True for images on which the consumer's process still has to run the steps on tensors.
        undecoded: True for images that the consumer's process still has to decode; they have no array of pixels.
        internal: True for what the loader needs to get a batch out of a slot: only slots have it, and no consumer.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    channels_last: bool = False
    small: bool = False
    unfinished: bool = False
    undecoded: bool = False
    internal: bool = False


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
    """The parts of a batch, and how they lie in a slot.

    Attributes:
        batch_size: Number of samples.
        fields: The arrays of a slot by name, in the order in which they lie in memory.
        varying: What lies in no slot, by name.
        columns: Names of what the consumer gets, in order; empty if that is what `collate_fn` returns.
        named: True if the consumer gets a named tuple of these names.
    """

    batch_size: int
    fields: Mapping[str, SlotArray]
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
            if not field.undecoded
        }

    def new(self) -> dict[str, npt.NDArray[Any]]:
        """The fields as new arrays in ordinary memory."""
        return {
            name: np.empty((self.batch_size, *field.shape), field.dtype)
            for name, field in self.fields.items()
            if not (field.undecoded or field.internal)
        }

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(map(self._bytes, self.fields.values()), initial=0))[:-1]

    def _bytes(self, field: SlotArray) -> int:
        if field.undecoded:
            return 0
        size = np.dtype(field.dtype).itemsize * math.prod((self.batch_size, *field.shape))
        return _aligned(size)


class Changing(Exception):
    """Something is being announced at this very moment. Only a worker without a ticket can meet this."""


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
        words = _HEAD + workers + (workers + 1) * WORDS
        self.size: Final = _aligned(8 * words)
        if descriptor is None:
            try:
                descriptor = os.memfd_create("packtrain-arena", os.MFD_CLOEXEC)
            except OSError as error:
                raise _no_room(self.size, error) from error
        self.descriptor: Final = descriptor
        weakref.finalize(self, os.close, descriptor)
        if os.fstat(descriptor).st_size < self.size:
            _reserve(descriptor, 0, self.size)
        self._words = memoryview(mmap.mmap(descriptor, self.size))[: 8 * words].cast("q")
        self.oldest: Final = self._words[:1]
        """Number of the oldest ticket that is not cancelled, int64 [1]."""
        self.rows: Final = self._words[_HEAD : _HEAD + workers]
        """The row that each worker is reading, int64 [workers]; -1 if it is between two batches."""
        self._counters = self._words[_HEAD + workers :]
        self.counters: Final = np.frombuffer(self._counters, np.int64).reshape(-1, WORDS)
        """The counters of each process, the loader's own last: int64 [workers + 1, WORDS]."""
        self._taken: dict[int, int] = {}
        """Start and size of each range behind the board that is in use. Only the loader's process knows them."""

    def words(self, process: int) -> memoryview:
        """The row of `counters` that a process writes, int64 [WORDS]."""
        return self._counters[process * WORDS : (process + 1) * WORDS]

    def take(self, size: int) -> int:
        """Takes a range behind the board that nobody uses. Returns where it begins.

        Raises:
            LoaderError: There is not enough memory.
        """
        start, size = self.size, _aligned(size)
        for taken, length in sorted(self._taken.items()):
            if start + size <= taken:
                break
            start = taken + length
        _reserve(self.descriptor, start, size)
        self._taken[start] = size
        return start

    def give_back(self, start: int) -> None:
        """Gives a range back, to the system too."""
        self.clear(start, self._taken.pop(start))

    def clear(self, start: int, size: int) -> None:
        """Gives the memory of a part of a range back to the system. Nobody may read it any more."""
        if _libc.fallocate(self.descriptor, _PUNCH, start, size):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def edition(self) -> int:
        """Return the number of announcements so far."""
        return int(self._words[1])

    def announce(self, content: bytes) -> None:
        """Announces something to the workers, before the first ticket that needs it. No other ticket may be out.

        Workers without a ticket read it soon, too.

        Raises:
            LoaderError: There is not enough memory.
        """
        edition, before, start = self.edition() + 1, self._words[2], self.take(len(content))
        with mmap.mmap(self.descriptor, len(content), offset=start) as memory:
            memory[:] = content
        # Workers without a ticket may be reading these words. The checksum tells them.
        self._words[2], self._words[3], self._words[4] = start, len(content), crc32c(content, edition)
        self._words[1] = edition
        if before:
            self.give_back(before)

    def announced(self, edition: int) -> bytes:
        """Return what was announced last, if that is this announcement.

        Raises:
            Changing: It is not, or it is just being written.
        """
        start, size, checksum = self._words[2:_HEAD]
        parts = []
        # Not mapped: what another announcement has taken the place of cannot be read to its end.
        while size > 0 and (part := os.pread(self.descriptor, size, start)):
            parts.append(part)
            start, size = start + len(part), size - len(part)
        content = b"".join(parts)
        if crc32c(content, edition) != checksum:
            raise Changing
        return content

    def __reduce__(self) -> tuple[Callable[..., Board], tuple[int, Any]]:
        # Only used to send the board to a new process, to which multiprocessing also sends the descriptor.
        return _received, (self.workers, reduction.DupFd(self.descriptor))


class Arena:
    """The memory behind a board, in slots. The process that made the board makes it, and the others find it there.

    Args:
        board: The board.
        layout: What a slot holds.
        slots: Number of slots.
        start: Offset of an arena that another process has made; None makes a new one.

    Raises:
        LoaderError: There is not enough memory.
    """

    def __init__(self, board: Board, layout: Layout, slots: int, start: int | None = None) -> None:
        self.board: Final = board
        self.layout: Final = layout
        self.slots: Final = slots
        size = slots * layout.slot_bytes
        self.start: Final = board.take(size) if start is None else start
        try:
            # The board is mapped apart, so that keeping its counters does not keep the batches.
            self._memory = mmap.mmap(board.descriptor, size, offset=self.start)
        except OSError as error:
            raise _no_room(size, error) from error
        self._slot_type = ctypes.c_ubyte * layout.slot_bytes

    def clear(self, number: int) -> None:
        """Gives the memory of a slot back to the system. Nobody may have it any more, and it cannot be used again."""
        size = self.layout.slot_bytes
        self.board.clear(self.start + number * size, size)

    def give_back(self) -> None:
        """Gives all of it back. Nobody may have a slot any more."""
        self.board.give_back(self.start)

    def slot(self, number: int) -> Any:
        """The bytes of a slot: a new object each time, which lives as long as any array over it.

        A memoryview would not: numpy makes another memoryview of it, and its arrays refer to that one.
        """
        return self._slot_type.from_buffer(self._memory, number * self.layout.slot_bytes)

    def arrays(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """The fields of a slot as arrays [batch_size, ...]."""
        return self.layout.arrays(self.slot(number))

    def memory(self) -> Any:
        """All bytes as a ctypes array: a new object each time, which keeps them mapped."""
        return (ctypes.c_ubyte * len(self._memory)).from_buffer(self._memory)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _reserve(descriptor: int, start: int, size: int) -> None:
    """Takes memory for a range of a memfd."""
    try:
        if size > available_memory():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        # Otherwise, missing memory would show as a SIGBUS in a worker.
        os.posix_fallocate(descriptor, start, size)
    except OSError as error:
        raise _no_room(size, error) from error


def _no_room(size: int, error: OSError) -> LoaderError:
    return LoaderError(
        f"the loader's batches need {size / 2**20:,.0f} MiB of shared memory, which is not available "
        f"({error.strerror}): use a smaller batch_size, prefetch_factor or num_workers"
    )


def _received(workers: int, descriptor: Any) -> Board:
    return Board(workers, descriptor.detach())


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
