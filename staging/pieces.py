"""Files cut into pieces, and threads that work through them."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeVar

from packtrain._core.crc import combine

from .source import SourceFile

Task = TypeVar("Task")

PIECE: Final = 16 << 20
"""Bytes that a thread takes at once, and that are at stake when a copy is killed."""
BUFFER: Final = 1 << 20
"""Bytes read, summed and written at once: they stay in the processor's cache between the three."""
_TICK: Final = 0.1


@dataclass(frozen=True)
class Piece:
    """A range of a file.

    Attributes:
        file: The file.
        offset: Where it starts, a multiple of the page size.
        length: Its length; 0 for the one piece of an empty file.
    """

    file: SourceFile
    offset: int
    length: int


def cut(file: SourceFile) -> tuple[Piece, ...]:
    """The pieces of a file, in order; at least one."""
    return tuple(Piece(file, offset, min(PIECE, file.bytes - offset)) for offset in range(0, max(file.bytes, 1), PIECE))


class Sums(dict[Piece, int]):
    """Checksums of pieces."""

    def total(self, file: SourceFile) -> int:
        """Checksum of a file whose pieces are all there."""
        return reduce(lambda sum, piece: combine(sum, self[piece], piece.length), cut(file), 0)


class Stopped(Exception):
    """A thread gives up its piece because another failed or the caller was interrupted."""


class Crew:
    """Threads with a buffer each that work through a list of tasks.

    Args:
        threads: How many, at most.
    """

    def __init__(self, threads: int) -> None:
        self._threads = max(1, threads)
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def check(self) -> None:
        """To be called by a task now and then.

        Raises:
            Stopped: It is to give up.
        """
        if self._stop.is_set():
            raise Stopped

    def run(
        self, tasks: Iterable[Task], work: Callable[[Task, memoryview], None], tick: Callable[[], None] | None = None
    ) -> None:
        """Calls `work(task, buffer)` for every task, and `tick()` in the calling thread about ten times a second.

        Raises:
            BaseException: The first that `work` raised, or what came up in the calling thread; no thread works any
                more when it arrives.
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
                    thread.join(_TICK)
                    if tick is not None:
                        tick()
        except BaseException:
            self._stop.set()
            raise
        finally:
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self._failures:
            raise self._failures[0]

    def _work_through(self, waiting: deque[Task], work: Callable[[Task, memoryview], None]) -> None:
        try:
            buffer = memoryview(mmap.mmap(-1, BUFFER))
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
