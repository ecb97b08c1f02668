"""The folder that holds one user's copies, and the names in it.

    DIR/packtrain-<uid>/        mode 0700; owned by the user, not a link
        NAME-<key>/             an entry: an ordinary dataset, plus staged.json
        NAME-<key>.stream/      an entry: a bounded cache of a remote dataset, see `packtrain._storage.streams.layout`
        .locks/<key>.lease      readers hold it shared; its mtime is the time the entry was last opened
        .locks/<key>.build      held by the process that copies
        .locks/<key>.promise    its mtime is the end of the grace period of a printed path
        .locks/<key>.pin        exists while the entry is pinned
        .locks/ledger           held while space is added up, and while an entry appears or is removed
        .tmp/<key>/             a copy in progress, or an interrupted one
        .trash/                 data being deleted

A cache of a remote dataset and a copy of the same dataset are two entries, so ``.stream`` belongs to the cache's key.
Lock files are never removed; `locks` says why. What else is found in a root is a stray: it is left alone.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Final, Self

from packtrain._core.errors import StagingError
from packtrain._core.locks import Lock
from packtrain._core.manifest import MANIFEST
from packtrain._core.mounts import file_system, is_network
from packtrain._core.paths import local_path

from .documents import ORIGIN, PROVENANCE, STREAM
from .folder import Folder, is_own, is_own_file, why_unsafe
from .source import KEY_DIGITS

SHM: Final = Path("/dev/shm")
LEDGER: Final = "ledger"
_LOCKS, _COPIES, _TRASH = ".locks", ".tmp", ".trash"
_KEY: Final = rf"[0-9a-f]{{{KEY_DIGITS}}}(?:{re.escape(STREAM)})?"
_ROOT_NAME: Final = re.compile(r"packtrain-\d+")
_ENTRY_NAME: Final = re.compile(rf"[A-Za-z0-9_-]+-({_KEY})")
_COPY_NAME: Final = re.compile(rf"({_KEY})(?:\.\d+)?")
_GRAVE_NAME: Final = re.compile(r"[0-9a-f]{32}")
_LOCK_NAME: Final = re.compile(rf"{LEDGER}|{_KEY}\.(?:lease|build|promise|pin)")
_NOT_A_LOCK: Final = frozenset([errno.ELOOP, errno.ENXIO, errno.EISDIR])


class Root:
    """The folder that holds this user's entries. It was checked when it was opened, and stays open.

    Args:
        folder: The folder, open.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder: Final = folder

    @classmethod
    def make(cls, to: str | os.PathLike[str]) -> Self:
        """Opens the root in the folder `to`, after creating it if it is missing.

        Raises:
            StagingError: The root cannot be created or trusted; the message says why and what to do.
        """
        outer = _open_outer(to)
        if is_network(outer.path):
            raise StagingError(
                f"{outer.path} is on a network file system ({file_system(outer.path)}), which has neither reliable "
                "locks nor local speed: use a local folder (`to`), such as /dev/shm or one on a local disk"
            )
        try:
            root = cls(_open_root(outer, make=True))
            # .locks comes last, because `find` looks for it.
            for name in (_COPIES, _TRASH, _LOCKS):
                root._subfolder(name)
        except OSError as error:
            raise StagingError(f"cannot write to {outer.path} ({error.strerror}): use another folder (`to`)") from error
        return root

    @classmethod
    def find(cls, to: str | os.PathLike[str]) -> Self | None:
        """Opens the root in the folder `to`; None if nothing was ever staged there.

        Raises:
            StagingError: There is no folder `to`, or its root cannot be trusted.
        """
        outer = _open_outer(to)
        try:
            if outer.status(_root_name()) is None:
                return None
            root = cls(_open_root(outer, make=False))
            return root if root.folder.status(_LOCKS) is not None else None
        except OSError as error:
            raise StagingError(f"cannot open {outer.path / _root_name()}: {error.strerror}") from error

    @classmethod
    def around(cls, entry: Path) -> Self | None:
        """Opens the root that an entry is in; None if the folder around it is not a root of this user, or not safe.

        Args:
            entry: An absolute path without links; the entry need not exist.
        """
        if not (_ENTRY_NAME.fullmatch(entry.name) and _ROOT_NAME.fullmatch(entry.parent.name)):
            return None
        with suppress(OSError, StagingError):
            folder = _open_outer(entry.parents[1]).folder(entry.parent.name)
            if _why_not_trusted(folder) is None and folder.has_own_folder(_LOCKS):
                return cls(folder)
        return None

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.folder.path

    @property
    def parent(self) -> Path:
        """Path of the folder that the root is in, as the user named it."""
        return self.folder.path.parent

    @cached_property
    def locks(self) -> Folder:
        """Folder of the lock files."""
        return self._subfolder(_LOCKS)

    @cached_property
    def copies(self) -> Folder:
        """Folder in which copies are made."""
        return self._subfolder(_COPIES)

    @cached_property
    def trash(self) -> Folder:
        """Folder that data is moved to before it is deleted."""
        return self._subfolder(_TRASH)

    def _subfolder(self, name: str) -> Folder:
        if self.folder.status(name) is not None and not self.folder.has_own_folder(name):
            raise _not_made(self.path / name, "folder")
        return self.folder.folder(name, make=True)

    def open_lock(self, path: Path, flags: int, mode: int) -> int:
        """Opens a lock file, like `os.open`; only the last part of `path` counts.

        Raises:
            StagingError: It is not a file that packtrain made.
        """
        try:
            descriptor = self.locks.open_file(path.name, flags, mode)
        except OSError as error:
            raise (_not_made(path, "lock file") if error.errno in _NOT_A_LOCK else error) from None
        if not is_own_file(os.fstat(descriptor)):
            os.close(descriptor)
            raise _not_made(path, "lock file")
        return descriptor

    def ledger(self) -> Lock:
        """Waits for the lock under which space is added up, and entries appear and are removed."""
        return Lock(self.locks.path / LEDGER, opener=self.open_lock)

    def find_entry(self, key: str) -> Folder | None:
        """The entry with this key; None if there is none."""
        return next((self.folder.folder(name) for found, name in self.entries() if found == key), None)

    def find_copy(self, key: str) -> Folder | None:
        """Return the folder of an unfinished copy; None if there is none."""
        return next((self.copies.folder(name) for found, name in self.unfinished() if found == key), None)

    def make_copy(self, key: str) -> Folder:
        """The folder in which the copy with this key is made; creates it if it is missing."""
        found = self.find_copy(key)
        # A stray may have taken the name.
        names = (key if number == 1 else f"{key}.{number}" for number in count(1))
        return found or self.copies.folder(_free_name(self.copies, names), make=True)

    def publish(self, copy: Folder, data: str, name: str, key: str) -> Folder:
        """Makes the folder `data` of a copy an entry called ``<name>-<key>``, and opens it."""
        names = (f"{name}-{key}" if number == 1 else f"{name}-{number}-{key}" for number in count(1))
        final = _free_name(self.folder, names)
        copy.rename(data, self.folder, final)
        self.folder.sync()
        return self.folder.folder(final)

    def entries(self) -> Iterator[tuple[str, str]]:
        """Key and name of each entry."""
        for name in self.folder.names():
            if (found := _ENTRY_NAME.fullmatch(name)) and self._is_entry(name):
                yield found[1], name

    def _is_entry(self, name: str) -> bool:
        if not self.folder.has_own_folder(name):
            return False
        folder = self.folder.folder(name)
        return any(folder.has_own_file(document) for document in (PROVENANCE, MANIFEST, ORIGIN))

    def unfinished(self) -> Iterator[tuple[str, str]]:
        """Key and name of each copy in progress and each interrupted one."""
        for name in self.copies.names():
            if (found := _COPY_NAME.fullmatch(name)) and self.copies.has_own_folder(name):
                yield found[1], name

    def discard(self, folder: Folder, name: str) -> None:
        """Deletes an entry or a copy, which vanishes at once. The caller holds the ledger."""
        # If this process is killed during the deletion, the next one empties the trash.
        grave = uuid.uuid4().hex
        folder.rename(name, self.trash, grave)
        self.trash.remove(grave)

    def graves(self) -> list[str]:
        """Names of what is in the trash and was not deleted yet."""
        return [name for name in self.trash.names() if _GRAVE_NAME.fullmatch(name) and self.trash.has_own_folder(name)]

    def empty_trash(self) -> None:
        """Finishes deletions of processes that were killed during them. The caller holds the ledger."""
        for name in self.graves():
            # What cannot be deleted must not keep anybody from staging. It is a stray from now on.
            with suppress(OSError):
                self.trash.remove(name)

    def strays(self) -> list[Path]:
        """List what is not packtrain's, or cannot be deleted. The caller has emptied the trash, under the ledger."""
        known = {_LOCKS, _COPIES, _TRASH, *(name for _, name in self.entries())}
        copies = {name for _, name in self.unfinished()}
        locks = {name for name in self.locks.names() if _LOCK_NAME.fullmatch(name) and self.locks.has_own_file(name)}
        return [
            *(self.path / name for name in self.folder.names() if name not in known),
            *(self.copies.path / name for name in self.copies.names() if name not in copies),
            *(self.locks.path / name for name in self.locks.names() if name not in locks),
            *(self.trash.path / name for name in self.trash.names()),
        ]


