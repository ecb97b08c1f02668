"""Makes room: decides which entries are evicted, in which order, and which ones stay.

An entry may be evicted if nobody reads it, its path was not promised to anybody, it is not pinned, and its source still
holds the same dataset. Interrupted copies go first, then entries, least recently used first. All of this happens while
the ledger is locked.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from packtrain._core.errors import Leased, NoRoom, StagingError
from packtrain._core.files import file_errors
from packtrain._core.locks import Lock

from .inventory import Entry, can_be_copied_again, find_entry, scan
from .locks import try_lock
from .room import Room
from .root import Root


@dataclass(frozen=True)
class Usage:
    """Space used in a root.

    Attributes:
        used: Bytes that all entries and unfinished copies take now.
        promised: Bytes that copies in progress will take in addition.
    """

    used: int
    promised: int

    @classmethod
    def measure(cls, entries: Sequence[Entry], excluding: str) -> Self:
        """Adds up the entries; space reserved for the key `excluding` is not counted as promised."""
        return cls(
            sum(entry.bytes for entry in entries), sum(entry.reserved for entry in entries if entry.key != excluding)
        )


def make_room(
    root: Root, key: str, need: int, measure: Callable[[Usage, int], Room], *, all_or_nothing: bool = True
) -> Room:
    """Evicts entries until `need` more bytes fit. The caller holds the ledger and the build lock of `key`.

    Args:
        root: The root to evict from.
        key: Key of the dataset that needs the room; neither its entry nor its copy is evicted.
        need: Bytes needed.
        measure: Called with the current usage and a number of bytes; returns the room there would be if entries of that
            many bytes were evicted.
        all_or_nothing: Evict nothing if `need` bytes cannot be freed.

    Returns:
        The room there is now.

    Raises:
        NoRoom: `all_or_nothing` is set and `need` bytes cannot be freed.
    """
    empty_trash(root)
    while True:
        known = scan(root)
        room_after_freeing = partial(measure, Usage.measure(known, excluding=key))
        room = room_after_freeing(0)
        if room.bytes >= need:
            return room
        victims = _choose_victims(root, known, key, need, room_after_freeing)
        if all_or_nothing and room_after_freeing(sum(entry.bytes for entry, _ in victims)).bytes < need:
            _unlock(victims)
            raise NoRoom(f"{room.message}{_list_kept(known, key)}")
        if not victims:
            return room
        for entry, lock in victims:
            with lock:
                _delete(root, entry.path)


def evict(to: str | os.PathLike[str], ids: Sequence[str] | None = None, *, force_promised: bool = False) -> list[Entry]:
    """Evicts staged copies, including interrupted ones.

    Args:
        to: Folder they were staged to.
        ids: Copies to evict, each by its id, a part of the id that no other copy has, or its path; None for all that
            may be evicted.
        force_promised: Also evict copies that are still within their grace period.

    Returns:
        The evicted copies.

    Raises:
        Leased: A copy in `ids` is being read or copied. Nothing was evicted.
        StagingError: A copy in `ids` is pinned, is within its grace period, or no longer has a source. Nothing was
            evicted.
    """
    root = Root.below(to)
    if not root.exists():
        return []
    with file_errors(root.path, StagingError), root.ledger():
        empty_trash(root)
        known = scan(root)
        wanted = known if ids is None else [find_entry(known, id) for id in ids]
        locked: list[tuple[Entry, Lock]] = []
        for entry in dict.fromkeys(wanted):
            if entry.leased or entry.state == "copying":
                obstacle: StagingError | None = _in_use(entry)
            else:
                obstacle = _reason_to_keep(entry, force_promised)
            lock = None if obstacle else _lock(root, entry)
            if lock is not None:
                locked.append((entry, lock))
            elif ids is not None:
                _unlock(locked)
                raise obstacle or _in_use(entry)
        for entry, lock in locked:
            with lock:
                _delete(root, entry.path)
    return [entry for entry, _ in locked]


def empty_trash(root: Root) -> None:
    """Finishes deletions of processes that were killed during them. The caller holds the ledger."""
    for path in root.trash.iterdir():
        shutil.rmtree(path)


def discard_copy(root: Root, key: str) -> None:
    """Deletes what is left of a copy. The caller holds the ledger and the copy's build lock."""
    _delete(root, root.copy_folder(key))


def _choose_victims(
    root: Root, known: Sequence[Entry], key: str, need: int, room_after_freeing: Callable[[int], Room]
) -> list[tuple[Entry, Lock]]:
    """Chooses and locks the entries to evict: as few as needed, or all possible ones if even those are too few."""
    victims: list[tuple[Entry, Lock]] = []
    for entry in sorted(known, key=lambda entry: (entry.finished, entry.last_used)):
        if room_after_freeing(sum(entry.bytes for entry, _ in victims)).bytes >= need:
            break
        if entry.key != key and _reason_to_keep(entry) is None and (lock := _lock(root, entry)) is not None:
            victims.append((entry, lock))
    return victims


def _unlock(locked: Sequence[tuple[Entry, Lock]]) -> None:
    # The traceback of an exception keeps these locks alive while it is handled, and its handler may open an entry.
    for _, lock in locked:
        lock.close()


def _reason_to_keep(entry: Entry, force_promised: bool = False) -> StagingError | None:
    """The reason why an entry must not be evicted, as far as can be told without its lock."""
    if not entry.finished:
        return None
    if entry.pinned:
        return StagingError(f"{entry.id} is pinned: run `packtrain staged unpin {entry.id}` first")
    if entry.promised and not force_promised:
        return StagingError(
            f"the path of {entry.id} was printed recently, and a program may be about to open it: wait until its grace "
            "period ends, or use --force (in Python: force_promised=True)"
        )
    if not can_be_copied_again(entry):
        return StagingError(
            f"{entry.id} may be the only copy: its source {entry.source or 'is unknown and'} no longer holds it. "
            f"If you are sure that you do not need it, remove it by hand: rm -r {entry.path}"
        )
    return None


def _lock(root: Root, entry: Entry) -> Lock | None:
    return try_lock(root.lock(entry.key, "lease" if entry.finished else "build"))


def _in_use(entry: Entry) -> Leased:
    by = f" by process {', '.join(map(str, entry.pids))}" if entry.pids else ""
    return Leased(
        f"{entry.id} is being {'read' if entry.finished else 'copied'}{by}: it can be evicted after that has ended"
    )


def _list_kept(known: Sequence[Entry], key: str) -> str:
    kept = [f"{entry.id} ({_why_kept(entry)})" for entry in known if entry.key != key]
    return f". These copies cannot make room: {', '.join(kept)}" if kept else ""


def _why_kept(entry: Entry) -> str:
    if entry.state == "copying":
        return "being copied"
    if entry.leased:
        return "in use"
    if entry.pinned:
        return "pinned"
    if entry.promised:
        return "in its grace period"
    return "not enough by itself" if can_be_copied_again(entry) else "the only copy"


def _delete(root: Root, path: os.PathLike[str]) -> None:
    # The rename makes it vanish at once. If this process is killed during the deletion, the next one empties the trash.
    grave = root.trash / uuid.uuid4().hex
    try:
        os.rename(path, grave)
    except FileNotFoundError:
        return
    shutil.rmtree(grave)
