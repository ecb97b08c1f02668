"""What readers of a growing cache tell its filler: how many samples they took, and how far they have seen all.

Each reader has a file of its own in ``readers/``, of four 64-bit numbers, little-endian, which it writes through a
mapping: that takes no system call. It holds a lock on the file as long as it lives, so a filler can tell which readers
have ended.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from .generations import READERS
from .locks import Lock

_WORDS: Final = 4
_TAKEN, _SEEN, _GENERATION, _PROCESS = range(_WORDS)


class Report(NamedTuple):
    """What one reader says.

    Attributes:
        path: Its file.
        taken: Number of samples that it handed out.
        seen: It has gone through a whole generation that ended before the sample of this number; 0 if through none.
        generation: Number of the generation that it reads.
        process: Id of its process.
        alive: False if it has ended.
    """

    path: Path
    taken: int
    seen: int
    generation: int
    process: int
    alive: bool


class ReaderReport:
    """The report of one reader. A forked process does not hold its lock.

    Args:
        root: The cache's folder.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, root: Path) -> None:
        path = root / READERS / secrets.token_hex(16)
        self._lock = Lock(path, shared=True, inherited=False, flags=os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.ftruncate(self._lock.fileno(), 8 * _WORDS)
        self._words = np.frombuffer(mmap.mmap(self._lock.fileno(), 8 * _WORDS), "<u8")
        self._words[_PROCESS] = os.getpid()

    def take(self, count: int) -> None:
        """Counts samples that were handed out."""
        self._words[_TAKEN] += count

    def begin(self, generation: int) -> None:
        """Says which generation is read from now on."""
        self._words[_GENERATION] = generation

    def finish(self, end_sample: int) -> None:
        """Says that a whole generation was gone through, which ended before the sample of this number."""
        self._words[_SEEN] = max(int(self._words[_SEEN]), end_sample)

    def close(self) -> None:
        """Ends the report. The filler counts it, and removes its file."""
        self._lock.close()


def reports(root: Path) -> Iterator[Report]:
    """The reports of all readers, also of those that have ended and whose files nobody has removed yet."""
    for path in sorted((root / READERS).iterdir()):
        try:
            words = np.frombuffer(path.read_bytes().ljust(8 * _WORDS, b"\0"), "<u8").tolist()
            alive = _is_locked(path)
        except FileNotFoundError:
            continue
        yield Report(path, words[_TAKEN], words[_SEEN], words[_GENERATION], words[_PROCESS], alive)


def _is_locked(path: Path) -> bool:
    try:
        Lock(path, wait=False, flags=os.O_RDONLY).close()
    except BlockingIOError:
        return True
    return False
