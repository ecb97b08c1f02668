"""Files split into pieces, and threads that work through them."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeVar

from packtrain._core.crc import combine
from packtrain._core.errors import StagingError

from .origin import SourceFile

Task = TypeVar("Task")

PIECE: Final = 16 << 20
"""Bytes that a thread handles as one task. A copy that is killed loses at most this much work per thread."""
BUFFER: Final = 1 << 20
"""Bytes that are read, checksummed and written at a time. They stay in the processor's cache between these steps."""
_TICK_SECONDS: Final = 0.1


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
                try:
                    thread.start()
                except RuntimeError as error:
                    if thread is threads[0]:
                        raise StagingError(
                            "no thread can be started: allow this user more processes (`ulimit -u`) or this process "
                            "more memory (`ulimit -v`)"
                        ) from error
                    # Those that have started do the work.
                    break
            threads = [thread for thread in threads if thread.ident is not None]
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
