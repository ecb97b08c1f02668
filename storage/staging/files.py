"""The files of a dataset to be staged, and where datasets lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..remote.urls import Url, place_of

Location = Path | Url
"""Where a dataset or one of its files lies: on this machine, or in an object store."""

BLOCK: Final = 4096
"""Bytes per block. Files take whole blocks of this size on tmpfs and on most disk file systems."""


def in_blocks(size: int) -> int:
    """Bytes that a file of this size takes on a file system."""
    return -(-size // BLOCK) * BLOCK


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
        return in_blocks(self.bytes)


def location_of(dataset: str | os.PathLike[str]) -> Location:
    """Where the dataset lies that a user names: an absolute path without links, or an address.

    Raises:
        UsageError: It is neither a path nor the address of an object store.
    """
    location = place_of("dataset", dataset)
    return location if isinstance(location, Url) else Path(os.path.realpath(location))
