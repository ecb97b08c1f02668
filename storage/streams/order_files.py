"""The chunks of an order that does not go through all of a cache's dataset, or through others as well.

A subset has some records of some chunks, and a concatenation has chunks in several caches. In both, the order goes
through *chunks of its own*, each of which is a part of a chunk of a cache. Which, a file in the cache says, whose name
is the digest of its content: the client writes it, and names it to the fetcher. It holds a lock on the file as long as
it needs it, so the fetcher knows which files may go.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from packtrain._core.errors import CorruptFile, StagingError
from packtrain._core.files import file_errors
from packtrain._core.npy import npy_header
from packtrain._core.opening import closing_descriptor

from ..staging.documents import allocated_bytes
from ..staging.folder import Folder
from .layout import ORDERS
from .order import Integers, Visits

_DIGITS: Final = 32
_SUFFIX: Final = ".npy"
_MOST_BYTES: Final = 1 << 32
_MOST_ROUNDS: Final = 5
"""The most times that a file may go before its writer has a lock on it."""


@dataclass(frozen=True, eq=False)
class OrderChunks:
    """The chunks that an order goes through, as one of its caches sees them.

    Attributes:
        bounds: Where each begins, and where the last one ends: places of the order, int64 [chunks + 1].
        chunk: The chunk of the cache that each is a part of, -1 for those that lie elsewhere; int64 [chunks].
    """

    bounds: Integers
    chunk: Integers

    @cached_property
    def digest(self) -> str:
        """Names the content: 32 hexadecimal digits."""
        return hashlib.sha256(self.dump()).hexdigest()[:_DIGITS]

    @cached_property
    def used(self) -> Integers:
        """The chunks of the cache that the order needs, ascending: int64 [any]."""
        return np.unique(self.chunk[self.chunk >= 0])

    @property
    def share(self) -> float:
        """The part of the order's chunks that lies in the cache."""
        return float(np.mean(self.chunk >= 0)) if len(self.chunk) else 0.0

    def is_all(self, bounds: Integers) -> bool:
        """True if these are the chunks of the cache as they are, which begin at `bounds`."""
        return np.array_equal(self.bounds, bounds) and np.array_equal(self.chunk, np.arange(len(self.chunk)))

    def in_cache(self, visits: Visits) -> Visits:
        """The uses of the cache's chunks, of uses of the order's chunks."""
        chunk = self.chunk[visits.chunk]
        there = chunk >= 0
        return Visits(chunk[there], visits.lane[there], visits.window[there])

    def dump(self) -> bytes:
        """The content of the file: an array ``<i8`` [2, chunks] of the number of records of each chunk and `chunk`."""
        table = np.ascontiguousarray([np.diff(self.bounds), self.chunk], "<i8")
        return npy_header("<i8", table.shape) + table.tobytes()

    @classmethod
    def parse(cls, data: bytes, digest: str, chunks: int) -> Self:
        """Reads what `dump` returned.

        Args:
            data: The content of the file.
            digest: Its name.
            chunks: Number of chunks of the cache.

        Raises:
            ValueError: It is something else.
        """
        header = len(npy_header("<i8", (2, 0)))
        count = (len(data) - header) // 16
        if hashlib.sha256(data).hexdigest()[:_DIGITS] != digest or data[:header] != npy_header("<i8", (2, count)):
            raise ValueError("it is not what its name says")
        sizes, chunk = np.frombuffer(data, "<i8", 2 * count, header).reshape(2, count).astype(np.int64)
        if count and not (sizes.min() > 0 and chunk.min() >= -1 and chunk.max() < chunks):
            raise ValueError(f"it names what is not among {chunks} chunks")
        return cls(np.cumsum([0, *sizes]), chunk)


class OrderLease:
    """The file of an order in a cache, which is there as long as this is open and its process lives.

    Args:
        entry: Folder of the cache.
        order: What the file says.

    Raises:
        StagingError: It cannot be written, or somebody keeps removing it.
    """

    def __init__(self, entry: Path, order: OrderChunks) -> None:
        self._entry: Final = entry
        self._order: Final = order
        self._end: weakref.finalize[Any, Any] | None = None
        self.renew()

    @property
    def digest(self) -> str:
        """Names the order."""
        return self._order.digest

    def renew(self) -> None:
        """Writes the file if it is not there."""
        data, name = self._order.dump(), _name(self.digest)
        with file_errors(self._entry / ORDERS / name, StagingError):
            for _ in range(_MOST_ROUNDS):
                self.close()
                # What the fetcher removes meanwhile is written again.
                with suppress(FileNotFoundError):
                    folder = Folder.open(self._entry).own_folder(ORDERS)
                    if not _has(folder, name, data):
                        folder.write(name, data)
                    descriptor = folder.open_file(name, os.O_RDONLY)
                    self._end = weakref.finalize(self, os.close, descriptor)
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                    if os.fstat(descriptor).st_nlink and _has(folder, name, data):
                        return
        raise StagingError(f"{self._entry / ORDERS} is changed again and again: find out who changes what is in there")

    def close(self) -> None:
        """Lets the fetcher remove the file if nobody else needs it."""
        if self._end is not None:
            self._end()


class OrderFiles:
    """The files of orders in a cache, as its fetcher sees them.

    Args:
        entry: Folder of the cache.
        chunks: Number of its chunks.
    """

    def __init__(self, entry: Path, chunks: int) -> None:
        self._entry: Final = entry
        self._chunks: Final = chunks
        self._known: Final = dict[str, OrderChunks]()

    @property
    def bytes(self) -> int:
        """Bytes that the files take."""
        entry = Folder.open(self._entry)
        return allocated_bytes(entry.folder(ORDERS)) if entry.has_own_folder(ORDERS) else 0

    def load(self, digest: str) -> OrderChunks:
        """The chunks of an order that a client has named.

        Raises:
            CorruptFile: Its file is not there, or damaged.
        """
        if digest not in self._known:
            name = f"{ORDERS}/{_name(digest)}"
            try:
                data = Folder.open(self._entry).read(name, _MOST_BYTES)
                self._known[digest] = OrderChunks.parse(data, digest, self._chunks)
            except (OSError, ValueError) as error:
                raise CorruptFile(
                    f"{self._entry / name} is missing or damaged ({error}): begin the epoch again", file=name
                ) from None
        return self._known[digest]

    def remove_unused(self) -> None:
        """Removes the files that no client needs any more."""
        entry = Folder.open(self._entry)
        if not entry.has_own_folder(ORDERS):
            return
        folder = entry.folder(ORDERS)
        for name in folder.names():
            if not folder.has_own_file(name):
                folder.remove(name)
                continue
            with suppress(FileNotFoundError, BlockingIOError):
                with closing_descriptor(folder.open_file(name, os.O_RDONLY)) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # While it is locked: whoever waits for the lock sees then that the file has no name any more.
                    folder.remove(name)
                self._known.pop(name.removesuffix(_SUFFIX), None)


def _name(digest: str) -> str:
    return f"{digest}{_SUFFIX}"


def _has(folder: Folder, name: str, data: bytes) -> bool:
    """True if a file has this content."""
    try:
        return folder.has_own_file(name) and folder.read(name, len(data)) == data
    except OSError:
        return False
