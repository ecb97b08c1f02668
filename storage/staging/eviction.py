"""Makes room: decides which entries are evicted, in which order, and which ones stay.

An entry may be evicted if nobody reads it, its path was not promised to anybody, it is not pinned, and its source still
holds the same dataset (`SourceChecks`). Interrupted copies go first, then entries, least recently used first. Victims
are chosen, and vanish, while the ledger is locked.

A file of the source counts if it is a regular file of the right size, is not the entry's own file under another name,
and has the stamp that it had when its bytes were last found to be right. If its stamp has changed, its bytes count.
It is the same with objects in a store, which is asked about each of them, but sends none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cached_property, partial
from typing import Final, Self, TypeVar

from packtrain._core.arguments import checks_names, unexpected
from packtrain._core.errors import (
    DatasetError,
    Denied,
    Leased,
    MissingDependency,
    NoRoom,
    NotThere,
    RemoteError,
    StagingError,
)
from packtrain._core.files import file_errors
from packtrain._core.locks import Lock
from packtrain._core.manifest import VERSIONS
from packtrain._core.version_files import MOST_VERSION_BYTES

from ..location import Location, object_store, read
from ..remote.objects import Objects
from ..remote.urls import Url
from .capacity import Capacity, FileSystem, capacity
from .documents import read_provenance, stamp_of
from .entries import Entry, find_entry, root_in, scan
from .folder import Folder
from .locks import lease_on, try_lock
from .options import OnStageProgress, StageOptions
from .root import Root
from .source import SourceDataset
from .transfer import check_files

Result = TypeVar("Result")

_IN_USE: Final = "in use"
_PINNED: Final = "pinned"
_PROMISED: Final = "in its grace period"


class SourceChecks:
    """Findings about the sources of entries. A context manager.

    Sources are looked at before the ledger is locked: they may be on a network file system that does not answer, and
    only this process should wait for it. A source that is itself a staged copy is leased until the end: it must not be
    evicted because this entry holds the same, while this entry is evicted because the source does.
    """

    def __init__(self) -> None:
        self._doubts: dict[tuple[str, Location | None], str | None] = {}
        self._open = ExitStack()
        self._silent: dict[str, RemoteError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @cached_property
    def _objects(self) -> Objects:
        return self._open.enter_context(closing(object_store()))

    def look_at(
        self,
        entries: Sequence[Entry],
        *,
        force: bool = False,
        read: bool = False,
        on_progress: OnStageProgress | None = None,
    ) -> None:
        """Look at the sources of the entries that nothing else keeps. The caller does not hold the ledger.

        Args:
            entries: Entries and unfinished copies.
            force: Whether a grace period keeps nothing.
            read: Read and compare files that were changed since they were copied; otherwise these count as lost.
            on_progress: Called while files are read.
        """
        for entry in entries:
            if entry.finished and entry.state != "stream" and not entry.leased and _protection(entry, force) is None:
                self._doubts[entry.id, entry.source] = self._look(entry, read, on_progress)

    def doubt(self, entry: Entry) -> str | None:
        """Why the entry may be the only copy; None if its source was seen to hold the same, or if it is a cache."""
        if entry.state == "stream":
            return None
        return self._doubts.get((entry.id, entry.source), "its source has not been looked at")

    def _look(self, entry: Entry, read: bool, on_progress: OnStageProgress | None) -> str | None:
        if entry.source is None:
            return "nothing says where it was copied from"
        lost = f"its source {entry.source} no longer holds it"
        try:
            copy = Folder.open(entry.path, follow=False)
            provenance = read_provenance(copy)
            if entry.state == "version":
                return None if provenance is not None and self._holds_version(provenance.source, entry) else lost
            source = None if provenance is None else self._load(provenance.source, copy, entry.key)
            if provenance is None or source is None or source.key != entry.key:
                return lost
            # Nothing is lost with a link, or with a file that is damaged.
            held = {file: ours for file in source.files if (ours := copy.file_status(file.name, file.bytes))}
            changed = []
            for (file, ours), theirs in zip(held.items(), source.origin.heads(list(held)), strict=True):
                if theirs.bytes != file.bytes:
                    return f"{source.origin.at(file)} is not what was copied"
                if theirs.stamp == stamp_of(ours):
                    return f"{source.origin.at(file)} is the same file as in the copy"
                if not theirs.stamp or provenance.stamps.get(file.name) != theirs.stamp:
                    changed.append(file)
        except OSError as error:
            return f"{lost} ({error.filename}: {error.strerror})"
        except (DatasetError, StagingError, NotThere) as error:
            return f"{lost} ({error})"
        except (RemoteError, MissingDependency) as error:
            return f"its source {entry.source} cannot be looked at ({error})"
        if changed and not read:
            return (
                f"{source.origin.at(changed[0])} was changed since it was copied; `{entry.command('evict')}` compares "
                "the contents"
            )
        if damaged := check_files(source.origin, changed, on_progress=on_progress):
            return f"{source.origin.at(damaged[0])} is not what was copied"
        return None

    def _holds_version(self, location: Location, entry: Entry) -> bool:
        """True if there still is the document of a version; what that names is looked at as a copy of its own."""
        document = os.listdir(entry.path / VERSIONS)[0]
        objects = self._objects if isinstance(location, Url) else None
        data = read(location / VERSIONS / document, MOST_VERSION_BYTES, objects)
        return hashlib.sha256(data).hexdigest().startswith(entry.key)

    def _load(self, location: Location, copy: Folder, key: str) -> SourceDataset | None:
        """Loads the source of a copy; None if it is the copy itself."""
        if isinstance(location, Url):
            return self._load_from_store(location, key)
        if os.path.samestat(os.stat(location), os.fstat(copy.fileno())):
            return None
        if (lease := lease_on(location)) is not None:
            self._open.enter_context(lease)
        return SourceDataset.load(location, segment=key)

    def _load_from_store(self, url: Url, key: str) -> SourceDataset:
        # A store that did not answer once is not waited for again.
        if (failed := self._silent.get(url.base)) is not None:
            raise failed
        try:
            return SourceDataset.load(url, self._objects, segment=key)
        except (NotThere, Denied):
            raise
        except RemoteError as error:
            self._silent[url.base] = error
            raise


def make_room(
    root: Root, key: str, need: int, options: StageOptions, checks: SourceChecks, *, all_or_nothing: bool = True
) -> Capacity:
    """Evicts entries until `need` more bytes fit. The caller holds the ledger and the build lock of `key`.

    Args:
        root: The root to evict from.
        key: Key of the dataset that needs the room; neither its entry nor its copy is evicted.
        need: Bytes needed.
        options: What all copies may take together.
        checks: What is known about the entries' sources. Entries whose sources were not looked at stay.
        all_or_nothing: Evict nothing if `need` bytes cannot be freed.

    Returns:
        The room there is now.

    Raises:
        NoRoom: `all_or_nothing` is set and `need` bytes cannot be freed.
    """
    root.empty_trash()
    while True:
        known, system = scan(root), FileSystem.inspect(root.parent)
        used, freed = sum(entry.bytes for entry in known), 0
        promised = sum(entry.reserved for entry in known if entry.key != key)
        measured = partial(
            capacity, budget=options.budget_bytes, promised=promised, reserve=options.reserve_bytes, need=need
        )
        now = then = measured(system, used=used)
        if now.bytes >= need:
            return now
        victims: list[tuple[Entry, Lock]] = []
        # As few as needed, or all possible ones if even those are too few.
        for entry in sorted(known, key=lambda entry: (entry.finished, entry.last_used)):
            if then.bytes >= need:
                break
            if entry.key != key and _obstacle(entry, checks) is None and (lock := _lock(root, entry)) is not None:
                victims.append((entry, lock))
                freed += entry.bytes
                then = measured(system.after_freeing(freed), used=used - freed)
        if all_or_nothing and then.bytes < need:
            _unlock(victims)
            raise NoRoom(f"{now.message}{_list_kept(known, key, checks)}")
        if not victims:
            return now
        for entry, lock in victims:
            with lock:
                _delete(root, entry)


def under_ledger(root: Root, attempt: Callable[[SourceChecks, bool], Result]) -> Result:
    """Makes an attempt to reserve room, and if there is too little, another after looking at the entries' sources.

    Args:
        root: The root.
        attempt: Called while the ledger is held, with what is known about the sources, and whether it is the last.

    Raises:
        NoRoom: The last attempt raised it.
    """
    with SourceChecks() as checks:
        with suppress(NoRoom), root.ledger():
            return attempt(checks, False)
        # Without the ledger, because a file system that does not answer must not stop other processes.
        with root.ledger():
            known = scan(root)
        checks.look_at(known)
        with root.ledger():
            return attempt(checks, True)


@checks_names()
def evict(
    to: str | os.PathLike[str],
    ids: Sequence[str | os.PathLike[str]] | None = None,
    *,
    force: bool = False,
    on_progress: OnStageProgress | None = None,
    on_kept: Callable[[Entry, str], None] | None = None,
) -> list[Entry]:
    """Evicts staged copies, including interrupted ones.

    A copy goes only if its source still holds the same dataset. Files of the source that were changed since they were
    copied are read for this.

    Args:
        to: Folder they were staged to.
        ids: Copies to evict, each by its id, by at least four characters with which no other id or key begins, or by
            its path; None for all that may be evicted.
        force: Also evict copies that are still within their grace period and, if they are named in `ids`, those that
            may be the only copy.
        on_progress: Called several times a second while sources are read.
        on_kept: Called with each copy that stays, if `ids` is None, and with the reason, which also says what to do.

    Returns:
        The evicted copies.

    Raises:
        UsageError: An id is empty or too short.
        Leased: A copy in `ids` is being read or copied. Nothing was evicted.
        StagingError: A copy in `ids` does not exist, is pinned, is within its grace period, or may be the only copy.
            Nothing was evicted. Or there is no folder `to`.
    """
    if isinstance(ids, str | os.PathLike):
        raise unexpected("ids", ids, "a list of ids")
    root = root_in(to) if ids else Root.find(to)
    if root is None:
        return []
    with file_errors(root.path, StagingError), SourceChecks() as checks:
        with root.ledger():
            wanted = _wanted(scan(root), ids)
        if not (force and ids):
            checks.look_at(wanted, force=force, read=True, on_progress=on_progress)
        with root.ledger():
            root.empty_trash()
            locked, kept = _lock_all(root, _wanted(scan(root), ids), checks, force, named=ids is not None)
            for entry, lock in locked:
                with lock:
                    _delete(root, entry)
    # Whoever is called may use the folder, too.
    if on_kept is not None:
        for entry, why in kept:
            on_kept(entry, str(why))
    return [entry for entry, _ in locked]


def discard_copy(root: Root, key: str) -> None:
    """Deletes what is left of a copy. The caller holds the ledger and the copy's build lock."""
    if (folder := root.find_copy(key)) is not None:
        root.discard(root.copies, folder.path.name)


