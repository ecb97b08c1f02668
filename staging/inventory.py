"""The entries and unfinished copies in a root, and what is known about each."""

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
from .notes import allocated_bytes, read_note, read_reservation
from .root import Root
from .source import key_of

State = Literal["complete", "partial", "copying", "interrupted"]


@dataclass(frozen=True)
class Entry:
    """A staged copy, finished or not.

    Attributes:
        id: Name of the copy's folder; the key if the copy is unfinished.
        key: Key of the content: the first 16 hexadecimal digits of the manifest's SHA-256.
        path: Folder of the copy.
        source: Folder of the dataset that was copied; None if unknown.
        bytes: Bytes that the copy takes on the file system.
        reserved: Bytes that a copy in progress will take in addition.
        shards: Number of shards in the dataset; 0 for an unfinished copy.
        local_shards: Number of shards that were copied; 0 for an unfinished copy.
        state: ``"complete"``; ``"partial"``, where some shards are links to the source; ``"copying"``; or
            ``"interrupted"``, an unfinished copy that no process is working on.
        last_used: Time when it was last opened, in seconds since 1970.
        promised_until: End of the copy's grace period, in seconds since 1970; 0 if it never had one.
        pinned: True if the copy is never evicted.
        leased: True if a running process reads the copy.
        pids: Ids of the processes that hold a lease or are copying; processes forked from them are not listed.
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
        """True if the copy can be read: its state is ``"complete"`` or ``"partial"``."""
        return self.state in ("complete", "partial")

    @property
    def promised(self) -> bool:
        """True while the grace period lasts: the path was printed, and a program may be about to open it."""
        return self.promised_until > time.time()


def entries(to: str | os.PathLike[str]) -> list[Entry]:
    """Lists this user's staged copies in `to`, finished or not.

    Args:
        to: Folder they were staged to.

    Raises:
        StagingError: The folder for staged copies inside `to` cannot be trusted, for example because it belongs to
            somebody else.
    """
    root = Root.below(to)
    if not root.exists():
        return []
    with root.ledger():
        return scan(root)


def scan(root: Root) -> list[Entry]:
    """Lists all entries and unfinished copies in a root. The caller holds the ledger."""
    return [read_entry(root, key, path) for key, path in root.entries()] + [
        _read_copy(root, key, path) for key, path in root.copies()
    ]


def read_entry(root: Root, key: str, path: Path) -> Entry:
    """Reads the state of a finished entry."""
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
        bytes=allocated_bytes(path),
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
    present = allocated_bytes(path)
    return Entry(
        id=key,
        key=key,
        path=path,
        source=None,
        bytes=present,
        reserved=max(0, read_reservation(path) - present) if copying else 0,
        shards=0,
        local_shards=0,
        state="copying" if copying else "interrupted",
        last_used=_mtime(path),
        promised_until=0,
        pinned=False,
        leased=False,
        pids=holders(build),
    )


def find_entry(known: Sequence[Entry], id: str) -> Entry:
    """Finds an entry by its id, a part of its id that no other entry has, or its path.

    Raises:
        StagingError: No entry matches, or several do.
    """
    path = Path(id).resolve()
    found = [entry for entry in known if id == entry.id or path == entry.path] or [
        entry for entry in known if id in entry.id
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise StagingError(
            f"{id!r} matches several copies: {', '.join(entry.id for entry in found)}. Give more of the id"
        )
    names = ", ".join(entry.id for entry in known) or "none"
    raise StagingError(f"there is no staged copy {id!r}; existing copies: {names}")


def pin(to: str | os.PathLike[str], id: str, pinned: bool = True) -> Entry:
    """Pins a staged copy, so that it is never evicted, or unpins it.

    Args:
        to: Folder it was staged to.
        id: Id of the copy, a part of the id that no other copy has, or its path.
        pinned: True to pin the copy, False to unpin it.

    Returns:
        The copy, with its new state.

    Raises:
        StagingError: No copy matches `id`, or several do.
    """
    root = Root.below(to)
    if not root.exists():
        raise StagingError(f"nothing is staged in {to}")
    with root.ledger():
        entry = find_entry([entry for entry in scan(root) if entry.finished], id)
        marker = root.lock(entry.key, "pin")
        if pinned:
            marker.touch(0o600)
        else:
            marker.unlink(missing_ok=True)
        return read_entry(root, entry.key, entry.path)


def can_be_copied_again(entry: Entry) -> bool:
    """True if the entry's source still holds the same dataset."""
    return entry.source is not None and holds_dataset(entry.source, entry.key)


def holds_dataset(folder: Path, key: str) -> bool:
    """True if `folder` holds the dataset with the given key."""
    try:
        return key_of(Manifest.load(folder)) == key
    except (DatasetError, OSError):
        return False


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0
