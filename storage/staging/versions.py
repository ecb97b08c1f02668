"""A version of a dataset that was changed, to be staged: its documents, and its segments and layers.

Each of these is staged as the dataset that it is, so that two versions share what both have. The version itself becomes
an entry, too, with its documents, and with links to the entries of its segments and layers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from packtrain._core.errors import CorruptFile, DatasetError
from packtrain._core.manifest import MANIFEST, PLAN
from packtrain._core.version_files import BASE, LAYERS, SEGMENTS, version_name
from packtrain._core.versions import ManifestInfo, Version, load_part

from ..location import Location, object_store
from ..remote.objects import Objects
from ..remote.urls import Url
from .copying import delete_temporaries, wait_for_build_lock
from .documents import STREAM, STREAMED, Provenance, in_blocks, write_origin, write_provenance
from .eviction import discard_copy, make_room, under_ledger
from .folder import Folder
from .options import OnStageProgress, StageOptions
from .origin import Origin
from .root import Root
from .source import KEY_DIGITS, SourceDataset, readable
from .version_documents import VersionDocuments

_DATA: Final = "data"


@dataclass(frozen=True)
class VersionPart:
    """A segment or a layer.

    Attributes:
        name: Its place in a staged copy of the version.
        location: Where it lies.
        manifest: Its manifest.
        records: Number of its rows.
    """

    name: str
    location: Location
    manifest: ManifestInfo
    records: int

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
        objects: What object stores are read by; None for a folder.
    """

    location: Location
    version: Version
    documents: Mapping[str, bytes]
    objects: Objects | None = None

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
        documents = VersionDocuments(location, objects)
        found = documents.read(number)
        return cls(location, found.version, {MANIFEST: documents.manifest, found.name: found.data}, objects)

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The documents, and what the version has beside its segments.

        To be read when the segments are there: what has a value for each of their rows is smaller than they are.

        Raises:
            CorruptFile: A file is missing or damaged.
            RemoteError: The object store does not answer as it should.
        """
        documents = VersionDocuments(self.location, self.objects)
        columns = {name: documents.column(name, column) for name, column in self.version.columns.items()}
        return {**self.documents, **columns}

    @property
    def key(self) -> str:
        """Key of the entry of the version: the first digits of the SHA-256 of its document."""
        return key_of_version(self.documents[version_name(self.version.number)])

    def parts(self) -> Iterator[VersionPart]:
        """Its segments and layers."""
        for segment in self.version.segments:
            place, own = f"{SEGMENTS}/{segment.name}", self.location
            if isinstance(own, Path):
                # It may itself be a staged copy, in which all segments lie beside each other.
                own = segment.folder(own)
            elif segment.name != BASE:
                own = own / place
            yield VersionPart(place, own, segment.manifest, segment.records)
            for layer in segment.layers:
                place = f"{LAYERS}/{layer.name}"
                yield VersionPart(place, self.location / place, layer.manifest, segment.records)

    def of_part(self, part: VersionPart, root: Root) -> SourceDataset:
        """A part as a dataset to be staged. A store is not asked for what a copy in the root says of it.

        Args:
            part: The part.
            root: The root. The caller has a lease on the part's key there.

        Raises:
            PacktrainError: What `SourceDataset.load` raises.
        """
        entry = None if self.objects is None else root.find_entry(part.key)
        if entry is not None and entry.has_own_file(PLAN):
            with suppress(DatasetError):
                known = load_part(entry.path / MANIFEST, part.manifest, part.records)
                return SourceDataset.without_plan(Origin(part.location, self.objects), known)
        found = SourceDataset.load(part.location, self.objects, segment=part.key)
        if (found.key, found.manifest.records) != (part.key, part.records):
            raise CorruptFile(f"{part.location} is damaged: it is not what the version names", file=MANIFEST)
        return found

    def entry(
        self,
        root: Root,
        parts: Mapping[str, Path],
        options: StageOptions,
        on_progress: OnStageProgress,
        *,
        streamed: bool = False,
    ) -> Folder:
        """Gives the entry of the version, with links to its parts, which are in the same root.

        Args:
            root: The root.
            parts: The folder of each part.
            options: Limits on space.
            on_progress: Called while another process makes it.
            streamed: True if some of the parts lie in caches. Then the entry is none of the copy of a version, and the
                version lies in its folder `STREAMED`.

        Raises:
            NoRoom: There is no room for the documents.
        """
        key = self.key + STREAM * streamed
        up = (os.pardir,) * (2 + streamed)
        links = {name: Path(*up, path.relative_to(root.path)) for name, path in parts.items()}
        entry = root.find_entry(key)
        if entry is not None and root.find_copy(key) is None and self._is_whole(_version_in(entry, streamed), links):
            return entry
        with wait_for_build_lock(root, key, on_progress):
            entry = root.find_entry(key)
            if entry is None:
                need = sum(in_blocks(len(data)) for data in self.files.values()) + in_blocks(0)
                under_ledger(root, lambda checks, last: make_room(root, key, need, options, checks))
                copy = root.make_copy(key)
                self._write(copy.own_folder(_DATA), links, streamed)
                with root.ledger():
                    name = readable(f"{self.location.name[:25]}-version-{self.version.number}")
                    entry = root.publish(copy, _DATA, name, key)
            else:
                self._write(entry, links, streamed)
            with root.ledger():
                # Also of a process that was killed just before its end.
                discard_copy(root, key)
        return entry

    def _is_whole(self, entry: Folder, links: Mapping[str, Path]) -> bool:
        return all(entry.link_target(name) == path for name, path in links.items()) and all(
            entry.file_status(name, len(data)) for name, data in self.files.items()
        )

    def _write(self, entry: Folder, links: Mapping[str, Path], streamed: bool) -> None:
        folder = _version_in(entry, streamed)
        inside = {name.rpartition("/")[0] for name in (*self.files, *links)} - {""}
        for each in (entry, folder, *map(folder.own_folder, inside)):
            delete_temporaries(each)
        for name, path in links.items():
            if folder.link_target(name) != path:
                folder.link(name, path)
        # Last the one that makes it a dataset.
        for name, data in sorted(self.files.items(), key=lambda each: each[0] == MANIFEST):
            if folder.file_status(name, len(data)) is None:
                folder.write(name, data)
        if isinstance(self.location, Url) and streamed:
            write_origin(entry, self.location)
        else:
            write_provenance(entry, Provenance(self.location))


def _version_in(entry: Folder, streamed: bool) -> Folder:
    return entry.own_folder(STREAMED) if streamed else entry


def key_of_version(document: bytes) -> str:
    """The key of the entry of a version with this document."""
    return hashlib.sha256(document).hexdigest()[:KEY_DIGITS]
