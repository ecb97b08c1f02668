"""Fetches chunks: threads that read the ranges of one, check each of its records, and write its file."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from crc32c import crc32c

from packtrain._core.errors import CorruptRecord
from packtrain._core.index import Index
from packtrain._core.manifest import Manifest

from ..location import shard_place
from ..remote.objects import Objects
from ..remote.urls import Url
from .chunk_files import ChunkFiles
from .chunks import ChunkRecord, ChunkTable, Extent
from .layout import WHOLE, WRONG

Item = TypeVar("Item")

_APART: Final = 128 << 10
"""Extents that are not farther apart than this are read as one range: a request costs more than these bytes."""
_KEPT: Final = 24 << 20
"""Chunks that are larger are fetched to memory of their own."""
_PART: Final = 16 << 20
"""The longest range."""


class Wrong(NamedTuple):
    """A record that is not what was packed, and the checksum of what it is."""

    record: ChunkRecord
    found: int


class ChunkSource:
    """A remote dataset whose chunks are fetched.

    Args:
        url: Address of its folder.
        manifest: Its manifest.
        index: Its index.
        table: Its chunks.
        objects: The object store.
    """

    def __init__(self, url: Url, manifest: Manifest, index: Index, table: ChunkTable, objects: Objects) -> None:
        self._url = url
        self._manifest = manifest
        self._index = index
        self._table = table
        self._objects = objects
        self._local = threading.local()

    def fetch(self, chunk: int) -> tuple[memoryview, tuple[Wrong, ...]]:
        """Fetches a chunk. What does not match the index is fetched once more.

        If the same few records are wrong in the same way then, that is how they lie in the store, and the others are
        sound.

        Returns:
            The content of the chunk's file, maybe in memory of this thread that its next chunk takes; and the wrong
            records.

        Raises:
            RemoteError: The object store does not give it.
            CorruptRecord: It gives something else, twice, and not the same; or most records are wrong.
            CorruptFile: The index is damaged.
        """
        shard = int(self._table.shard[chunk])
        url = shard_place(self._url, self._manifest, shard)
        extents = self._table.extents(chunk)
        records = list(self._table.records(chunk, self._manifest, self._index))
        wrong: tuple[Wrong, ...] = ()
        for _ in range(2):
            data = self._read(url, extents)
            before, wrong = wrong, _wrong(records, data)
            if not wrong or (wrong == before and 2 * len(wrong) < len(records)):
                return data, wrong
        raise self.corrupt(chunk, wrong[0])

    def _buffer(self, size: int) -> memoryview:
        """Memory of this thread, whose content is old. Fresh pages for each chunk would cost more than its copy."""
        if size > _KEPT:
            return memoryview(bytearray(size))
        kept: memoryview | None = getattr(self._local, "buffer", None)
        if kept is None or len(kept) < size:
            kept = self._local.buffer = memoryview(bytearray(size))
        return kept[:size]

    def wrong_in(self, chunk: int, data: memoryview) -> tuple[Wrong, ...]:
        """The records in the content of a chunk's file that are not what was packed."""
        return _wrong(self._table.records(chunk, self._manifest, self._index), data)

    def _read(self, url: Url, extents: Sequence[Extent]) -> memoryview:
        if len(extents) == 1 and extents[0].stop - extents[0].start <= _PART:
            # Most chunks: their bytes are looked at and written where they arrive.
            (start, stop, _) = extents[0]
            return self._objects.read_range(url, start, stop - start)
        buffer = self._buffer(sum(extent.stop - extent.start for extent in extents))
        for each in ranges(extents):
            self._read_part(url, each, buffer)
        return buffer

    def _read_part(self, url: Url, part: Sequence[Extent], buffer: memoryview) -> None:
        first = part[0].start
        if len(part) == 1:
            (_, stop, position) = part[0]
            self._objects.read_into(url, first, buffer[position : position + stop - first])
            return
        between = memoryview(bytearray(part[-1].stop - first))
        self._objects.read_into(url, first, between)
        for start, stop, position in part:
            buffer[position : position + stop - start] = between[start - first : stop - first]

    def corrupt(self, chunk: int, wrong: Wrong) -> CorruptRecord:
        """The error for a record that arrived damaged twice."""
        url = shard_place(self._url, self._manifest, int(self._table.shard[chunk]))
        record, found = wrong
        line, path = int(self._index["line"][record.row]), self._index.text("path", record.row)
        field = "" if record.field == "image" else f"{record.field} of "
        return CorruptRecord(
            f"{url}: {field}row {record.row} (line {line}, {path!r}), in chunk {chunk}, arrived damaged twice: crc32c "
            f"is {found:08x}, {record.crc32c:08x} was written. Either the object was changed, or the store returns "
            f"wrong data: `packtrain verify {self._url}` lists all damage",
            file=self._manifest.shards[int(self._table.shard[chunk])].name,
            row=record.row,
            line=line,
        )


