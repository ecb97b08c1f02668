"""A cache as the processes that read from it see it: files of chunks, which they map.

A look at a byte of shared memory tells whether a chunk is there. If it is not, the process asks the fetcher
(`connections`) and waits for the answer, which comes when the chunk is there or cannot be had.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from packtrain._core.errors import CorruptFile, StagingError
from packtrain._core.manifest import Manifest
from packtrain._core.opening import open_regular
from packtrain._core.overriding import override
from packtrain._core.problems import error_kind

from ..remote.urls import Url
from ..staging.documents import STREAMED, read_origin
from ..staging.folder import Folder
from ..staging.locks import lease_on_entry
from .chunks import ChunkTable
from .connections import BUCKET, Connection, Connections
from .layout import WRONG, Present, chunk_path
from .order_files import OrderChunks, OrderLease
from .policy import Reading
from .protocol import Ahead, Ask, Fill, Read, State

_MOST_ROUNDS: Final = 5
"""The most times that a chunk may be missing although the fetcher says that it is there."""


class ChunkCache:
    """The chunks of a remote dataset, in a bounded cache on this machine.

    The cache is not evicted as a whole while this object lives. It pickles as its arguments, and can be used on both
    sides of a fork.

    Args:
        entry: Folder of the cache.
        budget: Bytes that the cache may take.
        objects: What makes the object store of the fetcher, ``"MODULE:NAME"``.
        check: Whether each record that is read is compared with its checksum. If so, there are also chunks in which a
            few records are wrong, because the object store has them so; otherwise these are errors.
        url: Address of the dataset; None: that of the process that opened it last.

    Attributes:
        entry: Folder of the cache.
        url: Address of the dataset.
        budget: Bytes that the cache may take for this process; that of another one may be larger, and counts for all.
        dataset: The dataset's folder in it, without shards.
        table: Where records lie in chunks.
        present: A byte for each chunk, 0 if it is not there; it changes as chunks come and go.

    Raises:
        StagingError: The cache has been evicted.
        DatasetError: It is damaged.
    """

    def __init__(
        self, entry: Path, budget: int, objects: str = BUCKET, check: bool = False, url: Url | None = None
    ) -> None:
        self.entry: Final = entry
        self.budget: Final = budget
        self.dataset: Final = entry / STREAMED
        self._check: Final = check
        self._lease: Final = lease_on_entry(entry)
        url = url or read_origin(Folder.open(entry))
        if url is None:
            raise StagingError(f"{entry} does not say what it is a cache of: evict it, and open the dataset again")
        self.url: Final[Url] = url
        self._arguments: Final = entry, budget, objects, check, url
        self.table: Final = ChunkTable.load(entry, Manifest.load(self.dataset))
        self._known: Final = Present(entry, len(self.table))
        self.present: Final = self._known.bytes
        self._connections: Final = Connections(entry, url, budget, check, objects)

    def __reduce__(self) -> tuple[Callable[..., ChunkCache], tuple[Path, int, str, bool, Url]]:
        return type(self), self._arguments

    @property
    def complete(self) -> bool:
        """True if all chunks are there."""
        return bool(np.frombuffer(self.present, np.uint8).all())

    def open(self, chunk: int, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Opens the file of a chunk. Returns the descriptor, which belongs to the caller.

        The descriptor holds a lock, which lasts until it and all maps made with it are closed. Until then the bytes of
        the chunk are there and count in the budget, so let go of chunks that are not `present` any more.

        Args:
            chunk: Its number.
            meanwhile: Called again and again while this waits. Room may have to be made for the chunk, so it lets go
                of chunks that are not `present` any more.

        Raises:
            StagingError: The cache has been removed, or somebody keeps changing what is in it.
            RemoteError: It cannot be fetched.
            CorruptRecord: The object store gives something else than was packed.
            NoRoom: There is no room for it.
        """
        if (found := self._try_open(chunk)) is not None:
            return found
        for attempt in range(1 + _MOST_ROUNDS):
            with self._connections.ticket(Ask(chunk, suspect=attempt > 0), meanwhile):
                if (found := self._try_open(chunk)) is not None:
                    return found
            # The fetcher says that it is there, but it is not what was packed. Or that is another cache's fetcher.
            self._known.check()
        raise StagingError(
            f"the file of chunk {chunk} in {self.entry} is damaged or removed again and again: find out who changes "
            "what is in there"
        )

    def damaged(self, chunk: int) -> None:
        """Have the file of a chunk checked, and fetched again if it is not what was packed. Raises: As `open`."""
        with self._connections.ticket(Ask(chunk, suspect=True)):
            pass

    def ahead(self, chunks: Iterable[int]) -> None:
        """Asks for chunks that will be needed soon, without waiting. Only those come for which there is free room."""
        missing = [chunk for chunk in chunks if not self.present[chunk]]
        if missing:
            self._connections.say(Ahead(tuple(missing)))

    def register(self, job_id: str, reading: Reading, order: OrderChunks | None = None) -> RegisteredRank:
        """Tell the fetcher that a rank goes through the dataset, so that chunks come before the rank needs them.

        Args:
            job_id: A name for the job, for messages.
            reading: Where the rank is, in a `ChunkOrder`.
            order: The chunks of that; None: they are those of the cache.

        Raises:
            UsageError: The budget is too small; the message names the one that would do.
            StagingError: The cache cannot be written to.
        """
        lease = None if order is None else OrderLease(self.entry, order)
        return RegisteredRank(self._connections, job_id, reading, lease)

    def fill(self) -> FillRequest:
        """Has all chunks fetched, in the order of their places, as long as the result is open."""
        return FillRequest(self._connections, Fill())

    def state(self) -> dict[str, Any]:
        """Figures of the fetcher."""
        return self._connections.asked(State())

    def close(self) -> None:
        """Ends the connections. They are made again if they are needed."""
        self._connections.close()

    def _try_open(self, chunk: int) -> int | None:
        state = self.present[chunk]
        if not state or (state == WRONG and not self._check):
            return None
        try:
            descriptor = open_regular(chunk_path(self.entry, chunk, state), follow=False)
        except OSError as error:
            if error_kind(error) is CorruptFile:
                # There is none, or what has its name is no file.
                return None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # Looked at while the lock is held: a chunk that goes from here on counts until the lock is free.
            # One that went before may have come again meanwhile; then this is the old file, which has no name.
            status = os.fstat(descriptor)
            if self.present[chunk] == state and status.st_nlink and status.st_size == self.table.bytes[chunk]:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None


