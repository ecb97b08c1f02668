"""Makes sure that no other user can change what a path in a cache means.

The filler creates, renames and deletes by path. So nobody else may be able to put a link or another folder in the place
of anything on the way to the cache, or in it. Where that holds once, it holds for good: only root and this user can
change it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import Final

from packtrain._core.errors import OutputConflict
from packtrain._core.generations import FILLER_LOCK, GENERATIONS, LOG, READERS, SHARDS, STATUS, TEMPORARY
from packtrain._core.manifest import CACHE
from packtrain._storage.staging.folder import Folder, is_own, is_own_file, is_stranger, others_rename, others_write

FOLDERS: Final = (SHARDS, GENERATIONS, READERS, TEMPORARY)
FILES: Final = (CACHE, STATUS, FILLER_LOCK, LOG)
MODE: Final = 0o755
_ELSEWHERE: Final = "choose another folder"


def make_own_folder(root: Path) -> None:
    """Makes the folder of a cache if it is missing, and makes sure that only this user and root can change it.

    Raises:
        OutputConflict: Others can change it, or have prepared it; the message says what to do.
        OSError: It cannot be made.
    """
    path = root.absolute()
    missing = list(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    for each in reversed(missing):
        outer = Folder.walk_to(each.parent, _check_way)
        # Whoever was faster is found out by the owner.
        with suppress(FileExistsError):
            os.mkdir(each.name, MODE, dir_fd=outer.fileno())
    folder = Folder.walk_to(path, lambda each, status: _check_way(each, status, last=each == path))
    status = os.fstat(folder.fileno())
    if not is_own(status):
        raise OutputConflict(f"{root} belongs to user {status.st_uid}: {_ELSEWHERE}, one of your own")
    if others_write(status):
        raise _writable(root)
    for name in (*FILES, *FOLDERS):
        if (found := folder.status(name)) is not None:
            _check_content(root / name, found)


def _check_content(path: Path, status: os.stat_result) -> None:
    folder = path.name in FOLDERS
    # The log is written to in place, which would change a file that has another name, too.
    made = stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode)
    if not (made and is_own(status)) or (path.name == LOG and not is_own_file(status)):
        kind = "folder" if folder else "file"
        raise OutputConflict(
            f"{path} is not a {kind} that packtrain made for this user: find out who made it, and remove it"
        )
    if folder and others_write(status):
        raise _writable(path)


def _check_way(path: Path, status: os.stat_result, *, last: bool = False) -> None:
    """Refuses a folder or a link on the way by which others could lead the filler elsewhere."""
    if is_stranger(status):
        raise OutputConflict(
            f"{path} belongs to user {status.st_uid}, who can put something else in its place: {_ELSEWHERE}, one for "
            "which this user or root owns each folder on the way"
        )
    if others_rename(status) and not last:
        typed = quote(str(path))
        raise OutputConflict(
            f"other users may rename files in {path}: run `chmod go-w {typed}` (or `chmod +t {typed}`, if they are to "
            f"keep files of their own there), or {_ELSEWHERE}"
        )


def _writable(path: Path) -> OutputConflict:
    return OutputConflict(f"other users may write to {path}: run `chmod go-w {quote(str(path))}`, or {_ELSEWHERE}")
