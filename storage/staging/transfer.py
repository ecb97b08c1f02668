"""Copies, checks and warms files: in pieces, with several threads, and with a checksum of every byte.

A piece is read into a buffer that stays in the processor's cache, and is checksummed and written from there. So the
checksums cost next to nothing. The checksums of all pieces combine to the checksum of the file.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from packtrain._core.errors import NoSpace, RemoteError, SourceChanged, StagingError
from packtrain._core.files import file_errors, no_space
from packtrain._core.mounts import IN_MEMORY, file_system
from packtrain._core.opening import closing_descriptor, open_regular
from packtrain._core.sizes import size

from .folder import Folder
from .kernel import allocate, start_writeback
from .options import OnStageProgress
from .origin import Origin, SourceFile
from .pieces import Checksums, Journal, Known, Piece, ProgressCounter, ThreadTeam, split

_THREADS: Final = 8
"""Threads that read a disk, by default. There are more of them than cores, because they wait for disks."""
_REMOTE_THREADS: Final = 16
"""The same for an object store: a single request is far from what it can send."""
_REQUEST: Final = 8 << 20
"""Bytes per request: enough to forget how long it takes until the first one comes."""
_SLICE: Final = 1 << 30
"""Bytes allocated at a time. This takes less than a second, so an interrupt does not have to wait long."""


def copy_files(
    origin: Origin,
    target: Folder,
    files: Sequence[SourceFile],
    journal: Journal,
    *,
    threads: int | None = None,
    on_progress: OnStageProgress | None = None,
) -> tuple[int, Mapping[str, str]]:
    """Copies and verifies files and, on a disk, makes them durable.

    Space for all files is allocated before the first byte is copied. Pages of the source that were not in the page
    cache before are not in it afterwards, but those of the copies are. If the call is interrupted in any way, the same
    call continues where it stopped.

    Args:
        origin: Where to copy from.
        target: Folder to copy to; subfolders are created.
        files: Files to copy, under the same names; the copies are read-only.
        journal: Records the finished pieces.
        threads: Maximum number of threads that copy; None: as many as suit the origin.
        on_progress: Called about ten times a second from the calling thread.

    Returns:
        The number of bytes copied by this call, more than the files have if one had to be copied twice; and the stamps
        of the source files by name: each file that still has its stamp has been found to be what was packed. A file
        that was changed between two pieces has none.

    Raises:
        SourceChanged: A file is missing, or is not what was packed, even after reading it a second time.
        NoSpace: The file system of `target` is full.
        StagingError: The source cannot be read, or the target cannot be written.
        RemoteError: The object store does not answer as it should.
    """
    counter = ProgressCounter("copy", sum(file.bytes for file in files), on_progress)
    copy = _Copy(origin, target, files, journal, _team(origin, files, threads), counter)
    copy.run()
    return counter.copied, copy.stamps()


def check_files(
    origin: Origin,
    files: Sequence[SourceFile],
    *,
    threads: int | None = None,
    on_progress: OnStageProgress | None = None,
) -> list[SourceFile]:
    """Reads files and compares their checksums; leaves the page cache as it was.

    Args:
        origin: Where the files lie.
        files: Files to check; symbolic links are followed.
        threads: Maximum number of threads that read; None: as many as suit the origin.
        on_progress: Called about ten times a second from the calling thread.

    Returns:
        The files that are missing, unreadable, not regular files, or have the wrong size or content, in the order of
        `files`.
    """
    damaged: set[SourceFile] = set()
    checksums = Checksums()
    counter = ProgressCounter("check", sum(file.bytes for file in files), on_progress)

    def check(piece: Piece, buffer: memoryview) -> None:
        try:
            with origin.open(piece.file, piece.offset, piece.length) as file:
                checksums[piece] = _checksum(piece, buffer, team, file.read)
        except (OSError, StagingError, SourceChanged, RemoteError):
            damaged.add(piece.file)
        counter.add(piece.length)

    team = _team(origin, files, threads)
    team.run([piece for file in files for piece in split(file)], check, counter.report)
    counter.report()
    return [file for file in files if file in damaged or checksums.of_file(file) != file.crc32c]


def warm_files(
    folder: Path, files: Sequence[SourceFile], *, threads: int | None = None, on_progress: OnStageProgress | None = None
) -> int:
    """Reads files into the page cache.

    Args:
        folder: Folder of the files.
        files: Files to read.
        threads: Maximum number of threads that read.
        on_progress: Called about ten times a second from the calling thread.

    Returns:
        Number of bytes read.

    Raises:
        StagingError: A file cannot be read.
    """
    counter = ProgressCounter("warm", sum(file.bytes for file in files), on_progress)

    def warm(piece: Piece, buffer: memoryview) -> None:
        path = folder / piece.file.name
        with _errors(path, "read"), closing_descriptor(open_regular(path)) as opened:
            for view, offset in _views(piece, buffer):
                team.raise_if_stopped()
                counter.add(os.preadv(opened, [view], offset))

    team = ThreadTeam(threads or _THREADS)
    team.run([piece for file in files for piece in split(file)], warm, counter.report)
    counter.report()
    return counter.copied


@dataclass
class _Copy:
    """One call of `copy_files`."""

    origin: Origin
    target: Folder
    files: Sequence[SourceFile]
    journal: Journal
    team: ThreadTeam
    counter: ProgressCounter
    cloned: set[SourceFile] = field(default_factory=set)
    created: list[str] = field(default_factory=list)
    checksums: Checksums = field(default_factory=Checksums)
    seen_stamps: defaultdict[SourceFile, set[str]] = field(default_factory=lambda: defaultdict(set))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.pieces_left = {file: len(split(file)) for file in self.files}
        self.durable = file_system(self.target.path) not in IN_MEMORY

    def run(self) -> None:
        folders = [self.target]
        with _errors(self.target.path, "write to"):
            names = sorted({file.folder for file in self.files} - {""})
            folders += [self.target.own_folder(name) for name in names]
        try:
            self.team.run(self.files, self._create, self.counter.report)
            self._check_room()
            self.team.run([file for file in self.files if file not in self.cloned], self._allocate, self.counter.report)
        except NoSpace:
            # Give back the space at once: the copy will not be made.
            for name in self.created:
                self.target.remove(name)
            raise
        self.team.run(
            (piece for file in self.files for piece in split(file)), self._resume_or_copy, self.counter.report
        )
        if self.durable:
            with _errors(self.target.path, "write to"):
                for folder in folders:
                    folder.sync()
        self.counter.report()

    def stamps(self) -> dict[str, str]:
        """The stamps of the files that were not changed meanwhile."""
        known = {file.name: "".join(stamps) for file, stamps in self.seen_stamps.items() if len(stamps) == 1}
        return {name: stamp for name, stamp in known.items() if stamp}

    def _check_room(self) -> None:
        """Fails at once if there is too little space. Allocating would fail late, or never if it is not supported."""
        need = 0
        for file in self.files:
            if file not in self.cloned and (status := self.target.status(file.name)) is not None:
                need += max(0, file.allocated - status.st_blocks * 512)
        system = os.statvfs(self.target.fileno())
        if need > (free := system.f_bavail * system.f_frsize):
            raise no_space(self.target.path, f"{size(need)} more needed; {size(free)} free")

    def _create(self, file: SourceFile, _: memoryview) -> None:
        """Creates the file with its full size, and with its content if the file systems can share blocks."""
        with self.origin.open(file) as source, self._errors(file, "write"):
            # One that an earlier run finished is read-only.
            if self.target.create(file.name):
                self.created.append(file.name)
            with self._opened(file, os.O_RDWR) as target:
                # From here on, nobody writes any more for a process that was killed.
                fcntl.flock(target, fcntl.LOCK_EX)
                if file.bytes and source.clone_into(target):
                    self.cloned.add(file)
                    self.seen_stamps[file].add(source.stamp)
                os.ftruncate(target, file.bytes)

    def _allocate(self, file: SourceFile, _: memoryview) -> None:
        with self._errors(file, "write"), self._opened(file, os.O_WRONLY) as target:
            for offset in range(0, file.bytes, _SLICE):
                self.team.raise_if_stopped()
                allocate(target, offset, min(_SLICE, file.bytes - offset))

    def _resume_or_copy(self, piece: Piece, buffer: memoryview) -> None:
        known = self.journal[piece]
        if piece.file in self.cloned:
            self.checksums[piece] = self._checksum_of_copy(piece, buffer)
            self.counter.add(piece.length)
        elif known is not None and self._checksum_of_copy(piece, buffer) == known.checksum:
            self.checksums[piece] = known.checksum
            self.seen_stamps[piece.file].add(known.stamp)
            self.counter.add(resumed=piece.length)
        else:
            self._copy_piece(piece, buffer)
        with self.lock:
            self.pieces_left[piece.file] -= 1
            last = not self.pieces_left[piece.file]
        if last:
            self._finish(piece.file, buffer)

    def _checksum_of_copy(self, piece: Piece, buffer: memoryview) -> int:
        with self._errors(piece.file, "read"), self._opened(piece.file, os.O_RDONLY) as descriptor:
            return _checksum(piece, buffer, self.team, lambda view, offset: os.preadv(descriptor, [view], offset))

    def _copy_piece(self, piece: Piece, buffer: memoryview) -> None:
        checksum = 0
        with (
            self.origin.open(piece.file, piece.offset, piece.length) as file,
            self._errors(piece.file, "write"),
            self._opened(piece.file, os.O_WRONLY) as target,
        ):
            for view, offset in _views(piece, buffer):
                self.team.raise_if_stopped()
                count, checksum = file.copy(target, offset, view, checksum)
                if count < len(view):
                    raise self.origin.changed(piece.file, f"it ends after {offset + count} of {piece.file.bytes} bytes")
                self.counter.add(count)
            if self.durable:
                start_writeback(target, piece.offset, piece.length)
            self.journal.add(piece, Known(checksum, file.stamp))
        self.checksums[piece] = checksum
        self.seen_stamps[piece.file].add(file.stamp)

    def _finish(self, file: SourceFile, buffer: memoryview) -> None:
        if self.checksums.of_file(file) != file.crc32c:
            self.origin.forget(file)
            self.counter.add(taken_back=file.bytes)
            for piece in split(file):
                self._copy_piece(piece, buffer)
        if (found := self.checksums.of_file(file)) != file.crc32c:
            raise self.origin.changed(file, f"its crc32c is {found:08x}, but was {file.crc32c:08x} when it was packed")
        with self._errors(file, "write"), self._opened(file, os.O_RDONLY) as descriptor:
            os.fchmod(descriptor, 0o444)
            if self.durable:
                os.fsync(descriptor)

    def _opened(self, file: SourceFile, flags: int) -> AbstractContextManager[int]:
        return closing_descriptor(self.target.open_file(file.name, flags))

    def _errors(self, file: SourceFile, verb: str) -> AbstractContextManager[None]:
        return _errors(self.target.path / file.name, verb)


def _team(origin: Origin, files: Sequence[SourceFile], threads: int | None) -> ThreadTeam:
    if origin.any_remote(files):
        return ThreadTeam(threads or _REMOTE_THREADS, _REQUEST, origin.stop)
    return ThreadTeam(threads or _THREADS)


def _checksum(piece: Piece, buffer: memoryview, team: ThreadTeam, read: Callable[[memoryview, int], int]) -> int:
    checksum = 0
    for view, offset in _views(piece, buffer):
        team.raise_if_stopped()
        checksum = crc32c(view[: read(view, offset)], checksum)
    return checksum


def _errors(path: Path, verb: str) -> AbstractContextManager[None]:
    return file_errors(path, StagingError, verb=verb)


def _views(piece: Piece, buffer: memoryview) -> Iterator[tuple[memoryview, int]]:
    end = piece.offset + piece.length
    for offset in range(piece.offset, end, len(buffer)):
        yield buffer[: end - offset], offset