class FillRequest:
    """The wish for all chunks. It ends when this is closed, or with its process.

    Args:
        connections: Those of the cache.
        request: What the fetcher is told of the wish.
    """

    def __init__(self, connections: Connections, request: Fill | Read) -> None:
        self._connections = connections
        self._request = request
        self._connection = self._begun()

    def renew(self) -> None:
        """Repeat the wish, to another fetcher if the one that knew it has died."""
        try:
            if not self._connection.closed:
                self._connection.send(self._request)
                return
        except OSError:
            self._connection.close()
        self._connection = self._begun()

    def close(self) -> None:
        """Ends the wish."""
        self._connection.close()

    def _begun(self) -> Connection:
        return self._connections.kept(self._request)


class RegisteredRank(FillRequest):
    """A rank of a job, as the fetcher knows it. It is forgotten when this is closed, or when its process ends.

    Args:
        connections: Those of the cache.
        job_id: A name for the job.
        reading: Where the rank is.
        order: The chunks of its order; None: they are those of the cache.
    """

    _request: Read

    def __init__(
        self, connections: Connections, job_id: str, reading: Reading, order: OrderLease | None = None
    ) -> None:
        self._order = order
        super().__init__(connections, Read(job_id, reading, order.digest if order else None))

    def progress(self, keys: tuple[int, ...], consumed: int, in_flight: int = 0) -> None:
        """Says where the rank is. It takes microseconds, and more of the fetcher: some times in a second do.

        Args:
            keys: Keys of this epoch and, if there is one, of the next.
            consumed: Positions of this epoch that all ranks have used up.
            in_flight: Positions after these that are being worked on.

        Raises:
            RemoteError: The fetcher has died, and no other can be started.
        """
        reading = replace(self._request.reading, keys=keys, consumed=consumed, in_flight=in_flight)
        self._request = replace(self._request, reading=reading)
        self.renew()

    @override
    def close(self) -> None:
        # First: the fetcher looks for files that nobody needs when the connection ends.
        if self._order is not None:
            self._order.close()
        super().close()

    @override
    def _begun(self) -> Connection:
        if self._order is not None:
            # It may have been removed since another fetcher was told of it.
            self._order.renew()
        return super()._begun()
