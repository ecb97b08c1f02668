"""A dataset to copy: the files that its manifest names, and the key that identifies their content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

from crc32c import crc32c

from packtrain._core.errors import UnsupportedVersion
from packtrain._core.manifest import PLAN, Manifest
from packtrain._core.version_files import LAYERS, SEGMENTS

from ..location import Location, elsewhere
from ..remote.objects import Objects
from .documents import BLOCK
from .origin import Origin, SourceFile

KEY_DIGITS: Final = 16


@dataclass(frozen=True)
class SourceDataset:
    """A dataset to be staged.

    Attributes:
        origin: Where the dataset lies.
        manifest: The dataset's manifest.
        key: Key of the content: the first 16 hexadecimal digits of the manifest's SHA-256. It identifies the whole
            content, because the manifest holds the checksums of all other files.
        files: All files except the manifest: first those that every reader needs, then shard by shard.
    """

    origin: Origin
    manifest: Manifest
    key: str
    files: tuple[SourceFile, ...]

    @classmethod
    def load(cls, location: Location, objects: Objects | None = None, *, segment: str | None = None) -> Self:
        """Reads the manifest of the dataset at `location`.

        Args:
            location: Where it lies.
            objects: What object stores are read by; None: something new of its own.
            segment: A key. If a dataset of versions lies there, and the segment in its folder itself has this key, that
                is meant.

        Raises:
            NotADataset: There is no manifest.
            UnsupportedVersion: A newer packtrain wrote the manifest.
            CorruptFile: The manifest is damaged, or plan.json cannot be read.
            SourceChanged: plan.json is not the plan that the dataset was packed with.
            RemoteError: The object store does not answer as it should.
        """
        origin = Origin(location, objects)
        try:
            manifest = origin.manifest()
        except UnsupportedVersion:
            if segment is None or key_of(manifest := origin.manifest(of_base=True)) != segment:
                raise
        data = origin.plan(manifest)
        plan = SourceFile(PLAN, len(data), crc32c(data))
        return cls(origin, manifest, key_of(manifest), (plan, *_files(manifest)))

    @classmethod
    def without_plan(cls, origin: Origin, manifest: Manifest) -> Self:
        """The same without plan.json, of which nobody knows the size before it is read: enough to find a copy."""
        return cls(origin, manifest, key_of(manifest), tuple(_files(manifest)))

    @cached_property
    def shared(self) -> list[SourceFile]:
        """The files that every reader needs."""
        return [file for file in self.files if file.shard is None]

    @property
    def shared_bytes(self) -> int:
        """Bytes that these take on a file system."""
        return sum(file.allocated for file in self.shared)

    @property
    def location(self) -> Location:
        """The location of the dataset, for messages and documents."""
        return self.origin.location

    @property
    def readable_name(self) -> str:
        """Name of the dataset's folder in characters that any file name may have; those of its copies begin with it."""
        name = self.location.name
        if (kind := self.location.parent.name) in (SEGMENTS, LAYERS):
            name = f"{self.location.parent.parent.name[:20]}-{kind.removesuffix('s')}"
        return readable(name)


def readable(name: str) -> str:
    """A name in characters that any file name may have."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "dataset"


def key_of(manifest: Manifest) -> str:
    """The key that identifies a dataset's content, as described for `SourceDataset.key`."""
    return hashlib.sha256(manifest.dump()).hexdigest()[:KEY_DIGITS]


def overhead_bytes(manifest: Manifest) -> int:
    """Bytes that an entry takes besides the files of its source: manifest, provenance, journal, and folders."""
    files = 1 + sum(1 for _ in manifest.files()) + len(manifest.columns)
    notes = 64 * (manifest.bytes // (1 << 20)) + 320 * files
    return -(-(len(manifest.dump()) + notes) // BLOCK) * BLOCK + 8 * BLOCK


def _files(manifest: Manifest) -> Iterator[SourceFile]:
    rejects = manifest.rejects_file
    yield SourceFile(rejects.name, rejects.bytes, rejects.crc32c)
    for column in manifest.columns:
        yield SourceFile(column.file, column.bytes, column.crc32c)
    for number, shard in enumerate(manifest.shards):
        yield SourceFile(shard.name, shard.bytes, shard.crc32c, number, elsewhere(manifest, number))
        for info in shard.sidecars:
            yield SourceFile(info.name, info.bytes, info.crc32c, number)
