"""Shards as they are read from front to back: files of this machine, or objects in a store."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from crc32c import crc32c
from typing_extensions import override

from packtrain._core.errors import NotThere, PackError, RemoteError
from packtrain._core.files import MiB
from packtrain._core.opening import open_regular
from packtrain._core.problems import reason
from packtrain._storage.location import Location, each, object_store
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

Task = TypeVar("Task")
Report = TypeVar("Report")
Result = TypeVar("Result")
_LOOKS: Final = 16
"""Shards that a store is asked about at the same time."""
_AHEAD: Final = 16 * MiB
"""Bytes of a file that the kernel is asked for at a time."""
_REQUEST: Final = 8 * MiB
"""Bytes of an object that one request asks for."""
_REQUESTS: Final = 4
"""Requests in flight for one shard; as many answers may be in memory."""
WINDOW: Final = 4 * MiB
LARGEST_VIEW: Final = 64 * MiB
"""The most that is in memory of a file, however large its members are."""
_READ: Final = MiB // 2
"""Bytes that are read and checksummed at a time: they are still in the processor's cache then."""


@dataclass(frozen=True)
class State:
    """What tells one content of a shard from another without reading it.

    Attributes:
        bytes: Its size.
        modified_ns: Time of its last change, in nanoseconds since 1970.
        etag: The entity tag of an object; None for a file, and if a store gives none that can be relied on.
    """

    bytes: int
    modified_ns: int
    etag: str | None = None


class ShardFile(Protocol):
    """An open shard, which is read once from front to back."""

    def state(self) -> State:
        """What it is like now."""

    def read(self, view: memoryview, offset: int) -> int:
        """Reads into `view` from `offset` on, where the last read ended. Returns the number of bytes: at least one.

        Raises:
            OSError: It cannot be read, or ends at `offset`.
            RemoteError: The object store does not answer as it should.
        """


def state_of(place: Location, objects: Objects) -> State:
    """What a shard is like now.

    Raises:
        OSError: It is not there, or cannot be looked at.
        RemoteError: The same, of an object.
    """
    if isinstance(place, Url):
        head = objects.head(place)
        return State(head.bytes, head.modified_ns, head.etag or None)
    status = os.stat(place)
    return State(status.st_size, status.st_mtime_ns)


def states(places: Sequence[Location], objects: Objects) -> Iterator[State | OSError | NotThere]:
    """What each shard is like now, or why it cannot be looked at. A store is asked about many at a time."""

    def state(place: Location) -> State | OSError | NotThere:
        try:
            return state_of(place, objects)
        except (OSError, NotThere) as error:
            return error

    return each(state, places)


def ends(place: Location, objects: Objects, first: int, last: int) -> tuple[int, bytes, bytes]:
    """The size of a shard, its first bytes and its last ones; raises the same errors as `state_of`."""
    if not isinstance(place, Url):
        descriptor = open_regular(place)
        try:
            size = os.fstat(descriptor).st_size
            return size, os.pread(descriptor, first, 0), os.pread(descriptor, last, max(0, size - last))
        finally:
            os.close(descriptor)
    size = objects.head(place).bytes
    start, end = bytearray(min(first, size)), bytearray(min(last, size))
    objects.read_into(place, 0, memoryview(start))
    objects.read_into(place, size - len(end), memoryview(end))
    return size, bytes(start), bytes(end)


def unreadable(place: Location, error: OSError | RemoteError, hint: str = "") -> PackError:
    """The error for a shard that cannot be read."""
    if isinstance(error, RemoteError):
        # It names the object already.
        return PackError(f"{error}{hint}")
    return PackError(f"{place} cannot be read: {reason(error)}{hint}")


