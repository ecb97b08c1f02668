"""A dataset to copy: the files that its manifest names, and the key that identifies their content."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from crc32c import crc32c

from packtrain._core.errors import CorruptFile, SourceChanged
from packtrain._core.manifest import INDEX, PLAN, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.paths import local_path

BLOCK: Final = 4096
"""Bytes per block. Files take whole blocks of this size on tmpfs and on most disk file systems."""
KEY_DIGITS: Final = 16
_MOST_BYTES: Final = 1 << 30
"""A plan that is larger is not read."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a dataset to be staged.

    Attributes:
        name: Path relative to the dataset's folder.
        bytes: Size of the file in bytes.
        crc32c: Checksum of the whole file.
        shard: Number of the shard that the file is or belongs to; None for files that every reader needs.
        elsewhere: Where a linked shard lies, absolute or relative to the dataset's folder; None for all other files,
            and for those of a copy.
    """

    name: str
    bytes: int
    crc32c: int
    shard: int | None = None
    elsewhere: Path | None = None

    def at(self, dataset: Path) -> Path:
        """Where the file of the dataset in this folder lies."""
        path = dataset / self.name
        return path if self.elsewhere is None or os.path.lexists(path) else dataset / self.elsewhere

    @property
    def folder(self) -> str:
        """Name of the subfolder that the file is in; empty for files directly in the dataset's folder."""
        return self.name.rpartition("/")[0]

    @property
    def allocated(self) -> int:
        """Bytes the file takes on a file system, in whole blocks."""
        return -(-self.bytes // BLOCK) * BLOCK


@dataclass(frozen=True)
class Source:
    """A dataset to be staged.

    Attributes:
        path: Absolute path of the dataset's folder.
        manifest: The dataset's manifest.
        key: Key of the content: the first 16 hexadecimal digits of the manifest's SHA-256. It identifies the whole
            content, because the manifest holds the checksums of all other files.
        files: All files except the manifest: first those that every reader needs, then shard by shard.
    """

    path: Path
    manifest: Manifest
    key: str
    files: tuple[SourceFile, ...]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Reads the manifest of the dataset in `folder`.

        Raises:
            NotADataset: There is no manifest.
            UnsupportedVersion: A newer packtrain wrote the manifest.
            CorruptFile: The manifest is damaged, or plan.json cannot be read.
            SourceChanged: plan.json is not the plan that the dataset was packed with.
        """
        path = Path(os.path.realpath(local_path(folder)))
        manifest = Manifest.load(path)
        return cls(path, manifest, key_of(manifest), (_plan(path, manifest), *_files(manifest)))

    @property
    def readable_name(self) -> str:
        """Name of the dataset's folder, for people; the names of its copies begin with it."""
        return re.sub(r"[^A-Za-z0-9_-]+", "-", self.path.name).strip("-")[:40] or "dataset"


def key_of(manifest: Manifest) -> str:
    """The key that identifies a dataset's content, as described for `Source.key`."""
    return hashlib.sha256(manifest.dump()).hexdigest()[:KEY_DIGITS]


def overhead_bytes(manifest: Manifest) -> int:
    """Bytes that an entry takes in addition to `Source.files`: manifest, note, journal of the copy, and folders."""
    files = 1 + sum(1 for _ in manifest.files()) + len(manifest.columns)
    notes = 64 * (manifest.bytes // (1 << 20)) + 320 * files
    return -(-(len(manifest.dump()) + notes) // BLOCK) * BLOCK + 8 * BLOCK


def _plan(path: Path, manifest: Manifest) -> SourceFile:
    try:
        data = read_regular(path / PLAN, _MOST_BYTES)
    except OSError as error:
        raise CorruptFile(f"{path}: {PLAN} cannot be read ({error.strerror})", file=PLAN) from error
    if hashlib.sha256(data).hexdigest() != manifest.plan_sha256:
        raise SourceChanged(f"{path}: {PLAN} is not the plan that the dataset was packed with", file=PLAN)
    return SourceFile(PLAN, len(data), crc32c(data))


def _files(manifest: Manifest) -> Iterator[SourceFile]:
    rejects = manifest.rejects_file
    yield SourceFile(rejects.name, rejects.bytes, rejects.crc32c)
    for column in manifest.columns:
        yield SourceFile(f"{INDEX}/{column.name}.npy", column.bytes, column.crc32c)
    for number, shard in enumerate(manifest.shards):
        elsewhere = None if shard.link is None or manifest.base is None else Path(manifest.base, shard.link.path)
        yield SourceFile(shard.name, shard.bytes, shard.crc32c, number, elsewhere)
        for info in shard.sidecars:
            yield SourceFile(info.name, info.bytes, info.crc32c, number)