class Result(NamedTuple):
    """Result of fetching a chunk.

    Attributes:
        chunk: Its number.
        problem: Why it is not there.
        wrong: Records that are wrong in the object store; the others are sound.
    """

    chunk: int
    problem: BaseException | None
    wrong: tuple[Wrong, ...] = ()


class Workers:
    """Threads that fetch chunks and write their files.

    Args:
        source: Where chunks come from.
        files: Where they go.
        threads: How many are fetched at the same time.

    Attributes:
        woken: A socket that can be read when there are results.
    """

    def __init__(self, source: ChunkSource, files: ChunkFiles, threads: int) -> None:
        self._source = source
        self._files = files
        self._fetching: Final = ThreadPoolExecutor(threads, "fetch")
        self._syncing: Final = ThreadPoolExecutor(1, "sync")
        self._results: Final = deque[Result]()
        self._synced: Final = deque[tuple[int, OSError | None]]()
        self._last_sync: Future[None] | None = None
        self.woken, self._wake = socket.socketpair()
        self.woken.setblocking(False)
        self._wake.setblocking(False)

    def fetch(self, chunk: int) -> None:
        """Has a chunk fetched."""
        self._fetching.submit(self.fetch_now, chunk)

    def sync(self, chunks: Iterable[int]) -> None:
        """Has the files of chunks brought to the medium. Nobody waits for it."""
        self._last_sync = self._syncing.submit(self.sync_now, chunks)

    def results(self) -> Iterator[Result]:
        """Yield the results since the last call."""
        with suppress(BlockingIOError):
            self.woken.recv(4096)
        return _drained(self._results)

    @property
    def syncing(self) -> bool:
        """True if files are still to be brought to the medium."""
        # They are in one line: what came last is done last.
        return self._last_sync is not None and not self._last_sync.done()

    def synced(self) -> Iterator[tuple[int, OSError | None]]:
        """Chunks that are on the medium since the last call, and those that it did not take, with the reason."""
        return _drained(self._synced)

    def close(self) -> None:
        """Ends the threads."""
        self._fetching.shutdown()
        self._syncing.shutdown()
        self.woken.close()
        self._wake.close()

    def fetch_now(self, chunk: int) -> None:
        """Fetch a chunk in this thread."""
        try:
            data, wrong = self._source.fetch(chunk)
            self._files.write(chunk, data, WRONG if wrong else WHOLE)
            result = Result(chunk, None, wrong)
        except BaseException as error:
            result = Result(chunk, error)
        self._results.append(result)
        with suppress(BlockingIOError):
            self._wake.send(b"\0")

    def sync_now(self, chunks: Iterable[int]) -> None:
        """Bring the files of chunks to the medium in this thread."""
        for chunk in chunks:
            try:
                self._files.sync(chunk)
            except OSError as error:
                self._synced.append((chunk, error))
            else:
                self._synced.append((chunk, None))


def _drained(line: deque[Item]) -> Iterator[Item]:
    while line:
        yield line.popleft()


def ranges(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """The extents of a chunk, or parts of one, that are read with one request each, in the order of the shard."""
    together: list[Extent] = []
    for extent in chain.from_iterable(map(_parts, extents)):
        if together and (extent.start - together[-1].stop > _APART or extent.stop - together[0].start > _PART):
            yield together
            together = []
        together.append(extent)
    if together:
        yield together


def _parts(extent: Extent) -> Iterator[Extent]:
    for start in range(extent.start, extent.stop, _PART):
        yield Extent(start, min(extent.stop, start + _PART), extent.position + start - extent.start)


def _wrong(records: Iterable[ChunkRecord], buffer: memoryview) -> tuple[Wrong, ...]:
    found = ((record, crc32c(buffer[record.position : record.position + record.size])) for record in records)
    return tuple(Wrong(record, checksum) for record, checksum in found if checksum != record.crc32c)
