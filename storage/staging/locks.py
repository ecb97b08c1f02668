"""Locks by which processes agree on who copies, who reads and who may evict.

How these locks behave across forks and crashes is described in `packtrain._core.locks`. Lock files are never removed:
two processes could then hold locks on two different files of the same name.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from packtrain._core.arguments import checks_names
from packtrain._core.errors import StagingError, UsageError
from packtrain._core.files import NO_LOCKS, file_errors
from packtrain._core.locks import Lock, is_locked, lock_holders
from packtrain._core.manifest import MANIFEST
from packtrain._core.paths import local_path
from packtrain._core.problems import reading
from packtrain._core.version_files import is_dropped, version_path

from .documents import PROVENANCE, STREAM, STREAMED, read_origin
from .folder import Folder
from .root import Root, entry_key

What = Literal["lease", "build", "promise", "pin"]


class Lease(Lock):
    """A reader's lock on an entry, which keeps it from being evicted. Taking it counts as using the entry.

    Forked processes share the lease. When a lease is unpickled, it is taken again in the receiving process.

    Args:
        root: The root that the entry is in.
        key: Key of the entry.
    """

    def __init__(self, root: Root, key: str) -> None:
        super().__init__(lock_path(root, key, "lease"), shared=True, opener=root.open_lock)
        # The time cannot be set on a read-only mount, but the lock still holds there.
        with suppress(OSError):
            os.utime(self._descriptor)

    def __reduce__(self) -> tuple[Callable[..., Lease], tuple[Path]]:
        return _take_again, (self.path,)


def _take_again(path: Path) -> Lease:
    key = path.name.rpartition(".")[0]
    root = Root.around(path.parents[1] / f"entry-{key}")
    if root is None:
        raise StagingError(f"{path.parents[1]} does not hold staged copies any more: stage the dataset again")
    return Lease(root, key)


def lease_on_entry(entry: Path) -> Lease:
    """Take a lease on an entry, whatever it holds.

    Raises:
        StagingError: It is not in a root of this user, or has been evicted.
    """
    if (found := _lease_in_root(entry)) is None:
        raise StagingError(f"{entry} is not in a folder for staged copies")
    return found[1]


@checks_names()
def lease_on(path: str | os.PathLike[str]) -> Lease | None:
    """Takes a lease on a staged copy, which keeps it from being evicted.

    Args:
        path: Folder of a dataset.

    Returns:
        The lease; None if `path` is not a staged copy of this user. Another user's copy is an ordinary dataset, which
        its owner may evict while it is read.

    Raises:
        StagingError: `path` was a staged copy, but has been evicted, or has no manifest; or its lease cannot be taken.
    """
    path = Path(os.path.realpath(local_path(path)))
    with file_errors(path, StagingError, verb="take a lease on"):
        if (found := _lease_in_root(path)) is None:
            return None
        root, lease = found
        if path.name.endswith(STREAM):
            address = read_origin(Folder.open(path)) or "ADDRESS"
            raise StagingError(
                f"{path} is a cache of {address}, and no copy: open the address, with open_dataset({str(address)!r}, "
                f"stage={str(path.parents[1])!r})"
            )
        if root.folder.status(f"{path.name}/{MANIFEST}") is None:
            quoted = shlex.quote(str(path))
            # Without a provenance, it is no entry that could be repaired.
            known = root.folder.status(f"{path.name}/{PROVENANCE}") is not None
            advice = f"`packtrain staged repair {quoted}` copies it again"
            otherwise = f"`rm -r {quoted}`, and stage the dataset again"
            raise StagingError(f"somebody has removed {path / MANIFEST}: {advice if known else otherwise}")
    return lease


def _lease_in_root(entry: Path) -> tuple[Root, Lease] | None:
    """Take a lease on what may be an entry. Returns it and the root; None if it is in no root of this user."""
    root, key = Root.around(entry), entry_key(entry.name)
    if root is None or key is None:
        return None
    lease = Lease(root, key)
    # Checked while the lease is held: from here on the entry cannot be evicted.
    if not root.folder.has_own_folder(entry.name):
        to = shlex.quote(str(entry.parents[1]))
        raise StagingError(f"{entry} has been evicted: stage it again (packtrain stage DATASET --to {to})")
    return root, lease


class VersionLease:
    """A reader's lock on a version: nothing of it is deleted while it is held, by this process or one forked from it.

    It pickles as the version's number, and another process takes a lease of its own.

    Args:
        dataset: The dataset's folder.
        number: Number of the version.

    Raises:
        UsageError: The version was dropped.
        UnreadableFile: It cannot be opened.
    """

    def __init__(self, dataset: Path, number: int) -> None:
        self._of: Final = (dataset, number)
        path = version_path(dataset, number)
        # The version of a dataset in caches lies in the entry of these.
        entry = Path(os.path.realpath(dataset.parent))
        streamed = dataset.name == STREAMED and Root.around(entry) is not None
        self._copy: Final = lease_on_entry(entry) if streamed else lease_on(dataset)
        self._lock: Lock | None = None
        with reading(path):
            try:
                # Whoever drops the version holds it alone for a moment, until it is marked.
                self._lock = Lock(path, shared=True, flags=os.O_RDONLY)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
        if is_dropped(dataset, number):
            raise UsageError(f"{dataset}: version {number} was dropped. `packtrain log` shows those that there are")

    def close(self) -> None:
        """Gives the lease up, for this process."""
        if self._lock is not None:
            self._lock.close()

    def __reduce__(self) -> tuple[type[VersionLease], tuple[Path, int]]:
        return VersionLease, self._of


def lock_path(root: Root, key: str, what: What) -> Path:
    """Path of a lock file."""
    return root.locks.path / f"{key}.{what}"


def try_lock(root: Root, key: str, what: What) -> Lock | None:
    """Takes the exclusive lock, or returns None if anybody holds it."""
    try:
        return Lock(lock_path(root, key, what), wait=False, opener=root.open_lock)
    except BlockingIOError:
        return None


def is_held(root: Root, key: str, what: What, *, shared: bool = False) -> bool:
    """True if somebody holds the lock; with `shared`, True if somebody holds it exclusively.

    It is also True if the lock file is not one of packtrain's: then nobody can tell.
    """
    try:
        return is_locked(lock_path(root, key, what), shared=shared, opener=root.open_lock)
    except StagingError:
        return True


def lock_time(root: Root, key: str, what: What) -> float:
    """The time that a lock file carries, in seconds since 1970; 0 if there is no such file."""
    status = root.locks.status(f"{key}.{what}")
    return 0 if status is None else status.st_mtime


def holders(root: Root, key: str, what: What, locks: Path = Path("/proc/locks")) -> tuple[int, ...]:
    """Ids of the processes that took the lock, as far as the kernel tells.

    Forked processes that share a lock are not listed.
    """
    status = root.locks.status(f"{key}.{what}")
    return () if status is None else lock_holders(status, locks)


def promise(root: Root, key: str, seconds: float) -> None:
    """Keep an entry from eviction for so many seconds from now on, unless it has been promised for longer."""
    if seconds:
        until = time.time() + seconds
        with Lock(lock_path(root, key, "promise"), opener=root.open_lock) as lock:
            if os.fstat(lock.fileno()).st_mtime < until:
                os.utime(lock.fileno(), (until, until))