def _wanted(known: Sequence[Entry], ids: Sequence[str | os.PathLike[str]] | None) -> list[Entry]:
    return list(known) if ids is None else list(dict.fromkeys(find_entry(known, id) for id in ids))


def _lock_all(
    root: Root,
    wanted: Sequence[Entry],
    checks: SourceChecks,
    force: bool,
    *,
    named: bool,
) -> tuple[list[tuple[Entry, Lock]], list[tuple[Entry, StagingError]]]:
    """Locks the entries that may be evicted. Returns them and the others; if they were named, there are no others."""
    locked: list[tuple[Entry, Lock]] = []
    kept: list[tuple[Entry, StagingError]] = []
    for entry in wanted:
        obstacle = _obstacle(entry, checks, force, named=named)
        lock = None if obstacle else _lock(root, entry)
        if lock is not None:
            locked.append((entry, lock))
            continue
        error = _kept(entry, obstacle or _IN_USE)
        if named:
            _unlock(locked)
            raise error
        kept.append((entry, error))
    return locked, kept


def _unlock(locked: Sequence[tuple[Entry, Lock]]) -> None:
    # The traceback of an exception keeps these locks alive while it is handled, and its handler may open an entry.
    for _, lock in locked:
        lock.close()


def _obstacle(entry: Entry, checks: SourceChecks, force: bool = False, *, named: bool = False) -> str | None:
    """The obstacle to an eviction in a few words, as far as can be told without the entry's lock."""
    if entry.leased or entry.state == "copying":
        return _IN_USE
    if not entry.finished:
        return None
    if (protection := _protection(entry, force)) is not None:
        return protection
    if (doubt := checks.doubt(entry)) is None or (force and named):
        return None
    return f"may be the only copy: {doubt}"


