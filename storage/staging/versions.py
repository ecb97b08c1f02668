"""A version of a dataset that was changed, to be staged: its documents, and its segments and layers.

Each of these is staged as the dataset that it is, so that two versions share what both have. The version itself becomes
an entry, too, with its documents, and with links to the entries of its segments and layers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from crc32c import crc32c

from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, Denied, NotADataset, NotThere, UsageError
from packtrain._core.manifest import MANIFEST, VERSIONS
from packtrain._core.problems import reading
from packtrain._core.versions import (
    BASE,
    LAYERS,
    MARK,
    MOST_VERSION_BYTES,
    SEGMENTS,
    ManifestInfo,
    Version,
    is_root,
    parse_root,
    parse_version,
    version_name,
    version_numbers,
)

from ..location import Location, object_store, read
from ..remote.objects import Objects
from ..remote.urls import Url
from .copying import wait_for_build_lock
from .documents import Provenance, in_blocks, write_provenance
from .eviction import discard_copy, make_room, under_ledger
from .folder import Folder
from .options import OnStageProgress, StageOptions
from .root import Root
from .source import KEY_DIGITS, readable

_DATA: Final = "data"


@dataclass(frozen=True)
class VersionPart:
    """A segment or a layer.

    Attributes:
        name: Its place in a staged copy of the version.
        location: Where it lies.
        manifest: Its manifest.
        of_base: True for the segment in the dataset's folder itself.
    """

    name: str
    location: Location
    manifest: ManifestInfo
    of_base: bool = False

    @property
    def key(self) -> str:
        """The key of its content."""
        return self.manifest.sha256[:KEY_DIGITS]


@dataclass(frozen=True)
class SourceVersion:
    """A version to be staged.

    Attributes:
        location: Where the dataset lies.
        version: The version.
        documents: What names its segments and layers, by name in the dataset's folder.
    """

    location: Location
    version: Version
    documents: Mapping[str, bytes]

    @classmethod
    def load(cls, location: Location, number: int | None = None, objects: Objects | None = None) -> Self:
        """Reads the documents of a version.

        Args:
            location: Where the dataset lies.
            number: Number of the version; None: of the newest one.
            objects: What object stores are read by; None: something new of its own.

        Raises:
            UsageError: There is no such version, or it was dropped.
            NotADataset: There is no dataset of versions.
            CorruptFile: A document is damaged.
            RemoteError: The object store does not answer as it should.
        """
        objects = object_store() if objects is None and isinstance(location, Url) else objects
        data = _read(location, MANIFEST, MOST_BYTES, objects)
        if not is_root(data):
            raise NotADataset(f"{location} has never been changed, so it has no versions", file=MANIFEST)
        root = parse_root(data, location / MANIFEST)
        newest = newest_number(location, objects)
        chosen = newest if number is None else number
        name = version_name(chosen)
        if not 1 <= chosen <= newest or _is_there(location / name.replace(".json", MARK), objects):
            what = "was dropped" if 1 <= chosen <= newest else "does not exist"
            raise UsageError(f"{location}: version {chosen} {what}; the newest one is {newest}")
        body = _read(location, name, MOST_VERSION_BYTES, objects)
        version = parse_version(body, location / name, root, chosen)
        documents = {MANIFEST: data, name: body}
        for file, column in version.columns.items():
            documents[file] = _read(location, file, column.bytes, objects)
            if crc32c(documents[file]) != column.crc32c:
                raise CorruptFile(f"{location / file} is damaged: its checksum differs", file=file)
        return cls(location, version, documents)

    @property
    def key(self) -> str:
        """Key of the entry of the version: the first digits of the SHA-256 of its document."""
        return key_of_version(self.documents[version_name(self.version.number)])

    def parts(self) -> Iterator[VersionPart]:
        """Its segments and layers."""
        for segment in self.version.segments:
            own = segment.name == BASE
            place = f"{SEGMENTS}/{segment.name}"
            yield VersionPart(place, self.location if own else self.location / place, segment.manifest, own)
            for layer in segment.layers:
                place = f"{LAYERS}/{layer.name}"
                yield VersionPart(place, self.location / place, layer.manifest)

    def entry(
        self, root: Root, parts: Mapping[str, Path], options: StageOptions, on_progress: OnStageProgress
    ) -> Folder:
        """Gives the entry of the version, with links to its parts, which are in the same root.

        Args:
            root: The root.
            parts: The folder of each part.
            options: Limits on space.
            on_progress: Called while another process makes it.

        Raises:
            NoRoom: There is no room for the documents.
        """
        links = {name: Path("..", "..", path.relative_to(root.path)) for name, path in parts.items()}
        entry = root.find_entry(self.key)
        if entry is not None and self._is_whole(entry, links):
            return entry
        with wait_for_build_lock(root, self.key, on_progress):
            entry = root.find_entry(self.key)
            if entry is None:
                need = sum(in_blocks(len(data)) for data in self.documents.values()) + in_blocks(0)
                under_ledger(root, lambda checks, last: make_room(root, self.key, need, options, checks))
                copy = root.make_copy(self.key)
                self._write(copy.own_folder(_DATA), links)
                with root.ledger():
                    name = readable(f"{self.location.name[:25]}-version-{self.version.number}")
                    entry = root.publish(copy, _DATA, name, self.key)
                    discard_copy(root, self.key)
            else:
                self._write(entry, links)
        return entry

    def _is_whole(self, entry: Folder, links: Mapping[str, Path]) -> bool:
        return all(entry.link_target(name) == path for name, path in links.items()) and all(
            entry.file_status(name, len(data)) for name, data in self.documents.items()
        )

    def _write(self, folder: Folder, links: Mapping[str, Path]) -> None:
        for name in {name.rpartition("/")[0] for name in (*self.documents, *links)} - {""}:
            folder.own_folder(name)
        for name, path in links.items():
            if folder.link_target(name) != path:
                folder.link(name, path)
        # Last the one that makes it a dataset.
        for name, data in sorted(self.documents.items(), key=lambda each: each[0] == MANIFEST):
            if folder.file_status(name, len(data)) is None:
                folder.write(name, data)
        write_provenance(folder, Provenance(self.location))


def key_of_version(document: bytes) -> str:
    """The key of the entry of a version with this document."""
    return hashlib.sha256(document).hexdigest()[:KEY_DIGITS]


def newest_number(location: Location, objects: Objects | None) -> int:
    """The number of the newest version. Versions have all numbers from 1, so a store need not list them.

    Raises:
        CorruptFile: There is none.
        RemoteError: The object store does not answer as it should.
    """
    if isinstance(location, Path):
        last = max(version_numbers(location), default=0)
    else:
        is_there = partial(_is_version, location, objects)
        last = 1 if is_there(1) else 0
        above = 2
        while last and is_there(above):
            last, above = above, 2 * above
        while above - last > 1 and last:
            middle = (last + above) // 2
            last, above = (middle, above) if is_there(middle) else (last, middle)
    if not last:
        raise CorruptFile(f"{location} has no version: {VERSIONS}/ is empty", file=VERSIONS)
    return last


def _is_version(location: Location, objects: Objects | None, number: int) -> bool:
    return _is_there(location / version_name(number), objects)


def _is_there(location: Location, objects: Objects | None) -> bool:
    """True if there is such a file. Who may not list a bucket may not be told that an object is missing, either."""
    if isinstance(location, Path):
        return os.path.lexists(location)
    try:
        (objects or object_store()).head(location)
    except (NotThere, Denied):
        return False
    return True


def _read(location: Location, name: str, most: int, objects: Objects | None) -> bytes:
    path = location / name
    try:
        with reading(path, file=name) if isinstance(path, Path) else nullcontext():
            return read(path, most, objects)
    except NotThere as error:
        if name == MANIFEST:
            raise NotADataset(f"there is no dataset at {location}: {error}", file=MANIFEST) from error
        raise CorruptFile(f"{location}: {name} is missing", file=name) from error