def entry_key(name: str) -> str | None:
    """The key in the name of an entry; None if it is not such a name."""
    found = _ENTRY_NAME.fullmatch(name)
    return found[1] if found else None


def _not_made(path: Path, what: str) -> StagingError:
    return StagingError(f"{path} is not a {what} made by packtrain: find out who made it, and remove it")


def _root_name() -> str:
    return f"packtrain-{os.geteuid()}"


def _free_name(folder: Folder, names: Iterator[str]) -> str:
    return next(name for name in names if folder.status(name) is None)


def _open_outer(to: str | os.PathLike[str]) -> Folder:
    """Opens the folder that the user named, and checks that others can exchange neither it nor what is in it."""
    path = local_path(to).absolute()
    try:
        return Folder.walk_to(path, _require_safe)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise StagingError(f"{path} is not a folder: name an existing folder (`to`)") from None
        raise StagingError(f"cannot open {path} ({error.strerror}): use another folder (`to`)") from error


def _require_safe(path: Path, status: os.stat_result) -> None:
    if (why := why_unsafe(path, status, "use another folder (`to`)")) is not None:
        raise StagingError(why)


def _open_root(outer: Folder, *, make: bool) -> Folder:
    path = outer.path / _root_name()
    try:
        folder = outer.folder(path.name, make=make)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise _not_made(path, "folder") from None
    if (why := _why_not_trusted(folder)) is not None:
        raise StagingError(why)
    return folder


def _why_not_trusted(folder: Folder) -> str | None:
    status = os.fstat(folder.fileno())
    if not is_own(status):
        return f"{folder.path} belongs to user {status.st_uid}: have it removed, or use another folder (`to`)"
    if status.st_mode & 0o077:
        return f"other users have access to {folder.path}: run `chmod 700 {folder.path}` if you trust its content"
    return None
