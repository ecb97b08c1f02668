"""Files read once from front to back, wherever they lie, and their states, which tell when a file has changed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from packtrain._core.errors import NotThere, PackError, RemoteError
from packtrain._core.files import MiB, checksum_file
from packtrain._core.opening import closing_descriptor, open_regular
from packtrain._core.overriding import override

from .location import Location, each
from .remote.objects import Objects
from .remote.urls import Url

_AHEAD: Final = 16 * MiB
"""Bytes of a file that the kernel is asked for at a time."""
_REQUEST: Final = 8 * MiB
"""Bytes of an object that one request asks for."""
_REQUESTS: Final = 4
"""Requests in flight for one object; as many answers may be in memory."""


@dataclass(frozen=True)
class FileState:
    """Tells one content of a file from another without reading the file.

    Attributes:
        bytes: Its size.
        modified_ns: Time of its last change, in nanoseconds since 1970.
        etag: The entity tag of an object; None for a file, and if a store gives none that can be relied on.
    """

    bytes: int
    modified_ns: int
    etag: str | None = None


class SequentialFile(Protocol):
    """An open file, which is read once from front to back."""

    def state(self) -> FileState:
        """Return the state of the file now."""

    def read(self, view: memoryview, offset: int) -> int:
        """Read into `view` from `offset`, where the last read ended. Return the number of bytes, at least one.

        Raises:
            OSError: The file cannot be read, or ends at `offset`.
            RemoteError: The object store does not answer as it should.
        """


def file_state(location: Location, objects: Objects) -> FileState:
    """Return the state of a file.

    Raises:
        OSError: The file is not there, or cannot be looked at.
        RemoteError: The same, of an object.
    """
    if isinstance(location, Url):
        head = objects.head(location)
        return FileState(head.bytes, head.modified_ns, head.etag or None)
    status = os.stat(location)
    return FileState(status.st_size, status.st_mtime_ns)


def file_states(locations: Sequence[Location], objects: Objects) -> Iterator[FileState | OSError | NotThere]:
    """Yield the state of each file, or the error. A store is asked about many at a time."""

    def state(location: Location) -> FileState | OSError | NotThere:
        try:
            return file_state(location, objects)
        except (OSError, NotThere) as error:
            return error

    return each(state, locations)


def read_ends(location: Location, objects: Objects, first: int, last: int) -> tuple[int, bytes, bytes]:
    """Return the size of a file, its first bytes and its last; raises the errors of `file_state`."""
    if not isinstance(location, Url):
        with closing_descriptor(open_regular(location)) as descriptor:
            size = os.fstat(descriptor).st_size
            return size, os.pread(descriptor, first, 0), os.pread(descriptor, last, max(0, size - last))
    size = objects.size(location)
    first, last = min(first, size), min(last, size)
    start, end = objects.read_range(location, 0, first), objects.read_range(location, size - last, last)
    return size, bytes(start), bytes(end)


def checksum(location: Location, objects: Objects) -> int:
    """Return the crc32c of a whole file; raises the errors of `file_state`."""
    return objects.checksum(location) if isinstance(location, Url) else checksum_file(location)


@contextmanager
def open_sequential(location: Location, objects: Objects) -> Iterator[SequentialFile]:
    """Open a file.

    Raises:
        OSError: The location is no regular file, or cannot be opened.
        RemoteError: The object is not there, or the store does not answer as it should.
    """
    if isinstance(location, Url):
        with ThreadPoolExecutor(_REQUESTS) as threads:
            shard = _SequentialObject(location, objects, threads)
            try:
                yield shard
            finally:
                shard.cancel()
        return
    with closing_descriptor(open_regular(location)) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield LocalFile(descriptor)


@dataclass
class LocalFile(SequentialFile):
    """A regular file, open as `descriptor`."""

    descriptor: int
    _asked: int = 0

    @override
    def state(self) -> FileState:
        status = os.fstat(self.descriptor)
        return FileState(status.st_size, status.st_mtime_ns)

    @override
    def read(self, view: memoryview, offset: int) -> int:
        if offset + _AHEAD // 2 >= self._asked:
            os.posix_fadvise(self.descriptor, self._asked, _AHEAD, os.POSIX_FADV_WILLNEED)
            self._asked += _AHEAD
        count = os.preadv(self.descriptor, [view], offset)
        if not count:
            raise OSError(f"it ends at byte {offset}, and was longer when it was opened")
        return count


class _SequentialObject(SequentialFile):
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
    def state(self) -> FileState:
        return file_state(self._url, self._objects)

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
        """Request nothing more."""
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


def changed(location: Location) -> PackError:
    """Return the error for a file that somebody writes to while it is read."""
    return PackError(f"{location} was changed while it was read: wait until it is complete")
