"""The documents of a dataset of versions, in a folder or at an address. A store need not be able to list them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, Denied, NotADataset, NotThere, RemoteError, UsageError
from packtrain._core.manifest import MANIFEST, VERSIONS, FileInfo
from packtrain._core.problems import reading
from packtrain._core.version_files import (
    MOST_VERSION_BYTES,
    has_versions,
    is_root,
    mark_name,
    version_name,
    version_numbers,
)
from packtrain._core.versions import RootDocument, Version, parse_root, parse_version

from ..location import Location, arrived, object_store, read
from ..remote.objects import Objects
from ..remote.urls import Url

_MOST_VERSIONS: Final = 1 << 20
"""More are not looked for at an address."""


class VersionDocument(NamedTuple):
    """The document of a version.

    Attributes:
        version: What it says.
        data: Its bytes.
        dropped: True if nobody may open the version any more.
    """

    version: Version
    data: bytes
    dropped: bool

    @property
    def name(self) -> str:
        """Its name, as seen from the dataset's folder."""
        return version_name(self.version.number)


class VersionDocuments:
    """The documents of a dataset of versions.

    Args:
        location: Where the dataset lies.
        objects: What object stores are read by; None: something new of its own.
    """

    def __init__(self, location: Location, objects: Objects | None = None) -> None:
        self.location: Final = location
        self._objects: Final = object_store() if objects is None and isinstance(location, Url) else objects

    @cached_property
    def manifest(self) -> bytes:
        """The bytes of manifest.json, be they damaged.

        Raises:
            NotADataset: There is none, or it is that of a dataset that was never changed.
            UnreadableFile: It cannot be read.
            RemoteError: The object store does not answer as it should; so it is for all that follows.
        """
        data = self._read(MANIFEST, MOST_BYTES)
        if not is_root(data):
            raise NotADataset(f"{self.location} has never been changed, so it has no versions", file=MANIFEST)
        return data

    @cached_property
    def root(self) -> RootDocument:
        """Its content; raises what `manifest` raises, and CorruptFile if it is damaged."""

        def parsed() -> RootDocument:
            # Read again, if it was damaged on its way.
            self.__dict__.pop("manifest", None)
            return parse_root(self.manifest, self.location / MANIFEST)

        return arrived(self.location, parsed)

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The numbers of all versions, ascending, those that were dropped included.

        At an address versions have all numbers from 1, so that a few questions find the last one.

        Raises:
            CorruptFile: There is none.
            RemoteError: The server seems to have all that there could be.
        """
        found = version_numbers(self.location) if isinstance(self.location, Path) else range(1, self._last() + 1)
        if not found:
            raise CorruptFile(f"{self.location} has no version: {VERSIONS}/ is empty", file=VERSIONS)
        return found

    def _last(self) -> int:
        """The highest number; 0 if there is none."""
        last, above = 0, 1
        while self._is_there(version_name(above)):
            last, above = above, 2 * above
            if last > _MOST_VERSIONS:
                raise RemoteError(
                    f"{self.location} has more than {_MOST_VERSIONS:,} versions, or a page at every address: have the "
                    "server answer with status 404 for what is not there"
                )
        while above - last > 1:
            middle = (last + above) // 2
            last, above = (middle, above) if self._is_there(version_name(middle)) else (last, middle)
        return last

    def read(self, number: int | None = None) -> VersionDocument:
        """Reads the document of a version that may be opened.

        Args:
            number: Its number; None: that of the newest one.

        Raises:
            UsageError: There is no such version, or it was dropped.
            CorruptFile: It is damaged, or is not a version of this dataset.
        """
        newest = self.numbers[-1]
        chosen = newest if number is None else number
        if chosen not in self.numbers or self.is_dropped(chosen):
            del self.numbers
            if number is None and self.numbers[-1] > newest:
                # Somebody has just made a newer one, and dropped this one.
                return self.read()
            what = "was dropped" if chosen in self.numbers else "does not exist"
            raise UsageError(f"{self.location}: version {chosen} {what}; the newest one is {newest}")
        return self._document(chosen, dropped=False)

    def history(self, below: int | None = None) -> Iterator[VersionDocument]:
        """The documents of all versions, newest first, those that were dropped included.

        Args:
            below: Only versions with smaller numbers; None: all.

        Raises:
            CorruptFile: One is damaged.
        """
        for number in reversed(self.numbers):
            if below is None or number < below:
                yield self._document(number, dropped=self.is_dropped(number))

    def is_dropped(self, number: int) -> bool:
        """True if nobody may open this version any more."""
        return self._is_there(mark_name(number))

    def column(self, name: str, column: FileInfo) -> bytes:
        """Reads one of the files that a version has beside its segments, see `Version.columns`.

        Raises:
            CorruptFile: It is missing or damaged.
        """

        def compared() -> bytes:
            data = self._read(name, column.bytes)
            if crc32c(data) != column.crc32c:
                raise CorruptFile(f"{self.location / name} is damaged: its checksum differs", file=name)
            return data

        return arrived(self.location, compared)

    def _document(self, number: int, *, dropped: bool) -> VersionDocument:
        name = version_name(number)

        def parsed() -> VersionDocument:
            data = self._read(name, MOST_VERSION_BYTES)
            return VersionDocument(parse_version(data, self.location / name, self.root, number), data, dropped)

        return arrived(self.location, parsed)

    def _is_there(self, name: str) -> bool:
        place = self.location / name
        if isinstance(place, Path):
            return os.path.lexists(place)
        assert self._objects is not None, "it is at an address"
        try:
            self._objects.head(place)
        except (NotThere, Denied):
            # Who may not list a bucket may not be told that an object is missing, either.
            return False
        return True

    def _read(self, name: str, most: int) -> bytes:
        path = self.location / name
        try:
            with reading(path, file=name) if isinstance(path, Path) else nullcontext():
                return read(path, most, self._objects)
        except NotThere as error:
            if name == MANIFEST:
                raise NotADataset(f"there is no dataset at {self.location}: {error}", file=MANIFEST) from error
            raise CorruptFile(f"{self.location}: {name} is missing", file=name) from error


def is_changed(location: Location, objects: Objects | None = None) -> bool:
    """True if a dataset of versions lies at `location`, be it damaged.

    Args:
        location: Where a dataset lies.
        objects: What object stores are read by; None: something new of its own.

    Raises:
        RemoteError: The object store does not answer as it should.
    """
    if isinstance(location, Path):
        return has_versions(location)
    try:
        return is_root(read(location / MANIFEST, MOST_BYTES, objects))
    except NotThere:
        return False
