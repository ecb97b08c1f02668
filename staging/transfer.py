"""Copies, checks and warms files: in pieces, by several threads, with a sum of every byte.

A piece is read into a buffer that stays in the processor's cache, summed and written from there; so the checksums,
which need every byte anyway, cost next to nothing. The sums of the pieces combine to the file's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from packtrain._core.errors import NoSpace, SourceChanged, StagingError
from packtrain._core.files import fsync_folder
from packtrain._core.mounts import IN_MEMORY, file_system
from packtrain._core.sizes import size

from .journal import Journal
from .kernel import Reader, allocate, clone, start_writeback
from .origin import changed, errors, no_space, opened, opening, reading
from .pieces import Crew, Piece, Sums, cut
from .progress import CopyProgress, Show, Tally
from .source import SourceFile

THREADS: Final = 8
"""By default; more than cores, because they wait for disks."""
_SLICE: Final = 1 << 30
"""Allocating a slice takes less than a second, so that an interrupt has not long to wait."""


@dataclass(frozen=True)
class CopyReport:
    """What a copy did.

    Attributes:
        bytes: Size of all files.
        copied: Bytes that were copied now; more than `bytes` where a file had to be copied twice.
        resumed: Bytes that an earlier, interrupted copy had left.
        method: ``"reflink"`` or ``"read/write"``.
        seconds: How long it took.
    """

    bytes: int
    copied: int
    resumed: int
    method: str
    seconds: float


def copy_files(
    source: Path,
    target: Path,
    files: Sequence[SourceFile],
    journal: Path,
    *,
    threads: int = THREADS,
    on_progress: Show | None = None,
) -> CopyReport:
    """Copies files, whole and verified, to a medium that holds them.

    Room for all of them is allocated before a byte is copied. Pages of the source that were not in the page cache
    before are not in it afterwards; the copies are. Interrupted in any way, the same call goes on where it was.

    Args:
        source: Folder to copy from.
        target: Existing folder to copy to; subfolders are made.
        files: What to copy, under the same names; they become read-only.
        journal: File in which the finished pieces are noted.
        threads: Threads that copy, at most.
        on_progress: Called about ten times a second from the calling thread.

    Raises:
        SourceChanged: A file is missing, or not what was packed, even when read once more.
        NoSpace: The target is full.
        StagingError: The source cannot be read, or the target not be written.
    """
    started = time.monotonic()
    with Journal(journal) as notes:
        copy = _Copy(source, target, files, notes, Crew(threads), on_progress)
        copy.run()
    seconds = time.monotonic() - started
    method = "reflink" if copy.cloned else "read/write"
    return CopyReport(sum(file.bytes for file in files), copy.tally.copied, copy.tally.resumed, method, seconds)


def check_files(
    folder: Path, files: Sequence[SourceFile], *, threads: int = THREADS, on_progress: Show | None = None
) -> list[SourceFile]:
    """Reads files and compares their checksums; leaves the page cache as it was.

    Args:
        folder: Where they are.
        files: Which files; those that are symbolic links are skipped.
        threads: Threads that read, at most.
        on_progress: Called about ten times a second from the calling thread.

    Returns:
        Those that are missing, not files, of the wrong size, unreadable or of other content, in the order of `files`.
    """
    there = [file for file in files if not (folder / file.name).is_symlink()]
    wrong: set[SourceFile] = set()
    sums = Sums()
    tally = Tally(sum(file.bytes for file in there), on_progress)

    def check(piece: Piece, buffer: memoryview) -> None:
        try:
            with reading(folder, piece) as reader:
                sums[piece] = _sum(piece, buffer, crew, reader.read)
        except (OSError, StagingError, SourceChanged):
            wrong.add(piece.file)
        tally.add(piece.length)

    crew = Crew(threads)
    crew.run([piece for file in there for piece in cut(file)], check, tally.show)
    tally.show()
    return [file for file in there if file in wrong or sums.total(file) != file.crc32c]


def warm_files(
    folder: Path, files: Sequence[SourceFile], *, threads: int = THREADS, on_progress: Show | None = None
) -> int:
    """Reads files into the page cache.

    Args:
        folder: Where they are.
        files: Which files.
        threads: Threads that read, at most.
        on_progress: Called about ten times a second from the calling thread.

    Returns:
        Bytes that were read.

    Raises:
        StagingError: A file cannot be read.
    """
    tally = Tally(sum(file.bytes for file in files), on_progress)

    def warm(piece: Piece, buffer: memoryview) -> None:
        path = folder / piece.file.name
        with errors(path, "read"), opened(path, os.O_RDONLY) as descriptor:
            for view, offset in _views(piece, buffer):
                crew.check()
                tally.add(os.preadv(descriptor, [view], offset))

    crew = Crew(threads)
    crew.run([piece for file in files for piece in cut(file)], warm, tally.show)
    tally.show()
    return tally.copied


class _Copy:
    """One call of `copy_files`."""

    def __init__(
        self, source: Path, target: Path, files: Sequence[SourceFile], journal: Journal, crew: Crew, show: Show | None
    ) -> None:
        self._source = source
        self._target = target
        self._files = files
        self._journal = journal
        self._crew = crew
        self.tally = Tally(sum(file.bytes for file in files), show)
        self.cloned: set[SourceFile] = set()
        self._made: list[Path] = []
        self._sums = Sums()
        self._left = {file: len(cut(file)) for file in files}
        self._lock = threading.Lock()
        self._durable = file_system(target) not in IN_MEMORY

    def run(self) -> None:
        folders = {(self._target / file.name).parent for file in self._files} | {self._target}
        with errors(self._target, "write to"):
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        try:
            self._crew.run(self._files, self._make, self.tally.show)
            self._check_room()
            self._crew.run([file for file in self._files if file not in self.cloned], self._allocate, self.tally.show)
        except NoSpace:
            # What was allocated for nothing is given back at once.
            for path in self._made:
                path.unlink(missing_ok=True)
            raise
        self._crew.run((piece for file in self._files for piece in cut(file)), self._piece, self.tally.show)
        if self._durable:
            with errors(self._target, "write to"):
                for folder in folders:
                    fsync_folder(folder)
        self.tally.show()

    def _check_room(self) -> None:
        """Says at once what allocating would say late, or never on file systems that cannot allocate."""
        need = 0
        for file in self._files:
            if file not in self.cloned:
                need += max(0, file.allocated - os.lstat(self._target / file.name).st_blocks * 512)
        status = os.statvfs(self._target)
        if need > (free := status.f_bavail * status.f_frsize):
            raise no_space(self._target, f"{size(need)} more are needed, {size(free)} are free")

    def _make(self, file: SourceFile, _: memoryview) -> None:
        """Makes the file in its full size; with its content, where file systems share blocks."""
        path = self._target / file.name
        with errors(path, "write"):
            if not os.path.lexists(path):
                self._made.append(path)
            elif not path.is_symlink():
                path.chmod(0o600)  # a finished copy of an earlier run
        with (
            opening(self._source, file) as source,
            errors(path, "write"),
            opened(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as target,
        ):
            if file.bytes and clone(source, target):
                self.cloned.add(file)
            os.ftruncate(target, file.bytes)

    def _allocate(self, file: SourceFile, _: memoryview) -> None:
        path = self._target / file.name
        with errors(path, "write"), opened(path, os.O_WRONLY | os.O_NOFOLLOW) as target:
            for offset in range(0, file.bytes, _SLICE):
                self._crew.check()
                allocate(target, offset, min(_SLICE, file.bytes - offset))

    def _piece(self, piece: Piece, buffer: memoryview) -> None:
        known = self._journal[piece]
        if piece.file in self.cloned:
            self._sums[piece] = self._sum_of_copy(piece, buffer)
            self.tally.add(piece.length)
        elif known is not None and self._sum_of_copy(piece, buffer) == known:
            self._sums[piece] = known
            self.tally.resume(piece.length)
        else:
            self._copy(piece, buffer)
        with self._lock:
            self._left[piece.file] -= 1
            last = not self._left[piece.file]
        if last:
            self._finish(piece.file, buffer)

    def _sum_of_copy(self, piece: Piece, buffer: memoryview) -> int:
        path = self._target / piece.file.name
        with errors(path, "read"), opened(path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
            return _sum(piece, buffer, self._crew, lambda view, offset: os.preadv(descriptor, [view], offset))

    def _copy(self, piece: Piece, buffer: memoryview) -> None:
        path = self._target / piece.file.name
        checksum = 0
        with (
            reading(self._source, piece) as reader,
            errors(path, "write"),
            opened(path, os.O_WRONLY | os.O_NOFOLLOW) as target,
        ):
            for view, offset in _views(piece, buffer):
                self._crew.check()
                self._read(reader, piece.file, view, offset)
                checksum = crc32c(view, checksum)
                _write(target, view, offset)
                self.tally.add(len(view))
            if self._durable:
                start_writeback(target, piece.offset, piece.length)
            self._journal.add(piece, checksum)
        self._sums[piece] = checksum

    def _read(self, reader: Reader, file: SourceFile, view: memoryview, offset: int) -> None:
        with errors(self._source / file.name, "read"):
            count = reader.read(view, offset)
        if count < len(view):
            raise changed(self._source, file, f"it ends after {offset + count} of {file.bytes} bytes")

    def _finish(self, file: SourceFile, buffer: memoryview) -> None:
        if self._sums.total(file) != file.crc32c:
            self._copy_again(file, buffer)
        if (found := self._sums.total(file)) != file.crc32c:
            raise changed(
                self._source, file, f"its crc32c is {found:08x}, and was {file.crc32c:08x} when it was packed"
            )
        path = self._target / file.name
        with errors(path, "write"), opened(path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
            os.fchmod(descriptor, 0o444)
            if self._durable:
                os.fsync(descriptor)

    def _copy_again(self, file: SourceFile, buffer: memoryview) -> None:
        # It may be the page cache, and not the disk, that holds a wrong byte.
        with opening(self._source, file) as descriptor, suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.tally.again(file.bytes)
        for piece in cut(file):
            self._copy(piece, buffer)


def _sum(piece: Piece, buffer: memoryview, crew: Crew, read: Callable[[memoryview, int], int]) -> int:
    checksum = 0
    for view, offset in _views(piece, buffer):
        crew.check()
        checksum = crc32c(view[: read(view, offset)], checksum)
    return checksum


def _views(piece: Piece, buffer: memoryview) -> Iterator[tuple[memoryview, int]]:
    end = piece.offset + piece.length
    for offset in range(piece.offset, end, len(buffer)):
        yield buffer[: end - offset], offset


def _write(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


__all__ = ["THREADS", "CopyProgress", "CopyReport", "check_files", "copy_files", "warm_files"]
