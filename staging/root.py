"""The folder that holds one user's copies, and the names in it.

    DIR/packtrain-<uid>/        mode 0700; owned by the user, not a link
        NAME-<key>/             an entry: an ordinary dataset, plus staged.json
        .locks/<key>.lease      readers hold it shared; its mtime is the time the entry was last opened
        .locks/<key>.build      held by the process that copies
        .locks/<key>.promise    its mtime is the end of the grace period of a printed path
        .locks/<key>.pin        exists while the entry is pinned
        .locks/ledger           held while space is added up, and while an entry appears or is removed
        .tmp/<key>/             a copy in progress, or an interrupted one
        .trash/                 data being deleted

Lock files are never removed; `locks` says why.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from packtrain._core.errors import StagingError
from packtrain._core.locks import Lock
from packtrain._core.mounts import file_system, is_network
from packtrain._core.paths import local_path

from .locks import Lease
from .source import KEY_DIGITS

SHM: Final = Path("/dev/shm")
_ROOT_NAME: Final = re.compile(r"packtrain-\d+")
_ENTRY_NAME: Final = re.compile(rf"[A-Za-z0-9_-]+-([0-9a-f]{{{KEY_DIGITS}}})")


@dataclass(frozen=True)
class Root:
    """The folder that holds this user's entries.

    Attributes:
        path: Path of the folder.
    """

    path: Path

    @classmethod
    def below(cls, place: str | os.PathLike[str]) -> Self:
        """The root in the folder `place`; the root need not exist yet."""
        return cls(local_path(place).absolute() / f"packtrain-{os.geteuid()}")

    def make(self) -> None:
        """Creates the root if it is missing, and checks that it can be trusted.

        Raises:
            StagingError: The root cannot be created or trusted; the message says why and what to do.
        """
        place = self.path.parent
        if not place.is_dir():
            raise StagingError(f"{place} is not a folder: name an existing folder with --to")
        if is_network(place):
            raise StagingError(
                f"{place} is on a network file system ({file_system(place)}), which has neither reliable locks nor "
                "local speed: use a local folder with --to, such as /dev/shm or one on a local disk"
            )
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StagingError(
                f"everybody may rename files in {place}: run `chmod +t {place}`, or use another folder with --to"
            )
        try:
            if not os.path.lexists(self.path):
                self.path.mkdir(0o700, exist_ok=True)
            self._check()
            # .locks comes last, because `exists` checks for it.
            for name in (".tmp", ".trash", ".locks"):
                (self.path / name).mkdir(0o700, exist_ok=True)
        except OSError as error:
            raise StagingError(f"cannot write to {place} ({error.strerror}): use another folder with --to") from error

    def exists(self) -> bool:
        """True if anything was ever staged here.

        Raises:
            StagingError: The root cannot be trusted.
        """
        if not os.path.lexists(self.path):
            return False
        self._check()
        return (self.path / ".locks").is_dir()

    def _check(self) -> None:
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise StagingError(
                f"{self.path} is a link or a file, not a folder made by packtrain: find out who made it, and remove it"
            )
        if status.st_uid != os.geteuid():
            raise StagingError(
                f"{self.path} belongs to user {status.st_uid}: have it removed, or use another folder with --to"
            )
        if status.st_mode & 0o077:
            raise StagingError(
                f"other users have access to {self.path}: run `chmod 700 {self.path}` if you trust its content"
            )

    def lock(self, key: str, what: str) -> Path:
        """Path of a lock file: `what` is ``"lease"``, ``"build"``, ``"promise"`` or ``"pin"``."""
        return self.path / ".locks" / f"{key}.{what}"

    def ledger(self) -> Lock:
        """Waits for the lock under which space is added up, and entries appear and are removed."""
        return Lock(self.path / ".locks" / "ledger")

    def copy_folder(self, key: str) -> Path:
        """Folder in which the copy with this key is made."""
        return self.path / ".tmp" / key

    @property
    def trash(self) -> Path:
        """Folder that data is moved to before it is deleted."""
        return self.path / ".trash"

    def find(self, key: str) -> Path | None:
        """Folder of the entry with this key; None if there is none."""
        return next(iter(self.path.glob(f"*-{key}")), None)

    def entries(self) -> Iterator[tuple[str, Path]]:
        """Key and folder of each entry."""
        for path in sorted(self.path.iterdir()):
            if found := _ENTRY_NAME.fullmatch(path.name):
                yield found[1], path

    def copies(self) -> Iterator[tuple[str, Path]]:
        """Key and folder of each copy in progress and each interrupted one."""
        for path in sorted((self.path / ".tmp").iterdir()):
            yield path.name, path


def entry_key(path: Path) -> str | None:
    """The key of an entry; None if `path` is not an entry in any root."""
    found = _ENTRY_NAME.fullmatch(path.name)
    root = path.parent
    return found[1] if found and _ROOT_NAME.fullmatch(root.name) and (root / ".locks").is_dir() else None


def lease_on(path: Path) -> Lease | None:
    """Takes a lease on a staged copy, which keeps it from being evicted.

    Args:
        path: Folder of a dataset.

    Returns:
        The lease; None if `path` is not a staged copy.

    Raises:
        StagingError: `path` was a staged copy, but has been evicted.
    """
    path = path.resolve()
    key = entry_key(path)
    if key is None:
        return None
    lease = Lease(Root(path.parent).lock(key, "lease"))
    # Checked while the lease is held: from here on the entry cannot be evicted.
    if not path.is_dir():
        raise StagingError(f"{path} has been evicted: stage it again (packtrain stage DATASET --to {path.parents[1]})")
    return lease
