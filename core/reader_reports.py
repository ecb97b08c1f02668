"""Reports of the readers of a growing cache to its filler: the samples they took, and the generations they finished.

Each reader has a file of its own in ``readers/``, of four 64-bit numbers, little-endian, which it writes through a
mapping: that takes no system call. It holds a lock on the file as long as it lives, so a filler can tell which readers
have ended. What those have said, the filler adds to a total, ``readers/ended.json``, and removes their files.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

from .document import dump_document, load_document, parse_document
from .errors import CorruptFile
from .files import write_file
from .generations import READERS
from .locks import Lock, is_locked
from .manifest import Count
from .opening import closing_descriptor, names_in, open_folder, open_regular, read_regular
from .typed import MOST

ENDED: Final = "ended.json"
_VERSION: Final = 1
_WORDS: Final = 4
_BYTES: Final = 8 * _WORDS
_TAKEN, _SEEN, _GENERATION, _PROCESS = range(_WORDS)
_NAME: Final = re.compile("[0-9a-f]{32}")
_MAPPED: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Report(NamedTuple):
    """Report of one reader, as the filler reads it.

    Attributes:
        path: File of the report.
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
        # Whoever made the cache may have put a link there, by which the file would be made elsewhere.
        with closing_descriptor(open_folder(root / READERS, root)) as folder:
            self._lock = _new_file(root / READERS, folder)
            # Mapped through a descriptor of its own: Python keeps a copy of it, in forked processes, too, and a copy of
            # the one that is locked would keep the lock.
            with os.fdopen(os.open(self._lock.path.name, _MAPPED, dir_fd=folder), "r+b") as file:
                self._words = np.frombuffer(mmap.mmap(file.fileno(), _BYTES), "<u8")
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
    for name in filter(_NAME.fullmatch, names_in(root / READERS, root)):
        path = root / READERS / name
        try:
            # In this order: a reader that has ended says nothing more.
            alive = is_locked(path, opener=lambda path, flags, mode: open_regular(path, below=root))
            data = read_regular(path, _BYTES, below=root)
        except OSError:
            # It has just been removed, or is not a report.
            continue
        # Anybody who may read the cache may have written this: larger numbers could not be saved in the total.
        words = [min(word, MOST) for word in np.frombuffer(data.ljust(_BYTES, b"\0"), "<u8").tolist()]
        yield Report(path, words[_TAKEN], words[_SEEN], words[_GENERATION], words[_PROCESS], alive)


@dataclass(frozen=True)
class EndedReaders:
    """Total of the readers that have ended, and what else a filler must not forget. Only the filler writes it.

    Attributes:
        taken: Number of samples that they handed out.
        seen: The furthest that one of them has gone through a whole generation, see `Report.seen`.
        started: Number of samples that had been written when readers began to count; None if they have not yet.
        folded: Names of the reports that are part of this. Their files are removed after this was written.
    """

    taken: Count = 0
    seen: Count = 0
    started: Count | None = None
    folded: tuple[str, ...] = ()

    @classmethod
    def load(cls, root: Path) -> Self:
        """Reads the total, and removes the reports that are part of it.

        Raises:
            CorruptFile: It is damaged; the message says what to do.
        """
        path = root / READERS / ENDED
        try:
            found = parse_document(cls, load_document(path, newest=_VERSION, below=root), path)
        except FileNotFoundError:
            return cls()
        except CorruptFile as error:
            raise CorruptFile(
                f"{error}. Remove this file to count what readers take from zero", file=path.name
            ) from error
        for name in filter(_NAME.fullmatch, found.folded):
            (root / READERS / name).unlink(missing_ok=True)
        return found

    def save(self, root: Path) -> None:
        """Writes the total, durably and atomically."""
        write_file(root / READERS / ENDED, [dump_document({"version": _VERSION, **asdict(self)})])

    def with_ended(self, root: Path, found: list[Report]) -> EndedReaders:
        """Adds the reports of readers that have ended, and removes their files."""
        ended = [report for report in found if not report.alive]
        if not ended:
            return self
        taken = min(MOST, self.taken + sum(report.taken for report in ended))
        seen = max(self.seen, *(report.seen for report in ended))
        total = replace(self, taken=taken, seen=seen, folded=tuple(report.path.name for report in ended))
        # A crash between these two steps must not count them twice: `load` finds their names.
        total.save(root)
        for report in ended:
            report.path.unlink(missing_ok=True)
        return total


def _new_file(folder: Path, descriptor: int) -> Lock:
    def create(path: Path, flags: int, mode: int) -> int:
        return os.open(path.name, flags, mode, dir_fd=descriptor)

    while True:
        path = folder / secrets.token_hex(16)
        lock = Lock(path, shared=True, inherited=False, flags=os.O_RDWR | os.O_CREAT | os.O_EXCL, opener=create)
        try:
            # Written, not only made so long: a hole that cannot be filled would end this process when it is touched.
            os.write(lock.fileno(), bytes(_BYTES))
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=descriptor)
            lock.close()
            raise
        if os.fstat(lock.fileno()).st_nlink:
            return lock
        # The filler looked between opening and locking, and took it for one that has ended.
        lock.close()
