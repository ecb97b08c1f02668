"""The small documents of entries, and what files take: where a copy or a cache comes from, what is reserved for it.

Of the bounded caches of remote datasets that lie among the copies, staging knows no more: what is in them is the
business of `packtrain._storage.streams`. They take space, have a lease and a budget, and can be evicted as a whole at
any time that nobody uses them, because what they hold comes from an object store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from packtrain._core.document import dump_document, read_document
from packtrain._core.errors import CorruptFile, UnsupportedVersion, UsageError
from packtrain._core.paths import is_url
from packtrain._core.typed import is_count

from ..location import Location
from ..remote.urls import Url
from .folder import Folder

PROVENANCE: Final = "staged.json"
RESERVATION: Final = "reservation.json"
ORIGIN: Final = "origin.json"
"""The file of a cache in place of a provenance: where its dataset comes from, without credentials."""
STREAM: Final = ".stream"
"""The ending of the keys of caches."""
STREAMED: Final = "dataset"
"""The folder in a cache that holds the dataset without its shards."""
BLOCK: Final = 4096
"""Bytes per block. Files take whole blocks of this size on tmpfs and on most disk file systems."""
_VERSION: Final = 1
_MOST_BYTES: Final = 64 << 20
"""Documents that are larger are not read: the provenance of some 500,000 files."""


@dataclass(frozen=True)
class Provenance:
    """Source of an entry.

    Attributes:
        source: Where the dataset lies.
        stamps: Stamps of its files, by name, from before each was read and found to be what was packed (`stamp_of`).
    """

    source: Location
    stamps: Mapping[str, str] = field(default_factory=dict)


def stamp_of(status: os.stat_result) -> str:
    """A text that changes whenever the file does, even if somebody sets its times back: that sets its ctime."""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def write_provenance(folder: Folder, provenance: Provenance) -> None:
    """Write the provenance of an entry."""
    body = {"source": str(provenance.source), "stamps": dict(provenance.stamps), "created": int(time.time())}
    _write(folder, PROVENANCE, body)


def read_provenance(folder: Folder) -> Provenance | None:
    """Read the provenance of an entry; None if there is no sound one."""
    body = _read(folder, PROVENANCE)
    source, stamps = _location(body.get("source")), body.get("stamps")
    if source is None:
        return None
    if not isinstance(stamps, dict) or not all(isinstance(stamp, str) for stamp in stamps.values()):
        stamps = {}
    return Provenance(source, stamps)


def write_reservation(folder: Folder, source: Location, count: int) -> None:
    """Reserves `count` bytes on the file system for the copy in `folder`."""
    _write(folder, RESERVATION, {"source": str(source), "bytes": count})


def read_reservation(folder: Folder) -> int:
    """Bytes reserved for the copy in `folder`; 0 if there is no sound reservation."""
    count = _read(folder, RESERVATION).get("bytes")
    return count if is_count(count) else 0


def write_origin(entry: Folder, url: Url) -> None:
    """Write into a cache where its dataset comes from, unless it says so already."""
    if read_origin(entry) != url:
        _write(entry, ORIGIN, {"url": str(url)})


def read_origin(entry: Folder) -> Url | None:
    """Read the address of a cache's dataset; None if there is no sound one."""
    url = _location(_read(entry, ORIGIN).get("url"))
    return url if isinstance(url, Url) else None


def in_blocks(size: int) -> int:
    """Bytes that a file of this size takes on a file system."""
    return -(-size // BLOCK) * BLOCK


def allocated_bytes(folder: Folder) -> int:
    """Bytes that all files and folders in `folder` take on the file system; files that vanish meanwhile count as 0."""
    total = 0
    for _, _, names, descriptor in os.fwalk(".", dir_fd=folder.fileno(), onerror=None):
        for name in (".", *names):
            try:
                total += os.lstat(name, dir_fd=descriptor).st_blocks * 512
            except OSError:
                continue
    return total


def _write(folder: Folder, name: str, body: dict[str, Any]) -> None:
    folder.write(name, dump_document({"version": _VERSION, **body}))


def _read(folder: Folder, name: str) -> dict[str, Any]:
    path = folder.path / name
    try:
        return read_document(folder.read(name, _MOST_BYTES), path, newest=_VERSION)
    except (OSError, CorruptFile, UnsupportedVersion):
        return {}


def _location(text: object) -> Location | None:
    """The absolute path or the address that `text` is; None if it is neither."""
    if not isinstance(text, str):
        return None
    try:
        if is_url(text):
            return Url.parse(text)
        return Path(text) if os.fsencode(text).startswith(b"/") and "\0" not in text else None
    except (UnicodeEncodeError, UsageError):
        return None
