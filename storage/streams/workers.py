"""The threads of a fetcher: some fetch chunks, and one brings their files to the medium."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from .chunk_files import ChunkFiles
from .entry import WHOLE, WRONG
from .fetching import Source, Wrong


class Result(NamedTuple):
    """What became of a chunk.

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

    def __init__(self, source: Source, files: ChunkFiles, threads: int) -> None:
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
        """What became of chunks since the last call."""
        with suppress(BlockingIOError):
            self.woken.recv(4096)
        with suppress(IndexError):
            while True:
                yield self._results.popleft()

    @property
    def syncing(self) -> bool:
        """True if files are still to be brought to the medium."""
        # They are in one line: what came last is done last.
        return self._last_sync is not None and not self._last_sync.done()

    def synced(self) -> Iterator[tuple[int, OSError | None]]:
        """Chunks that are on the medium since the last call, and those that it did not take, with the reason."""
        with suppress(IndexError):
            while True:
                yield self._synced.popleft()

    def close(self) -> None:
        """Ends the threads."""
        self._fetching.shutdown()
        self._syncing.shutdown()
        self.woken.close()
        self._wake.close()

    def fetch_now(self, chunk: int) -> None:
        """What a thread does."""
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
        """What the other thread does."""
        for chunk in chunks:
            try:
                self._files.sync(chunk)
            except OSError as error:
                self._synced.append((chunk, error))
            else:
                self._synced.append((chunk, None))
