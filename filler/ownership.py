"""Makes sure that no other user can change what a path in a cache means.

The filler creates, renames and deletes by path. So nobody else may be able to put a link or another folder in the place
of anything on the way to the cache, or in it. Where that holds once, it holds for good: only root and this user can
change it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final

from packtrain._core.errors import OutputConflict
from packtrain._core.generations import FILLER_LOCK, GENERATIONS, LOG, READERS, SHARDS, STATUS, TEMPORARY
from packtrain._core.manifest import CACHE
from packtrain._staging.folder import is_own, is_own_file

FOLDERS: Final = (SHARDS, GENERATIONS, READERS, TEMPORARY)
FILES: Final = (CACHE, STATUS, FILLER_LOCK, LOG)
MODE: Final = 0o755
_MOST_LINKS: Final = 40
_ELSEWHERE: Final = "choose another folder"


def make_own_folder(root: Path) -> None:
    """Makes the folder of a cache if it is missing, and makes sure that only this user and root can change it.

    Raises:
        OutputConflict: Others can change it, or have prepared it; the message says what to do.
        OSError: It cannot be made.
    """
    folder = _way_to(root)
    status = folder.lstat()
    _require_folder(root, status)
    if not is_own(status):
        raise OutputConflict(f"{root} belongs to user {status.st_uid}: {_ELSEWHERE}, one of your own")
    if _others_write(status):
        raise _writable(root)
    for name in (*FILES, *FOLDERS):
        with suppress(FileNotFoundError):
            _check_content(root / name, (folder / name).lstat())


def _check_content(path: Path, status: os.stat_result) -> None:
    folder = path.name in FOLDERS
    # The log is written to in place, which would change a file that has another name, too.
    made = stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode)
    if not (made and is_own(status)) or (path.name == LOG and not is_own_file(status)):
        kind = "folder" if folder else "file"
        raise OutputConflict(
            f"{path} is not a {kind} that packtrain made for this user: find out who made it, and remove it"
        )
    if folder and _others_write(status):
        raise _writable(path)


def _way_to(root: Path) -> Path:
    """Goes to a folder part by part, makes those that are missing, and returns the path without links.

    Only root or this user may be able to exchange a part. By induction from ``/`` on, nobody else can do so later.
    """
    here, links = Path("/"), 0
    parts = list(reversed(root.absolute().parts[1:]))
    while parts:
        if (part := parts.pop()) == "..":
            here = here.parent
            continue
        _check_folder(here, here.lstat())
        path = here / part
        status = _status(path)
        _check_owner(path, status)
        if not stat.S_ISLNK(status.st_mode):
            here = path
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        target = Path(os.readlink(path))
        here = Path("/") if target.is_absolute() else here
        parts.extend(reversed(target.parts[target.is_absolute() :]))
    return here


def _status(path: Path) -> os.stat_result:
    """The status of a part of the way, which is made if it is missing."""
    try:
        return path.lstat()
    except FileNotFoundError:
        # Whoever was faster is found out by the owner.
        with suppress(FileExistsError):
            path.mkdir(MODE)
        return path.lstat()


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise OutputConflict(
            f"{path} belongs to user {status.st_uid}, who can put something else in its place: {_ELSEWHERE}, one for "
            "which this user or root owns each folder on the way"
        )


def _check_folder(path: Path, status: os.stat_result) -> None:
    _check_owner(path, status)
    _require_folder(path, status)
    # Where the sticky bit is set, others cannot rename what is not theirs.
    if _others_write(status) and not status.st_mode & stat.S_ISVTX:
        raise OutputConflict(
            f"other users may rename files in {path}: run `chmod +t {quote(str(path))}`, or {_ELSEWHERE}"
        )


def _require_folder(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))


def _writable(path: Path) -> OutputConflict:
    return OutputConflict(f"other users may write to {path}: run `chmod go-w {quote(str(path))}`, or {_ELSEWHERE}")


def _others_write(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
