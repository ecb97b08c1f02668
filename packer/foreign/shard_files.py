"""A window that moves over a shard, errors about shards, and tasks that are given an object store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from crc32c import crc32c

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import NotThere, PackError, RemoteError
from packtrain._core.files import MiB
from packtrain._core.problems import reason
from packtrain._storage.location import Location, object_store, read
from packtrain._storage.remote.objects import Objects
from packtrain._storage.sequential import SequentialFile

WINDOW: Final = 4 * MiB
LARGEST_VIEW: Final = 64 * MiB
"""The most that is in memory of a file, however large its members are."""
_READ: Final = MiB // 2
"""Bytes that are read and checksummed at a time: they are still in the processor's cache then."""


def unreadable(place: Location, error: OSError | RemoteError, hint: str = "") -> PackError:
    """The error for a shard that cannot be read."""
    if isinstance(error, RemoteError):
        # It names the object already.
        return PackError(f"{error}{hint}")
    return PackError(f"{place} cannot be read: {reason(error)}{hint}")


def read_if_there(place: Location, objects: Objects | None) -> bytes | None:
    """Reads a document; None if it is not there."""
    try:
        return read(place, MOST_BYTES, objects)
    except (FileNotFoundError, NotADirectoryError, NotThere):
        return None


class WithObjects:
    """A function for workers that is also given an object store, of which a worker has one for all of its tasks.

    Args:
        function: The function, which can be pickled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._objects: Objects | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return WithObjects, (self._function,)

    def __call__(self, task: object, report: Callable[[Any], None]) -> Any:
        """Does a task."""
        self._objects = self._objects or object_store(patient=True)
        return self._function(task, report, self._objects)


class SlidingWindow:
    """A file that is read once. Places may only ascend.

    Args:
        file: The file; the caller closes it.
        size: Its size in bytes; nothing behind it is read.
        window: Bytes that are in memory at a time.

    Attributes:
        size: The size of the file in bytes.
    """

    def __init__(self, file: SequentialFile, size: int, window: int = WINDOW) -> None:
        self.size: Final = size
        self._file = file
        self._buffer = memoryview(bytearray(min(window, max(size, 1))))
        # The window holds the bytes from `_start` to `_stop` of the file.
        self._start = self._stop = 0
        self._checksum = 0

    def view(self, offset: int, length: int) -> memoryview:
        """Returns `length` bytes from `offset`, fewer at the end of the file. The next call may overwrite them.

        Raises:
            ValueError: More than `LARGEST_VIEW` is asked for, or a place before that of an earlier call.
            OSError: The file cannot be read, or has become shorter.
            RemoteError: The object store does not answer as it should.
        """
        stop = offset + length
        if offset >= self._start and stop <= self._stop:
            return self._buffer[offset - self._start : stop - self._start]
        stop = min(stop, self.size)
        if length > LARGEST_VIEW or offset < self._start:
            raise ValueError(f"bytes {offset} to {stop} cannot be viewed")
        if stop <= offset:
            return self._buffer[:0]
        if stop > self._stop:
            self._move(offset, stop)
        return self._buffer[offset - self._start : stop - self._start]

    def checksum(self, offset: int, length: int) -> int:
        """Returns the crc32c of `length` bytes from `offset`, all of which must be in the file."""
        checksum, stop = 0, offset + length
        while offset < stop:
            piece = self.view(offset, min(stop - offset, _READ))
            checksum = crc32c(piece, checksum)
            offset += len(piece)
        return checksum

    def finish(self) -> int:
        """Reads the rest of the file. Returns the crc32c of all of it."""
        if self._stop < self.size:
            self._skip(self.size)
        return self._checksum

    def _move(self, offset: int, stop: int) -> None:
        """Moves the window, so that it holds the bytes from `offset` to `stop`, and as many more as it has room for."""
        self._skip(offset)
        buffer = self._buffer
        if stop - offset > len(buffer):
            buffer = memoryview(bytearray(stop - offset))
        # memoryview copies overlapping bytes as memmove does.
        buffer[: self._stop - offset] = self._buffer[offset - self._start : self._stop - self._start]
        self._buffer, self._start = buffer, offset
        self._fill(min(self.size, offset + len(buffer)))

    def _skip(self, offset: int) -> None:
        """Reads up to `offset` without keeping anything."""
        while self._stop < offset:
            self._start = self._stop
            self._fill(min(offset, self._start + len(self._buffer)))

    def _fill(self, stop: int) -> None:
        """Reads up to `stop`, which the window has room for."""
        while self._stop < stop:
            place = self._stop - self._start
            room = self._buffer[place : place + min(stop - self._stop, _READ)]
            count = self._file.read(room, self._stop)
            self._checksum = crc32c(room[:count], self._checksum)
            self._stop += count
