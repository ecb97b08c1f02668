"""The folder of a cache: who may change it, who fills it, and what packtrain put there.

The filler creates, renames and deletes by path. So nobody else may be able to put a link or another folder in the place
of anything on the way to the cache, or in it. Where that holds once, it holds for good: only root and this user can
change it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import Final

from packtrain._core.errors import OutputConflict
from packtrain._core.files import fsync_folder, is_temporary
from packtrain._core.generations import GENERATIONS, LOG, READERS, SHARDS, STATUS, TEMPORARY
from packtrain._core.locks import Lock, is_locked
from packtrain._core.manifest import CACHE
from packtrain._core.reader_reports import ENDED
from packtrain._storage.staging.folder import Folder, is_own, is_own_file, others_write, why_unsafe

FOLDERS: Final = (SHARDS, GENERATIONS, READERS, TEMPORARY)
FILES: Final = (CACHE, STATUS, LOG)
_MODE: Final = 0o755
_ELSEWHERE: Final = "choose another folder"
_TRIES: Final = 10
_TRY_SECONDS: Final = 0.02
_SHARD: Final = re.compile(r"cache-(\d{6,})\.(?:tar|idx|h5|mdb|index\.npy)")
_NAMES: Final = {
    "": re.compile("|".join(map(re.escape, (*FILES, *FOLDERS)))),
    SHARDS: _SHARD,
    GENERATIONS: re.compile(r"\d{8,}\.json"),
    READERS: re.compile(rf"[0-9a-f]{{32}}|{re.escape(ENDED)}"),
    TEMPORARY: re.compile(r"cache-\d{6,}\.(?:tar|h5|mdb)(?:\.field)?"),
}
"""The names that packtrain gives the files in each folder."""
_MOST_NAMED: Final = 3


def make_own_folder(root: Path) -> None:
    """Make the folder of a cache if it is missing, and check that only this user and root can change it.

    Raises:
        OutputConflict: Others can change the folder, or have prepared it; the message says what to do.
        OSError: The folder cannot be made.
    """
    path = root.absolute()
    missing = list(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    for each in reversed(missing):
        outer = Folder.walk_to(each.parent, partial(_check_way, path))
        # Whoever was faster is found out by the owner.
        with suppress(FileExistsError):
            os.mkdir(each.name, _MODE, dir_fd=outer.fileno())
    folder = Folder.walk_to(path, partial(_check_way, path))
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


def _check_way(root: Path, path: Path, status: os.stat_result) -> None:
    # The cache's own folder has stricter rules, see `make_own_folder`; a link in its place has not.
    if path == root and stat.S_ISDIR(status.st_mode):
        return
    if (why := why_unsafe(path, status, _ELSEWHERE)) is not None:
        raise OutputConflict(why)


def _writable(path: Path) -> OutputConflict:
    return OutputConflict(f"other users may write to {path}: run `chmod go-w {quote(str(path))}`, or {_ELSEWHERE}")


def lock_cache(root: Path) -> Lock:
    """Take the lock of the filler, which is on the folder itself.

    The filler holds the lock from before its first change to after its last one, so whoever does not see the lock sees
    all that the filler has written.

    Raises:
        BlockingIOError: Another filler holds the lock.
    """
    for _ in range(_TRIES):
        # `is_filled` holds the lock for a moment.
        with suppress(BlockingIOError):
            return Lock(root, wait=False, opener=_open_folder)
        time.sleep(_TRY_SECONDS)
    return Lock(root, wait=False, opener=_open_folder)


def is_filled(root: Path) -> bool:
    """Check whether a filler works on a cache."""
    try:
        # Shared, so that those who look do not disturb each other.
        return is_locked(root, shared=True, opener=_open_folder)
    except OSError:
        return False


def _open_folder(path: Path, flags: int, mode: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def shard_number(path: Path) -> int:
    """Return the number of the shard that a file belongs to by its name; -1 if the file belongs to no shard."""
    found = _SHARD.fullmatch(path.name)
    return -1 if found is None else int(found[1])


def check_folder(root: Path) -> None:
    """Check that a folder is a cache, or may become one.

    Raises:
        OutputConflict: The folder holds something else.
    """
    if not (root / CACHE).exists() and (found := _strays(root)):
        raise OutputConflict(
            f"{root} is not a growing cache, and holds {found}: choose another folder, or empty this one"
        )


def clear_up(root: Path, end_shard: int) -> None:
    """Make the subfolders of a cache, and remove what a filler that was killed began and never published.

    Shards from number `end_shard` on are in no generation.
    """
    for name in FOLDERS:
        (root / name).mkdir(_MODE, exist_ok=True)
    for path, known in _content(root):
        if known and (is_temporary(path) or path.parent == root / TEMPORARY or shard_number(path) >= end_shard):
            path.unlink()
    fsync_folder(root / SHARDS)


def stray_warning(root: Path) -> str:
    """Name the files that packtrain did not make; empty if there are none."""
    found = _strays(root)
    return f"{root} holds {found}, not made by packtrain. It is left alone, and counts for the budget" if found else ""


def _strays(root: Path) -> str:
    """Name some of the files that packtrain did not make; empty if there are none."""
    names = sorted(str(path.relative_to(root)) for path, known in _content(root) if not known)
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _content(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield what is in the folders of a cache, and whether packtrain gives something there such a name."""
    for name, known in _NAMES.items():
        if (root / name).is_dir():
            for path in list((root / name).iterdir()):
                # A temporary file is known by the name that it was to get.
                meant = path.name[1:].rpartition(".tmp-")[0] if is_temporary(path) else path.name
                yield path, known.fullmatch(meant) is not None
