"""What lies in a root, and what is known of it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packtrain._core.errors import DatasetError, StagingError
from packtrain._core.manifest import Manifest

from .locks import holders, is_held
from .notes import allocated, read_note, read_reservation
from .root import Root
from .source import key_of

State = Literal["complete", "partial", "copying", "interrupted"]


@dataclass(frozen=True)
class Entry:
    """A staged copy, or one that is being made.

    Attributes:
        id: Name of its folder; of a copy that is not finished, its key.
        key: Identity of its content.
        path: Its folder.
        source: What it was copied from; None if nothing says so.
        bytes: What it takes on the file system.
        reserved: What its copier will take beyond that.
        shards: Number of the dataset's shards; 0 of a copy that is not finished.
        local_shards: Of these, those that were copied.
        state: ``"partial"``: some shards are links to the source. ``"interrupted"``: a copy that nobody goes on with.
        last_used: When it was last opened, in seconds since 1970.
        promised_until: Until when its path is safe from eviction, in seconds since 1970; 0 without such a promise.
        pinned: Whether it is never evicted.
        leased: Whether a living process reads it.
        pids: Processes that took a lease, or that copy; those forked from them are not named.
    """

    id: str
    key: str
    path: Path
    source: Path | None
    bytes: int
    reserved: int
    shards: int
    local_shards: int
    state: State
    last_used: float
    promised_until: float
    pinned: bool
    leased: bool
    pids: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """Whether it can be read."""
        return self.state in ("complete", "partial")

    @property
    def promised(self) -> bool:
        """Whether its path was given away not long ago."""
        return self.promised_until > time.time()


def entries(to: str | os.PathLike[str]) -> list[Entry]:
    """All that lies in the root below `to`, finished or not.

    Raises:
        StagingError: The root is not to be trusted.
    """
    root = Root.below(to)
    if not root.exists():
        return []
    with root.ledger():
        return scan(root)


def scan(root: Root) -> list[Entry]:
    """All that lies in a root, finished or not. For those who hold the ledger."""
    return [read_entry(root, key, path) for key, path in root.entries()] + [
        _read_copy(root, key, path) for key, path in root.copies()
    ]


def read_entry(root: Root, key: str, path: Path) -> Entry:
    """What is known of a finished entry."""
    try:
        manifest = Manifest.load(path)
        shards, links = len(manifest.shards), sum((path / shard.name).is_symlink() for shard in manifest.shards)
    except DatasetError:
        shards = links = 0
    lease = root.lock(key, "lease")
    return Entry(
        id=path.name,
        key=key,
        path=path,
        source=read_note(path),
        bytes=allocated(path),
        reserved=0,
        shards=shards,
        local_shards=shards - links,
        state="partial" if links else "complete",
        last_used=_mtime(lease),
        promised_until=_mtime(root.lock(key, "promise")),
        pinned=root.lock(key, "pin").exists(),
        leased=is_held(lease),
        pids=holders(lease),
    )


def _read_copy(root: Root, key: str, path: Path) -> Entry:
    build = root.lock(key, "build")
    copying = is_held(build, shared=True)
    taken = allocated(path)
    return Entry(
        id=key,
        key=key,
        path=path,
        source=None,
        bytes=taken,
        reserved=max(0, read_reservation(path) - taken) if copying else 0,
        shards=0,
        local_shards=0,
        state="copying" if copying else "interrupted",
        last_used=_mtime(path),
        promised_until=0,
        pinned=False,
        leased=False,
        pids=holders(build),
    )


def choose(known: Sequence[Entry], id: str) -> Entry:
    """The entry that is meant by its id, a part of it, or its path.

    Raises:
        StagingError: There is none, or more than one.
    """
    path = Path(id).resolve()
    found = [entry for entry in known if id == entry.id or path == entry.path] or [
        entry for entry in known if id in entry.id
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise StagingError(f"{id!r} may be any of {', '.join(entry.id for entry in found)}: say which")
    names = ", ".join(entry.id for entry in known) or "nothing"
    raise StagingError(f"there is no entry {id!r}; what is there: {names}")


def pin(to: str | os.PathLike[str], id: str, pinned: bool = True) -> Entry:
    """Keeps an entry from being evicted, or no longer.

    Args:
        to: Where it was staged.
        id: Its id, or a part of it that no other has, or its path.
        pinned: Whether it is to be kept.

    Raises:
        StagingError: There is no such entry, or more than one.
    """
    root = Root.below(to)
    if not root.exists():
        raise StagingError(f"nothing is staged in {to}")
    with root.ledger():
        entry = choose([entry for entry in scan(root) if entry.finished], id)
        marker = root.lock(entry.key, "pin")
        if pinned:
            marker.touch(0o600)
        else:
            marker.unlink(missing_ok=True)
        return read_entry(root, entry.key, entry.path)


def can_be_made_again(entry: Entry) -> bool:
    """Whether the source still has what the entry is a copy of."""
    return entry.source is not None and holds(entry.source, entry.key)


def holds(folder: Path, key: str) -> bool:
    """Whether a folder holds the dataset with this key."""
    try:
        return key_of(Manifest.load(folder)) == key
    except (DatasetError, OSError):
        return False


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0
