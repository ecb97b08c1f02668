"""The origin of a copy: where a dataset lies that is copied, and how its files are read there."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from crc32c import crc32c

from packtrain._core.crc import combine
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, NotADataset, NotThere, RemoteError, SourceChanged, StagingError
from packtrain._core.files import file_errors, write_at
from packtrain._core.manifest import MANIFEST, PLAN, Manifest
from packtrain._core.opening import closing_descriptor, open_regular
from packtrain._core.version_files import BASE_MANIFEST, base_manifest

from ..location import Location, arrived, each, linked, object_store, read
from ..remote.objects import Head, Objects
from ..remote.urls import Url
from .documents import in_blocks, stamp_of
from .kernel import Reader, clone, drop_from_memory

_MOST_PLAN_BYTES: Final = 1 << 30
"""A plan that is larger is not read."""
_NOT_A_FILE: Final = {
    errno.ENOENT: "it is missing",
    errno.ENOTDIR: "it is missing",
    errno.EISDIR: "it is not a file",
    errno.EINVAL: "it is not a file",
    errno.ELOOP: "it is not a file",
}


@dataclass(frozen=True)
class SourceFile:
    """A file of a dataset to be staged.

    Attributes:
        name: Path relative to the dataset's folder.
        bytes: Size of the file in bytes.
        crc32c: Checksum of the whole file.
        shard: Number of the shard that the file is or belongs to; None for files that every reader needs.
        elsewhere: Where a linked shard lies: an address, or a path, absolute or relative to the dataset's folder. None
            for all other files, and for those of a copy.
    """

    name: str
    bytes: int
    crc32c: int
    shard: int | None = None
    elsewhere: str | None = None

    @property
    def folder(self) -> str:
        """Name of the subfolder that the file is in; empty for files directly in the dataset's folder."""
        return self.name.rpartition("/")[0]

    @property
    def allocated(self) -> int:
        """Bytes the file takes on a file system, in whole blocks."""
        return in_blocks(self.bytes)


class OriginFile(Protocol):
    """A file of an origin, open for reading."""

    @property
    def stamp(self) -> str:
        """The stamp that the file had when it was opened, see `Head`."""

    def clone_into(self, descriptor: int) -> bool:
        """Gives the file `descriptor` the same content by sharing blocks. Returns False if that is not possible."""

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


