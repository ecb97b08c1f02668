"""The entries and unfinished copies in a root, and what is known about each."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from packtrain._core.arguments import checks_names
from packtrain._core.errors import DatasetError, StagingError, UsageError
from packtrain._core.files import file_errors
from packtrain._core.manifest import Manifest
from packtrain._core.suggestions import did_you_mean
from packtrain._core.version_files import LAYERS, SEGMENTS, base_manifest, has_versions

from ..location import Location, location_of
from ..remote.urls import Url
from .documents import STREAM, STREAMED, allocated_bytes, read_origin, read_provenance, read_reservation
from .locks import holders, is_held, lock_path, lock_time
from .root import Root, entry_key
from .source import key_of

MIN_PREFIX: Final = 4
"""Characters of an id that must be given at least."""

State = Literal["complete", "partial", "version", "stream", "copying", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A staged copy, finished or not.

    Attributes:
        id: Name of the copy's folder; the key if the copy is unfinished.
        key: Key of the content: the first 16 hexadecimal digits of the manifest's SHA-256.
        path: Folder of the copy.
        source: Folder of the dataset that was copied, or address of the one that is streamed; None if unknown.
        bytes: Bytes that the copy takes on the file system.
        reserved: Bytes that a copy in progress, or a cache in use, may take in addition.
        shards: Number of shards in the dataset; 0 for an unfinished copy.
        local_shards: Number of shards that were copied; 0 for an unfinished copy.
        state: ``"complete"``; ``"partial"``, where some shards are links to the source; ``"version"``, what names the
            copies that a version of a dataset consists of; ``"stream"``, a bounded cache of a remote dataset;
            ``"copying"``; or ``"interrupted"``, an unfinished copy that no process is working on.
        last_used: Time when it was last opened, in seconds since 1970.
        promised_until: End of the copy's grace period, in seconds since 1970; 0 if it never had one.
        pinned: True if the copy is never evicted.
        leased: True if a running process reads the copy.
        pids: Ids of the processes that hold a lease or are copying; processes forked from them are not listed.
    """

    id: str
    key: str
    path: Path
    source: Location | None = None
    bytes: int
    reserved: int
    shards: int = 0
    local_shards: int = 0
    state: State
    last_used: float
    promised_until: float = 0
    pinned: bool = False
    leased: bool = False
    pids: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """True if the copy can be read: it is neither ``"copying"`` nor ``"interrupted"``."""
        return self.state not in ("copying", "interrupted")

    @property
    def promised(self) -> bool:
        """True while the grace period lasts: the path was printed, and a program may be about to open it."""
        return self.promised_until > time.time()

    def command(self, action: str, *flags: str) -> str:
        """A ``packtrain staged`` command for this copy, to be typed as it is."""
        return shlex.join(["packtrain", "staged", action, self.id, *flags, "--to", str(self.path.parents[1])])


@checks_names()
def entries(to: str | os.PathLike[str]) -> list[Entry]:
    """Lists this user's staged copies in `to`, finished or not.

    Args:
        to: Folder they were staged to.

    Raises:
        StagingError: There is no folder `to`; or the folder for staged copies inside it cannot be trusted, for example
            because it belongs to somebody else.
    """
    root = Root.find(to)
    if root is None:
        return []
    with file_errors(root.path, StagingError, verb="read"), root.ledger():
        return scan(root)


@checks_names()
def strays(to: str | os.PathLike[str]) -> list[Path]:
    """List what lies among this user's staged copies but was not put there by packtrain, or cannot be deleted.

    Nothing ever touches it.

    Args:
        to: Folder of the staged copies.

    Raises:
        StagingError: As for `entries`.
    """
    root = Root.find(to)
    if root is None:
        return []
    with file_errors(root.path, StagingError, verb="read"), root.ledger():
        root.empty_trash()
        return root.strays()


def scan(root: Root) -> list[Entry]:
    """Lists all entries and unfinished copies in a root. The caller holds the ledger."""
    return [read_entry(root, key, name) for key, name in root.entries()] + [
        _read_copy(root, key, name) for key, name in root.unfinished()
    ]


