"""The origin of a copy: where a dataset lies that is copied, and how its files are read there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c
from typing_extensions import override

from packtrain._core.errors import CorruptFile, SourceChanged, StagingError
from packtrain._core.files import file_errors, write_at
from packtrain._core.manifest import PLAN, Manifest
from packtrain._core.opening import open_regular, read_regular

from .files import Location, SourceFile
from .kernel import Reader, clone
from .notes import stamp_of

THREADS: Final = 8
"""Default number of threads that read a disk. There are more of them than cores, because they wait for disks."""
MOST_PLAN_BYTES: Final = 1 << 30
"""A plan that is larger is not read."""
_NOT_A_FILE: Final = {
    errno.ENOENT: "it is missing",
    errno.ENOTDIR: "it is missing",
    errno.EISDIR: "it is not a file",
    errno.EINVAL: "it is not a file",
    errno.ELOOP: "it is not a file",
}


class FileStatus(NamedTuple):
    """What is known of a file of an origin without reading it.

    Attributes:
        bytes: Its size; None if it is not a regular file.
        stamp: A text that changes whenever the file does; empty if there is none.
        identity: Device and inode, by which one file is known under two names; None if it is not on this machine.
    """

    bytes: int | None
    stamp: str
    identity: tuple[int, int] | None


class RangeReader(Protocol):
    """Reads a range of a file, front to back."""

    def read(self, view: memoryview, offset: int) -> int:
        """Fills `view` from `offset` in the file on. Returns the number of bytes; fewer only at the file's end."""

    def copy(self, target: int, offset: int, view: memoryview, checksum: int) -> tuple[int, int]:
        """Copies ``len(view)`` bytes from `offset` on to the same place in the file `target`, maybe by way of `view`.

        Args:
            target: Descriptor of the file.
            offset: Offset in both files.
            view: Memory to use; it begins at a page boundary.
            checksum: crc32c of what comes before these bytes.

        Returns:
            The number of bytes that there were, fewer only at the file's end; and the crc32c including them.

        Raises:
            OSError: The target cannot be written.
        """


class OriginFile(Protocol):
    """A file of an origin, open for reading."""

    @property
    def stamp(self) -> str:
        """The stamp that the file had when it was opened, see `FileStatus`."""

    def clone_into(self, descriptor: int) -> bool:
        """Gives the file `descriptor` the same content by sharing blocks. Returns False if that is not possible."""

    def range(self, offset: int, length: int) -> AbstractContextManager[RangeReader]:
        """Opens a range of the file; `offset` is a multiple of the page size."""


class Origin(Protocol):
    """Where a dataset lies that is copied. Threads may share it."""

    @property
    def location(self) -> Location:
        """Where the dataset lies, as it is called in messages and in the notes of copies."""

    @property
    def threads(self) -> int:
        """How many threads should read from it, unless the user says so."""

    @property
    def request(self) -> int | None:
        """Bytes that should be read at a time; None: what suits the processor's cache."""

    def manifest(self) -> Manifest:
        """Reads the manifest.

        Raises:
            NotADataset: There is none.
            UnsupportedVersion: A newer packtrain wrote it.
            CorruptFile: It is damaged.
            RemoteError: The object store does not answer as it should; so it is for all that follows.
        """

    def plan(self) -> bytes:
        """Reads plan.json, whatever it holds.

        Raises:
            CorruptFile: It cannot be read.
        """

    def at(self, file: SourceFile) -> Location:
        """Where a file lies."""

    def link_target(self, file: SourceFile) -> Path | None:
        """What a link to the file has to lead to; None if there can be no link."""

    def statuses(self, files: Sequence[SourceFile]) -> Iterator[FileStatus]:
        """What is known of each of some files without reading them.

        Raises:
            OSError: One is missing, or cannot be looked at.
        """

    def open(self, file: SourceFile) -> AbstractContextManager[OriginFile]:
        """Opens a file for reading and checks its size.

        Raises:
            SourceChanged: The file is missing, is not a regular file, or has another size than when it was packed.
            StagingError: The file cannot be opened. Its ranges raise this, too, if they cannot be read.
        """

    def stop(self) -> None:
        """Ends what threads are waiting for: they raise StagingError or RemoteError. Nothing is read after that."""

    def forget(self, file: SourceFile) -> None:
        """Makes sure that the file is read anew, not from memory: what was read before was wrong."""

    def changed(self, file: SourceFile, what: str) -> SourceChanged:
        """The error for a file that is not what was packed; `what` describes the difference."""


