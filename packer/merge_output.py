"""The place that datasets are merged to: a folder, or an address in an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, NotThere
from packtrain._core.files import (
    checksum_file,
    copy_file,
    file_errors,
    is_copy,
    is_temporary,
    make_folder,
    remove_temporaries,
    write_file,
)
from packtrain._core.manifest import FileInfo
from packtrain._core.opening import read_regular
from packtrain._core.overriding import override
from packtrain._storage.location import Location
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from .object_output import require_exclusive, upload_compared
from .output import require_no_linked_folder
from .workplace import writing


class MergeOutput:
    """A folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def first(self) -> str | None:
        """The name of a file that is there; None if there is none.

        Raises:
            OutputConflict: There is a link to a folder, which may lead anywhere.
            PackError: The folder cannot be read.
        """
        with file_errors(self._folder, verb="look into"):
            require_no_linked_folder(self._folder)
            found = (Path(place, name) for place, _, names in os.walk(self._folder) for name in names)
            return min((str(path.relative_to(self._folder)) for path in found if not is_temporary(path)), default=None)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keeps others away, where there are locks; raises what `workplace.writing` raises."""
        with file_errors(self._folder), writing(Path(os.path.realpath(self._folder))):
            yield

    def read(self, name: str) -> bytes | None:
        """The bytes of a document; None if it is not there.

        Raises:
            PackError: It cannot be read.
        """
        path = self._folder / name
        with file_errors(path, verb="read"):
            return read_regular(path, MOST_BYTES) if path.exists() else None

    def write(self, name: str, data: bytes) -> None:
        """Writes a document, unless it is there."""
        path = self._ready(name)
        if not path.exists():
            write_file(path, [data])

    def require_exclusive(self, name: str) -> None:
        """Makes sure that of two writers of a document only one succeeds; this one is there.

        Raises:
            RemoteError: Nothing makes sure of that.
        """

    def has(self, name: str, file: FileInfo) -> bool:
        """True if a file is there of which the manifest says so much."""
        return is_copy(self._folder / name, file.bytes, file.crc32c)

    def copy(self, source: Path, name: str, file: FileInfo) -> None:
        """Copies a file of this machine.

        Raises:
            CorruptFile: It is another file than the manifest names.
        """
        copy_file(source, self._ready(name), file.bytes, file.crc32c)

    def _ready(self, name: str) -> Path:
        """The path of a file, whose folder is there, without what was left there by a run that was killed."""
        path = self._folder / name
        make_folder(path.parent)
        remove_temporaries(path.parent)
        return path


class ObjectMergeOutput(MergeOutput):
    """An address.

    No lock keeps two runs apart. But only one can write version 1, which comes first, and says what is to be there; so
    those that are about the same datasets write the same bytes, and others are refused.

    Args:
        url: The address.
        objects: What reads and writes objects.
    """

    def __init__(self, url: Url, objects: Objects) -> None:
        url.require_writable()
        self._url: Final = url
        self._objects: Final = objects

    @override
    def first(self) -> str | None:
        return next((found.name for found in self._objects.list(self._url)), None)

    @override
    @contextmanager
    def writing(self) -> Iterator[None]:
        yield

    @override
    def read(self, name: str) -> bytes | None:
        try:
            return self._objects.read(self._url / name, MOST_BYTES)
        except NotThere:
            return None

    @override
    def write(self, name: str, data: bytes) -> None:
        self._objects.write(self._url / name, data, new=True)

    @override
    def require_exclusive(self, name: str) -> None:
        url = self._url / name
        require_exclusive(self._objects, url, self._url, f"Remove {url}. Merge into a folder, and upload that")

    @override
    def has(self, name: str, file: FileInfo) -> bool:
        url = self._url / name
        try:
            return self._objects.size(url) == file.bytes and self._objects.checksum(url) == file.crc32c
        except NotThere:
            return False

    @override
    def copy(self, source: Path, name: str, file: FileInfo) -> None:
        if checksum_file(source) != file.crc32c:
            raise CorruptFile(f"{source} is damaged: it is not the file that the manifest names", file=source.name)
        upload_compared(self._objects, self._url / name, source, file.crc32c)


@contextmanager
def merge_output(place: Location) -> Iterator[MergeOutput]:
    """Gives the place that datasets are merged to.

    Raises:
        UsageError: Nothing can be written there.
    """
    if isinstance(place, Path):
        yield MergeOutput(place)
        return
    with closing(ObjectStore()) as objects:
        yield ObjectMergeOutput(place, objects)