def _protection(entry: Entry, force: bool = False) -> str | None:
    """The obstacle that the user has put up."""
    return _PINNED if entry.pinned else _PROMISED if entry.promised and not force else None


def _kept(entry: Entry, why: str) -> StagingError:
    """The error for an entry that has an obstacle: what it is, and what to do."""
    forced = entry.command("evict", "--force")
    if why == _IN_USE:
        by = f" by process {', '.join(map(str, entry.pids))}" if entry.pids else ""
        doing = "read" if entry.finished else "copied"
        return Leased(f"{entry.id} is being {doing}{by}: it can be evicted after that has ended")
    if why == _PINNED:
        return StagingError(f"{entry.id} is pinned: run `{entry.command('unpin')}` first")
    if why == _PROMISED:
        return StagingError(
            f"{entry.id} is in its grace period: its path was printed recently, and a program may be about to open it. "
            f"Wait until the period ends, or use force: `{forced}`"
        )
    return StagingError(f"{entry.id} {why}. If you are sure that you do not need it, name it and use force: `{forced}`")


def _lock(root: Root, entry: Entry) -> Lock | None:
    return try_lock(root, entry.key, "lease" if entry.finished else "build")


def _list_kept(known: Sequence[Entry], key: str, checks: SourceChecks) -> str:
    others = [entry for entry in known if entry.key != key]
    kept = [f"{entry.id} ({_obstacle(entry, checks) or 'not enough by itself'})" for entry in others]
    return f". These copies cannot make room: {', '.join(kept)}" if kept else ""


def _delete(root: Root, entry: Entry) -> None:
    root.discard(root.folder if entry.finished else root.copies, entry.id)