class Origin:
    """The location that a dataset is copied from, and the files there. Threads may share it.

    The shards of a dataset in a folder may be objects, see `linked`. A manifest names all files, so a store need not be
    able to list them. Each object is looked at once before it is read, which gives its stamp.

    Args:
        location: Where it lies.
        objects: What object stores are read by; None: something new of its own, if the dataset needs one.
    """

    def __init__(self, location: Location, objects: Objects | None = None) -> None:
        self.location: Final = location
        self._objects = object_store() if objects is None and isinstance(location, Url) else objects
        self._heads: dict[SourceFile, Head] = {}

    @property
    def objects(self) -> Objects:
        """The connection to object stores."""
        assert self._objects is not None, "nothing of this dataset lies in a store"
        return self._objects

    def manifest(self, *, of_base: bool = False) -> Manifest:
        """Reads the manifest.

        Args:
            of_base: True for that of the segment that lies in the folder of a dataset of versions itself.

        Raises:
            NotADataset: There is none.
            UnsupportedVersion: A newer packtrain wrote it.
            CorruptFile: It is damaged.
            RemoteError: The object store does not answer as it should; so it is for all that follows.
        """
        folder = self.location
        if isinstance(folder, Url):
            return arrived(folder, lambda: self._fetched_manifest(folder, BASE_MANIFEST if of_base else MANIFEST))
        manifest = base_manifest(folder) if of_base else Manifest.load(folder)
        if manifest.in_store and self._objects is None:
            self._objects = object_store()
        return manifest

    def _fetched_manifest(self, folder: Url, name: str) -> Manifest:
        try:
            data = self.objects.read(folder / name, MOST_BYTES)
        except NotThere as error:
            why = f"there is no dataset at {folder}: {error}"
            with suppress(RemoteError):
                self.objects.head(folder / PLAN)
                why = (
                    f"{folder} has no {MANIFEST}: packing did not finish, or the upload did not. Run the same pack "
                    f"command again; if it is packed in parts (--part), `packtrain status {shlex.quote(str(folder))}` "
                    "says what is left to do. If you upload a dataset yourself, upload the manifest last"
                )
            raise NotADataset(why, file=MANIFEST) from error
        return Manifest.parse(data, folder / name)

    def plan(self, manifest: Manifest) -> bytes:
        """Read the plan that the dataset was packed with; once more if it does not arrive as it was written.

        Raises:
            SourceChanged: It is another plan.
            CorruptFile: It cannot be read.
            RemoteError: The object store does not give it.
        """
        for _ in range(2):
            try:
                data = read(self.location / PLAN, _MOST_PLAN_BYTES, self._objects)
            except NotThere as error:
                raise CorruptFile(f"{self.location}: {PLAN} is missing", file=PLAN) from error
            except OSError as error:
                raise CorruptFile(f"{self.location}: {PLAN} cannot be read ({error.strerror})", file=PLAN) from error
            if hashlib.sha256(data).hexdigest() == manifest.plan_sha256:
                return data
        raise SourceChanged(
            f"{self.location}: {PLAN} is not the plan that the dataset was packed with. Either it was changed, or what "
            f"holds it returns wrong data: `packtrain verify {self.location}` lists all damage",
            file=PLAN,
        )

    def at(self, file: SourceFile) -> Location:
        """Return the location of a file."""
        return linked(self.location, file.name, file.elsewhere)

    def any_remote(self, files: Sequence[SourceFile]) -> bool:
        """True if one of some files is an object."""
        return isinstance(self.location, Url) or any(
            isinstance(self.at(file), Url) for file in files if file.elsewhere is not None
        )

    def heads(self, files: Sequence[SourceFile]) -> Iterator[Head]:
        """Yield the size of each file, -1 for what is no regular file, and its stamp.

        Raises:
            OSError: One is missing, or cannot be looked at.
        """

        def head(location: Location) -> Head:
            if isinstance(location, Url):
                return self.objects.head(location)
            found = os.stat(location)
            return Head(found.st_size if stat.S_ISREG(found.st_mode) else -1, stamp_of(found))

        return each(head, [self.at(file) for file in files])

    @contextmanager
    def open(self, file: SourceFile, offset: int = 0, length: int | None = None) -> Iterator[OriginFile]:
        """Opens a file for reading and checks its size.

        Args:
            file: The file.
            offset: Where the range begins that will be read, front to back; a multiple of the page size.
            length: How long it is; None if nothing will be read.

        Raises:
            SourceChanged: The file is missing, is not a regular file, or has another size than when it was packed.
            StagingError: The file cannot be opened. Reading raises this, too.
        """
        location = self.at(file)
        if isinstance(location, Url):
            head = self._head(file)
            self._require_size(file, head.bytes)
            yield _RemoteFile(self, file, location, head.stamp)
            return
        with file_errors(location, StagingError, verb="read"):
            try:
                opened = open_regular(location)
            except OSError as error:
                if (what := _NOT_A_FILE.get(error.errno or 0)) is None:
                    raise
                raise self.changed(file, what) from None
        with closing_descriptor(opened) as descriptor:
            found = os.fstat(descriptor)
            self._require_size(file, found.st_size)
            reader = None if length is None else Reader(descriptor, offset, length)
            try:
                yield _LocalFile(location, descriptor, stamp_of(found), reader)
            finally:
                if reader is not None:
                    reader.close()

    def stop(self) -> None:
        """Ends what threads are waiting for: they raise RemoteError. No object is read after that."""
        if self._objects is not None:
            self._objects.close()

    def forget(self, file: SourceFile) -> None:
        """Makes sure that the file is read anew, not from memory: what was read before was wrong."""
        self._heads.pop(file, None)
        location = self.at(file)
        if isinstance(location, Path):
            # The wrong byte may be in the page cache rather than on the disk.
            drop_from_memory(location)

    def changed(self, file: SourceFile, what: str) -> SourceChanged:
        """The error for a file that is not what was packed; `what` describes the difference."""
        location = self.at(file)
        why, then = (
            ("was replaced or never uploaded whole, or the store sends wrong data", "upload it again")
            if isinstance(location, Url)
            else ("was changed, or its disk returns wrong data", "pack it again or stage another copy")
        )
        return SourceChanged(
            f"{location} is not what was packed: {what}. Either it {why}. Run `packtrain verify {self.location}` for "
            f"details, then {then}",
            file=file.name,
        )

    @contextmanager
    def watched(self, file: SourceFile) -> Iterator[None]:
        """Raises SourceChanged in place of RemoteError if an object is another one than it was."""
        try:
            yield
        except RemoteError:
            before = self._head(file)
            self._heads.pop(file, None)
            if self._head(file) != before:
                raise self.changed(file, "it was replaced while it was read") from None
            raise

    def _head(self, file: SourceFile) -> Head:
        found = self._heads.get(file)
        if found is None:
            location = self.at(file)
            assert isinstance(location, Url), "files are not asked for their heads"
            try:
                # Another thread may have been faster: the stamp has to be from before the first byte was read.
                found = self._heads.setdefault(file, self.objects.head(location))
            except NotThere:
                raise self.changed(file, "it is missing") from None
        return found

    def _require_size(self, file: SourceFile, found: int) -> None:
        if found != file.bytes:
            raise self.changed(file, f"it has {found} bytes, but had {file.bytes} when it was packed")


@dataclass(frozen=True)
class _LocalFile:
    """An open file of this machine."""

    path: Path
    descriptor: int
    stamp: str
    reader: Reader | None

    def clone_into(self, descriptor: int) -> bool:
        return clone(self.descriptor, descriptor)

    def read(self, view: memoryview, offset: int) -> int:
        assert self.reader is not None, "it was opened without a range"
        with file_errors(self.path, StagingError, verb="read"):
            return self.reader.read(view, offset)

    def copy(self, target: int, offset: int, view: memoryview, checksum: int) -> tuple[int, int]:
        view = view[: self.read(view, offset)]
        checksum = crc32c(view, checksum)
        write_at(target, view, offset)
        return len(view), checksum


@dataclass(frozen=True)
class _RemoteFile:
    """An object."""

    origin: Origin
    file: SourceFile
    url: Url
    stamp: str

    def clone_into(self, descriptor: int) -> bool:
        return False

    def read(self, view: memoryview, offset: int) -> int:
        part = view[: max(0, self.file.bytes - offset)]
        with self.origin.watched(self.file):
            self.origin.objects.read_into(self.url, offset, part)
        return len(part)

    def copy(self, target: int, offset: int, view: memoryview, checksum: int) -> tuple[int, int]:
        count = max(0, min(len(view), self.file.bytes - offset))
        # Another process writes it, which may outlive this one by a moment: whoever continues waits for it.
        fcntl.flock(target, fcntl.LOCK_SH)
        with self.origin.watched(self.file):
            found = self.origin.objects.copy_into(self.url, offset, count, target)
        return count, combine(checksum, found, count)
