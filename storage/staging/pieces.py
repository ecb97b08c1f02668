"""Files split into pieces, threads that work through them, the journal of what is copied, and progress in bytes."""

from __future__ import annotations

import json
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final, Self, TypeVar

from packtrain._core.crc import combine
from packtrain._core.typed import is_count

from .folder import Folder
from .options import OnStageProgress, Phase, StageProgress
from .origin import SourceFile

Task = TypeVar("Task")

PIECE: Final = 16 << 20
"""Bytes that a thread handles as one task. A copy that is killed loses at most this much work per thread."""
BUFFER: Final = 1 << 20
"""Bytes that are read, checksummed and written at a time. They stay in the processor's cache between these steps."""
_TICK_SECONDS: Final = 0.1
JOURNAL: Final = "journal"
_MOST_BYTES: Final = 256 << 20
"""A journal that is larger is not read: that of 30 TB."""
_Key = tuple[str, int, int, int]


@dataclass(frozen=True)
class Piece:
    """A range of a file.

    Attributes:
        file: The file.
        offset: First byte of the range, a multiple of the page size.
        length: Length of the range in bytes; 0 for the only piece of an empty file.
    """

    file: SourceFile
    offset: int
    length: int


def split(file: SourceFile) -> tuple[Piece, ...]:
    """Splits a file into pieces, in order; an empty file has one piece."""
    return tuple(Piece(file, offset, min(PIECE, file.bytes - offset)) for offset in range(0, max(file.bytes, 1), PIECE))


class Checksums(dict[Piece, int]):
    """crc32c of pieces."""

    def of_file(self, file: SourceFile) -> int:
        """crc32c of a whole file; the checksums of all its pieces must be there."""
        return reduce(lambda checksum, piece: combine(checksum, self[piece], piece.length), split(file), 0)


@dataclass(frozen=True)
class Known:
    """A record of the journal.

    Attributes:
        checksum: crc32c of the piece.
        stamp: Stamp of the source file from before the piece was read, see `stamp_of`.
    """

    checksum: int
    stamp: str


class Journal:
    """Records which pieces were copied, with their checksums: one line each, appended by a single write.

    The journal is not fsynced: a copy that continues from it first verifies the pieces it names. A line that is torn,
    damaged or about another file is ignored.

    Args:
        folder: Folder of the copy; the journal in it is created if it is missing.
    """

    def __init__(self, folder: Folder) -> None:
        folder.create(JOURNAL)
        self._known = dict(_lines(folder))
        self._descriptor = folder.open_file(JOURNAL, os.O_WRONLY | os.O_APPEND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def __getitem__(self, piece: Piece) -> Known | None:
        """Return the record of a copied piece; None if the journal does not have it."""
        return self._known.get(_key(piece))

    def add(self, piece: Piece, known: Known) -> None:
        """Records a copied piece."""
        # The leading newline keeps a torn line before this one from damaging it.
        os.write(self._descriptor, f"\n{json.dumps([*_key(piece), known.checksum, known.stamp])}\n".encode())


def _key(piece: Piece) -> _Key:
    return piece.file.name, piece.file.bytes, piece.offset, piece.length


def _lines(folder: Folder) -> Iterator[tuple[_Key, Known]]:
    try:
        lines = folder.read(JOURNAL, _MOST_BYTES).splitlines()
    except OSError:
        # It only saves work. What cannot be read is copied again.
        return
    for line in lines:
        try:
            name, *numbers, stamp = json.loads(line)
            bytes, offset, length, checksum = numbers
        except (ValueError, TypeError, RecursionError):
            continue
        if all(map(is_count, numbers)) and isinstance(name, str) and isinstance(stamp, str):
            yield (name, bytes, offset, length), Known(checksum, stamp)


class ProgressCounter:
    """Counts bytes from several threads and reports them from one.

    Args:
        phase: What the bytes are counted for.
        total: Bytes to process in all.
        on_progress: Called by `report` with the current counts.
    """

    def __init__(self, phase: Phase, total: int, on_progress: OnStageProgress | None) -> None:
        self.copied = 0
        self.resumed = 0
        self._taken_back = 0
        self._phase: Phase = phase
        self._total = total
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def add(self, copied: int = 0, *, resumed: int = 0, taken_back: int = 0) -> None:
        """Counts bytes that were read or copied, that an earlier copy left intact, or that will be copied again."""
        with self._lock:
            self.copied += copied
            self.resumed += resumed
            self._taken_back += taken_back

    def report(self) -> None:
        """Calls `on_progress`. Only the thread that started the work may call this."""
        if self._on_progress is not None:
            with self._lock:
                done = self.copied + self.resumed - self._taken_back
                progress = StageProgress(self._phase, done, self._total, self.resumed)
            self._on_progress(progress)


class Stopped(Exception):
    """A thread abandons its task because another one failed or the caller was interrupted."""


class ThreadTeam:
    """Threads, each with its own buffer, that work through a list of tasks.

    Args:
        threads: Maximum number of threads.
        buffer: Size of each buffer in bytes; None: `BUFFER`.
        on_stop: Called if the tasks are abandoned, to end what threads are waiting for.
    """

    def __init__(self, threads: int, buffer: int | None = None, on_stop: Callable[[], None] = lambda: None) -> None:
        self._threads = max(1, threads)
        self._buffer = buffer or BUFFER
        self._on_stop = on_stop
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def raise_if_stopped(self) -> None:
        """Lets a task stop early. Long tasks call this regularly.

        Raises:
            Stopped: The task should be abandoned.
        """
        if self._stop.is_set():
            raise Stopped

    def run(
        self, tasks: Iterable[Task], work: Callable[[Task, memoryview], None], on_tick: Callable[[], None] | None = None
    ) -> None:
        """Calls `work(task, buffer)` for every task, and `on_tick()` about ten times a second in the calling thread.

        Raises:
            StagingError: No thread can be started.
            BaseException: The first exception raised by `work`, or one raised in the calling thread. All threads have
                ended by then.
        """
        waiting = deque(tasks)
        threads = [
            threading.Thread(target=self._work_through, args=(waiting, work), daemon=True)
            for _ in range(min(self._threads, len(waiting)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_TICK_SECONDS)
                    if on_tick is not None:
                        on_tick()
                    if self._stop.is_set():
                        self._on_stop()
        except BaseException:
            self._stop.set()
            self._on_stop()
            raise
        finally:
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self._failures:
            raise self._failures[0]

    def _work_through(self, waiting: deque[Task], work: Callable[[Task, memoryview], None]) -> None:
        try:
            buffer = memoryview(mmap.mmap(-1, self._buffer))
            while not self._stop.is_set():
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                work(task, buffer)
        except Stopped:
            pass
        except BaseException as error:
            self._failures.append(error)
            self._stop.set()