def read_entry(root: Root, key: str, name: str) -> Entry:
    """Reads the state of a finished entry."""
    folder = root.folder.folder(name)
    stream = key.endswith(STREAM)
    try:
        manifest = Manifest.load(folder.path / STREAMED if stream else folder.path)
        shards = len(manifest.shards)
        links = sum(folder.link_target(shard.name) is not None for shard in manifest.shards)
    except (DatasetError, OSError):
        shards = links = 0
    provenance = read_provenance(folder)
    leased = is_held(root, key, "lease")
    present = allocated_bytes(folder)
    state: State = "stream" if stream else "partial" if links else "complete"
    if not stream and has_versions(folder.path):
        state = "version"
    return Entry(
        id=name,
        key=key,
        path=folder.path,
        source=(read_origin(folder) if stream else None) or (None if provenance is None else provenance.source),
        bytes=present,
        reserved=max(0, read_reservation(folder) - present) if stream and leased else 0,
        shards=shards,
        local_shards=0 if stream else shards - links,
        state=state,
        last_used=lock_time(root, key, "lease"),
        promised_until=lock_time(root, key, "promise"),
        pinned=root.locks.status(f"{key}.pin") is not None,
        leased=leased,
        pids=holders(root, key, "lease"),
    )


def _read_copy(root: Root, key: str, name: str) -> Entry:
    folder = root.copies.folder(name)
    copying = is_held(root, key, "build", shared=True)
    present = allocated_bytes(folder)
    return Entry(
        id=name,
        key=key,
        path=folder.path,
        bytes=present,
        reserved=max(0, read_reservation(folder) - present) if copying else 0,
        state="copying" if copying else "interrupted",
        last_used=os.fstat(folder.fileno()).st_mtime,
        pids=holders(root, key, "build"),
    )


def find_entry(known: Sequence[Entry], id: str | os.PathLike[str]) -> Entry:
    """Finds an entry by its id, the beginning of its id or key, its path, or its address in an object store.

    Raises:
        UsageError: `id` is empty, or too short a beginning.
        StagingError: No entry matches, or several do.
    """
    text = os.fspath(id)
    location = location_of(text) if text else None
    if found := [entry for entry in known if text == entry.id or location == entry.path]:
        return found[0]
    found = [entry for entry in known if entry.id.startswith(text) or entry.key.startswith(text)]
    if isinstance(location, Url):
        found = [entry for entry in known if entry.source == location]
    if len(text) < MIN_PREFIX and (found or not text):
        raise UsageError(f"{text!r} is too short for the id of a copy: give at least {MIN_PREFIX} characters")
    if len(found) == 1:
        return found[0]
    if found:
        raise StagingError(
            f"{text!r} matches several copies: {', '.join(entry.id for entry in found)}. Give more of the id"
        )
    ids = [entry.id for entry in known]
    raise StagingError(
        f"there is no staged copy {text!r}; existing copies: {', '.join(ids) or 'none'}{did_you_mean(text, ids)}"
    )


def root_in(to: str | os.PathLike[str]) -> Root:
    """Opens the root in the folder `to`, in which somebody has named a copy.

    Raises:
        StagingError: Nothing is staged there; or what `Root.find` raises.
    """
    if (root := Root.find(to)) is None:
        raise StagingError(f"nothing is staged in {to}: name the folder that the copy was staged to (`to`)")
    return root


def linked_parts(entry: Path) -> list[Path]:
    """The entries of the segments and layers of a version, whose own entry this is."""
    links = [link for place in (SEGMENTS, LAYERS) for link in sorted((entry / place).glob("*"))]
    return list(dict.fromkeys(link.resolve() for link in links if link.is_symlink()))


@checks_names()
def pin(to: str | os.PathLike[str], id: str | os.PathLike[str], pinned: bool = True) -> Entry:
    """Pins a staged copy, so that it is never evicted, or unpins it.

    Args:
        to: Folder it was staged to.
        id: Id of the copy, at least four characters with which no other id or key begins, or its path.
        pinned: True to pin the copy, False to unpin it.

    Returns:
        The copy, with its new state.

    Raises:
        UsageError: `id` is empty or too short.
        StagingError: No copy matches `id`, or several do.
    """
    root = root_in(to)
    with file_errors(root.path, StagingError), root.ledger():
        entry = find_entry([entry for entry in scan(root) if entry.finished], id)
        parts = [path.name for path in linked_parts(entry.path)] if entry.state == "version" else []
        for key in (entry.key, *filter(None, map(entry_key, parts))):
            marker = lock_path(root, key, "pin")
            # Also checks that what is there is a marker.
            if pinned or root.locks.status(marker.name) is not None:
                os.close(root.open_lock(marker, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            if not pinned:
                root.locks.remove(marker.name)
        return read_entry(root, entry.key, entry.id)


def holds_dataset(folder: Path, key: str) -> bool:
    """True if `folder` holds the dataset with the given key."""
    try:
        return key_of(base_manifest(folder) if has_versions(folder) else Manifest.load(folder)) == key
    except (DatasetError, OSError):
        return False
