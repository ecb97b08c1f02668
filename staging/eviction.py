"""Making room: who goes, in which order, and who stays.

What may go has nobody who reads it, was not promised to anybody, is not pinned, and can be made again from its source.
First go copies that were interrupted, then entries, least recently used first. All of it happens under the ledger.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from packtrain._core.errors import Leased, NoRoom, StagingError
from packtrain._core.files import output_errors

from .inventory import Entry, can_be_made_again, choose, scan
from .locks import Lock, try_lock
from .room import Room
from .root import Root


@dataclass(frozen=True)
class Sums:
    """What lies in a root, in bytes.

    Attributes:
        used: What all entries and copies take.
        promised: What copiers will take beyond that.
    """

    used: int
    promised: int

    @classmethod
    def of(cls, known: Sequence[Entry], but: str | None = None) -> Sums:
        """Sums up; what the copier of the key `but` has reserved is left out."""
        return cls(sum(entry.bytes for entry in known), sum(entry.reserved for entry in known if entry.key != but))


def make_room(root: Root, key: str, need: int, measure: Callable[[Sums, int], Room], *, all_of_it: bool = True) -> Room:
    """Evicts until `need` more bytes fit. For those who hold the ledger and the build lock of `key`.

    Args:
        root: Where.
        key: What the room is for; neither its entry nor its copy is evicted.
        need: Bytes.
        measure: Says how much can be added, once so many bytes of entries are evicted.
        all_of_it: If that much cannot be had, evict nothing.

    Returns:
        How much can be added now.

    Raises:
        NoRoom: `all_of_it`, and it cannot be had.
    """
    sweep(root)
    while True:
        known = scan(root)
        without = partial(measure, Sums.of(known, key))
        room = without(0)
        if room.bytes >= need:
            return room
        chosen = _choose(root, known, key, need, without)
        if all_of_it and without(sum(entry.bytes for entry, _ in chosen)).bytes < need:
            _unlock(chosen)
            raise NoRoom(f"{room.message}{_kept(known, key)}")
        if not chosen:
            return room
        for entry, lock in chosen:
            with lock:
                _delete(root, entry.path)


def evict(to: str | os.PathLike[str], ids: Sequence[str] | None = None, *, force_promised: bool = False) -> list[Entry]:
    """Evicts entries and interrupted copies.

    Args:
        to: Where they were staged.
        ids: Which, each by its id, a part of it, or its path; None: all that may go.
        force_promised: Also those whose path was given away not long ago.

    Returns:
        Those that are gone.

    Raises:
        Leased: One that was named is being read or copied. None was evicted.
        StagingError: One that was named is pinned, promised, or has no source any more. None was evicted.
    """
    root = Root.below(to)
    if not root.exists():
        return []
    with output_errors(root.path, StagingError), root.ledger():
        sweep(root)
        known = scan(root)
        wanted = known if ids is None else [choose(known, id) for id in ids]
        locked: list[tuple[Entry, Lock]] = []
        for entry in dict.fromkeys(wanted):
            why = _in_use(entry) if entry.leased or entry.state == "copying" else _why_not(entry, force_promised)
            lock = None if why else _lock(root, entry)
            if lock is not None:
                locked.append((entry, lock))
            elif ids is not None:
                _unlock(locked)
                raise why or _in_use(entry)
        for entry, lock in locked:
            with lock:
                _delete(root, entry.path)
    return [entry for entry, _ in locked]


def sweep(root: Root) -> None:
    """Finishes what those who were killed while they deleted had begun. For those who hold the ledger."""
    for path in root.trash.iterdir():
        shutil.rmtree(path)


def discard(root: Root, key: str) -> None:
    """Deletes what is left of a copy. For those who hold the ledger and its build lock."""
    _delete(root, root.copy_folder(key))


def _choose(
    root: Root, known: Sequence[Entry], key: str, need: int, without: Callable[[int], Room]
) -> list[tuple[Entry, Lock]]:
    """The first in line without which there would be room, locked; all that may go if there still would not."""
    chosen: list[tuple[Entry, Lock]] = []
    for entry in sorted(known, key=lambda entry: (entry.finished, entry.last_used)):
        if without(sum(entry.bytes for entry, _ in chosen)).bytes >= need:
            break
        if entry.key != key and _why_not(entry) is None and (lock := _lock(root, entry)) is not None:
            chosen.append((entry, lock))
    return chosen


def _unlock(locked: Sequence[tuple[Entry, Lock]]) -> None:
    # An error keeps what its frames hold as long as somebody handles it, and that one may want to open an entry.
    for _, lock in locked:
        lock.close()


def _why_not(entry: Entry, force_promised: bool = False) -> StagingError | None:
    """Why an entry has to stay, as far as can be told without its lock."""
    if not entry.finished:
        return None
    if entry.pinned:
        return StagingError(f"{entry.id} is pinned: `packtrain staged unpin {entry.id}` first")
    if entry.promised and not force_promised:
        return StagingError(
            f"the path of {entry.id} was printed not long ago: somebody may be about to open it (--force)"
        )
    if not can_be_made_again(entry):
        return StagingError(
            f"{entry.id} may be the only copy: its source {entry.source or 'is unknown'} does not hold it any more. "
            f"Remove it by hand if you are sure: rm -r {entry.path}"
        )
    return None


def _lock(root: Root, entry: Entry) -> Lock | None:
    return try_lock(root.lock(entry.key, "lease" if entry.finished else "build"))


def _in_use(entry: Entry) -> Leased:
    by = f" by process {', '.join(map(str, entry.pids))}" if entry.pids else ""
    return Leased(f"{entry.id} is being {'read' if entry.finished else 'copied'}{by}: it goes when that has ended")


def _kept(known: Sequence[Entry], key: str) -> str:
    kept = [
        f"{entry.id} ({'being copied' if entry.state == 'copying' else 'in use' if entry.leased else _why(entry)})"
        for entry in known
        if entry.key != key
    ]
    return f". What stays: {', '.join(kept)}" if kept else ""


def _why(entry: Entry) -> str:
    if entry.pinned:
        return "pinned"
    if entry.promised:
        return "promised"
    return "not enough by itself" if can_be_made_again(entry) else "the only copy"


def _delete(root: Root, path: os.PathLike[str]) -> None:
    # It vanishes at once, and whoever is killed while deleting leaves it where the next one looks.
    grave = root.trash / uuid.uuid4().hex
    try:
        os.rename(path, grave)
    except FileNotFoundError:
        return
    shutil.rmtree(grave)
