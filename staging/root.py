"""The folder below which one user's copies lie, and the names in it.

    DIR/packtrain-<uid>/        mode 0700; neither a link nor anybody else's
        NAME-<key>/             an entry: a dataset like any other, and staged.json
        .locks/<key>.lease      readers hold it shared; its mtime is when the entry was last opened
        .locks/<key>.build      who copies holds it
        .locks/<key>.promise    its mtime is until when a path that was printed is safe from eviction
        .locks/<key>.pin        is there while the entry is pinned
        .locks/ledger           held while sums are made, and while an entry appears or goes
        .tmp/<key>/             a copy that is being made, or was interrupted
        .trash/                 what is being deleted

Lock files are never removed; see `locks`.
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
from packtrain._core.mounts import file_system, is_network

from .locks import Lease, Lock
from .source import KEY_DIGITS

SHM: Final = Path("/dev/shm")
_ROOT_NAME: Final = re.compile(r"packtrain-\d+")
_ENTRY_NAME: Final = re.compile(rf"[A-Za-z0-9_-]+-([0-9a-f]{{{KEY_DIGITS}}})")


@dataclass(frozen=True)
class Root:
    """The folder of this user's entries below a place for staged copies.

    Attributes:
        path: The folder.
    """

    path: Path

    @classmethod
    def below(cls, place: str | os.PathLike[str]) -> Self:
        """The root in `place`, which need not be there yet."""
        return cls(Path(place).absolute() / f"packtrain-{os.geteuid()}")

    def make(self) -> None:
        """Makes the root where it is missing, and looks whether it can be trusted.

        Raises:
            StagingError: It cannot; the message says why, and what to do.
        """
        place = self.path.parent
        if not place.is_dir():
            raise StagingError(f"{place} is not a folder: name one on this machine with --to")
        if is_network(place):
            raise StagingError(
                f"{place} lies on a network file system ({file_system(place)}), where locks and local speed cannot be "
                "relied on: name a folder of this machine's own with --to, such as /dev/shm or a local disk"
            )
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StagingError(
                f"everybody may rename what lies in {place}: chmod +t {place}, or name another with --to"
            )
        try:
            if not os.path.lexists(self.path):
                self.path.mkdir(0o700, exist_ok=True)
            self._check()
            # The one that `exists` asks for comes last.
            for name in (".tmp", ".trash", ".locks"):
                (self.path / name).mkdir(0o700, exist_ok=True)
        except OSError as error:
            raise StagingError(
                f"nothing can be written in {place} ({error.strerror}): name another folder with --to"
            ) from error

    def exists(self) -> bool:
        """Whether anything was ever staged here.

        Raises:
            StagingError: Something else has the root's name.
        """
        if not os.path.lexists(self.path):
            return False
        self._check()
        return (self.path / ".locks").is_dir()

    def _check(self) -> None:
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise StagingError(
                f"{self.path} is a link or a file, not a folder of packtrain's: look who made it, and why"
            )
        if status.st_uid != os.geteuid():
            raise StagingError(
                f"{self.path} belongs to user {status.st_uid}: have it removed, or name another folder with --to"
            )
        if status.st_mode & 0o077:
            raise StagingError(f"others may use {self.path}: chmod 700 {self.path}, if you trust what lies there")

    def lock(self, key: str, what: str) -> Path:
        """Name of a lock file: `what` is ``"lease"``, ``"build"``, ``"promise"`` or ``"pin"``."""
        return self.path / ".locks" / f"{key}.{what}"

    def ledger(self) -> Lock:
        """Waits for the lock under which sums are made, and entries appear and go."""
        return Lock(self.path / ".locks" / "ledger")

    def copy_folder(self, key: str) -> Path:
        """Where a copy is made."""
        return self.path / ".tmp" / key

    @property
    def trash(self) -> Path:
        """Where things are deleted."""
        return self.path / ".trash"

    def find(self, key: str) -> Path | None:
        """The entry with this key."""
        return next(iter(self.path.glob(f"*-{key}")), None)

    def entries(self) -> Iterator[tuple[str, Path]]:
        """Key and folder of each entry."""
        for path in sorted(self.path.iterdir()):
            if found := _ENTRY_NAME.fullmatch(path.name):
                yield found[1], path

    def copies(self) -> Iterator[tuple[str, Path]]:
        """Key and folder of each copy that is being made, or was interrupted."""
        for path in sorted((self.path / ".tmp").iterdir()):
            yield path.name, path


def entry_key(path: Path) -> str | None:
    """The key, if `path` is an entry of any root."""
    found = _ENTRY_NAME.fullmatch(path.name)
    root = path.parent
    return found[1] if found and _ROOT_NAME.fullmatch(root.name) and (root / ".locks").is_dir() else None


def lease_on(path: Path) -> Lease | None:
    """Takes the lease, if `path` is an entry; see `entry_key`.

    Raises:
        StagingError: It was an entry, but has been evicted.
    """
    path = path.resolve()
    key = entry_key(path)
    if key is None:
        return None
    lease = Lease(Root(path.parent).lock(key, "lease"))
    # Looked at under the lease: from here on it stays.
    if not path.is_dir():
        raise StagingError(f"{path} has been evicted: stage it again (packtrain stage DATASET --to {path.parents[1]})")
    return lease