@contextmanager
def opened(place: Location, objects: Objects) -> Iterator[ShardFile]:
    """Opens a shard.

    Raises:
        OSError: It is no regular file, or cannot be opened.
        RemoteError: The object is not there, or the store does not answer as it should.
    """
    if isinstance(place, Url):
        with ThreadPoolExecutor(_REQUESTS) as threads:
            shard = _Object(place, objects, threads)
            try:
                yield shard
            finally:
                shard.cancel()
        return
    descriptor = open_regular(place)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield LocalFile(descriptor)
    finally:
        os.close(descriptor)


@dataclass
class LocalFile(ShardFile):
    """A regular file, open as `descriptor`."""

    descriptor: int
    _asked: int = 0

    @override
    def state(self) -> State:
        status = os.fstat(self.descriptor)
        return State(status.st_size, status.st_mtime_ns)

    @override
    def read(self, view: memoryview, offset: int) -> int:
        if offset + _AHEAD // 2 >= self._asked:
            os.posix_fadvise(self.descriptor, self._asked, _AHEAD, os.POSIX_FADV_WILLNEED)
            self._asked += _AHEAD
        count = os.preadv(self.descriptor, [view], offset)
        if not count:
            raise OSError(f"it ends at byte {offset}, and was longer when it was opened")
        return count


class _Object(ShardFile):
    """An object, of which the next ranges are always on their way: a store takes long to answer, not to deliver."""

    def __init__(self, url: Url, objects: Objects, threads: ThreadPoolExecutor) -> None:
        self._url = url
        self._objects = objects
        self._threads = threads
        self._size = self.state().bytes
        self._asked = 0
        self._coming: deque[Future[bytearray]] = deque()
        self._range = memoryview(b"")
        self._start = 0

    @override
    def state(self) -> State:
        return state_of(self._url, self._objects)

    @override
    def read(self, view: memoryview, offset: int) -> int:
        if offset == self._start + len(self._range):
            self._start, self._range = offset, self._next()
        part = self._range[offset - self._start :][: len(view)]
        if not part:
            raise OSError(f"it ends at byte {offset}, and was longer when it was opened")
        view[: len(part)] = part
        return len(part)

    def cancel(self) -> None:
        """Asks for nothing more."""
        for future in self._coming:
            future.cancel()

    def _next(self) -> memoryview:
        while len(self._coming) < _REQUESTS and self._asked < self._size:
            size = min(_REQUEST, self._size - self._asked)
            self._coming.append(self._threads.submit(self._fetch, self._asked, size))
            self._asked += size
        # What went before may go: there is no more in memory than is on its way.
        self._range = memoryview(b"")
        return memoryview(self._coming.popleft().result() if self._coming else b"")

    def _fetch(self, offset: int, size: int) -> bytearray:
        data = bytearray(size)
        try:
            self._objects.read_into(self._url, offset, memoryview(data))
        except RemoteError as error:
            # An object that was replaced by a shorter one has no such range.
            try:
                now = self.state().bytes
            except NotThere:
                now = 0
            if now != self._size:
                raise changed(self._url) from error
            raise
        return data


def changed(place: Location) -> PackError:
    """The error for a shard that somebody writes to while it is read."""
    return PackError(f"{place} was changed while it was read: wait until it is complete")


class WithObjects(Generic[Task, Report, Result]):
    """A function for workers that is also given an object store, of which a worker has one for all of its tasks.

    Args:
        function: The function, which can be pickled.
    """

    def __init__(self, function: Callable[[Task, Callable[[Report], None], Objects], Result]) -> None:
        self._function = function
        self._objects: Objects | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return WithObjects, (self._function,)

    def __call__(self, task: Task, report: Callable[[Report], None]) -> Result:
        """Does a task."""
        self._objects = self._objects or object_store(patient=True)
        return self._function(task, report, self._objects)


class Pieces:
    """A file that is read once. Places may only ascend.

    Args:
        file: The file; the caller closes it.
        size: Its size in bytes; nothing behind it is read.
        window: Bytes that are in memory at a time.

    Attributes:
        size: The size of the file in bytes.
    """

    def __init__(self, file: ShardFile, size: int, window: int = WINDOW) -> None:
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