@dataclass(frozen=True)
class LocalOrigin(Origin):
    """A folder of this machine.

    Attributes:
        folder: Its absolute path.
    """

    folder: Path

    @property
    @override
    def location(self) -> Path:
        return self.folder

    @property
    @override
    def threads(self) -> int:
        return THREADS

    @property
    @override
    def request(self) -> None:
        return None

    @override
    def manifest(self) -> Manifest:
        return Manifest.load(self.folder)

    @override
    def plan(self) -> bytes:
        try:
            return read_regular(self.folder / PLAN, MOST_PLAN_BYTES)
        except OSError as error:
            raise CorruptFile(f"{self.folder}: {PLAN} cannot be read ({error.strerror})", file=PLAN) from error

    @override
    def at(self, file: SourceFile) -> Path:
        return file.at(self.folder)

    @override
    def link_target(self, file: SourceFile) -> Path:
        return file.at(self.folder)

    @override
    def statuses(self, files: Sequence[SourceFile]) -> Iterator[FileStatus]:
        for file in files:
            found = os.stat(file.at(self.folder))
            size = found.st_size if stat.S_ISREG(found.st_mode) else None
            yield FileStatus(size, stamp_of(found), (found.st_dev, found.st_ino))

    @override
    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OriginFile]:
        path = file.at(self.folder)
        with file_errors(path, StagingError, verb="read"):
            try:
                descriptor = open_regular(path)
            except OSError as error:
                if (what := _NOT_A_FILE.get(error.errno or 0)) is None:
                    raise
                raise self.changed(file, what) from None
        try:
            found = os.fstat(descriptor)
            if found.st_size != file.bytes:
                raise self.changed(file, f"it has {found.st_size} bytes, but had {file.bytes} when it was packed")
            yield _LocalFile(path, descriptor, stamp_of(found))
        finally:
            os.close(descriptor)

    @override
    def stop(self) -> None:
        # The kernel answers at once, or is not to be stopped.
        return

    @override
    def forget(self, file: SourceFile) -> None:
        # The wrong byte may be in the page cache rather than on the disk.
        with suppress(OSError):
            descriptor = open_regular(file.at(self.folder))
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    @override
    def changed(self, file: SourceFile, what: str) -> SourceChanged:
        return SourceChanged(
            f"{file.at(self.folder)} is not what was packed: {what}. Either it was changed, or its disk returns wrong "
            f"data. Run `packtrain verify {self.folder}` for details, then pack it again or stage another copy",
            file=file.name,
        )


@dataclass(frozen=True)
class _LocalFile:
    """An open file of this machine."""

    path: Path
    descriptor: int
    stamp: str

    def clone_into(self, descriptor: int) -> bool:
        return clone(self.descriptor, descriptor)

    @contextmanager
    def range(self, offset: int, length: int) -> Iterator[RangeReader]:
        reader = Reader(self.descriptor, offset, length)
        try:
            yield _LocalRange(self.path, reader)
        finally:
            reader.close()


@dataclass(frozen=True)
class _LocalRange:
    """A range of an open file of this machine."""

    path: Path
    reader: Reader

    def read(self, view: memoryview, offset: int) -> int:
        with file_errors(self.path, StagingError, verb="read"):
            return self.reader.read(view, offset)

    def copy(self, target: int, offset: int, view: memoryview, checksum: int) -> tuple[int, int]:
        count = self.read(view, offset)
        view = view[:count]
        checksum = crc32c(view, checksum)
        write_at(target, view, offset)
        return count, checksum
