"""Puts a whole dataset in its place at once, so that readers find the old one or the new one."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from packtrain._core.errors import OutputConflict
from packtrain._core.files import fsync_folder, locked, make_folder, temporary_path, write_file
from packtrain._core.locks import Lock
from packtrain._core.manifest import PLAN

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NO_EXCHANGE: Final = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def building(folder: Path, plan: bytes) -> Iterator[Path]:
    """Gives a new folder beside `folder` that holds `plan`. What is in it at the end is removed.

    Raises:
        OSError: The folder that `folder` is in cannot be written to.
    """
    make_folder(folder.parent)
    _remove_abandoned(folder)
    temporary = temporary_path(folder)
    temporary.mkdir()
    try:
        write_file(temporary / PLAN, [plan])
        # As long as the plan is locked, nobody takes the folder for abandoned.
        with locked(temporary / PLAN):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, folder: Path) -> None:
    """Puts the dataset `temporary` in the place of `folder`, which is missing or empty.

    Raises:
        OutputConflict: There is something in `folder`.
    """
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise not_empty(folder) from error
    fsync_folder(folder.parent)


def not_empty(folder: Path) -> OutputConflict:
    """The error for a folder in which there is something."""
    return OutputConflict(
        f"{folder} is not empty. Choose a new folder, or add `--update` to take new shards into an indexed dataset"
    )


def exchange(temporary: Path, folder: Path) -> None:
    """Puts the dataset `temporary` in the place of the dataset `folder`, and that in the place of `temporary`."""
    result = _libc.renameat2(
        _AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(folder), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if result:
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), os.fspath(folder))
        # A file system without this call, such as NFS: for an instant there is no dataset.
        old = temporary_path(folder)
        os.rename(folder, old)
        os.rename(temporary, folder)
        os.rename(old, temporary)
    fsync_folder(folder.parent)


@contextmanager
def only_updater(folder: Path) -> Iterator[None]:
    """Makes sure that nobody else updates the dataset `folder`.

    Raises:
        OutputConflict: Somebody does.
    """
    path = folder / PLAN
    if not path.exists():
        raise OutputConflict(f"{folder} is no indexed dataset: it has no {PLAN}. Leave out --update to make one")
    before = os.stat(path).st_ino
    with locked(path):
        if os.stat(path).st_ino != before:
            raise OutputConflict(f"{folder} has just been updated by somebody else. Run the command again")
        yield


def _remove_abandoned(folder: Path) -> None:
    """Removes what indexers left that were killed."""
    for path in folder.parent.glob(f".{folder.name}.tmp-*"):
        with suppress(OSError):
            if not os.listdir(path):
                path.rmdir()
            else:
                # Where there are no locks, nobody can tell.
                with Lock(path / PLAN, wait=False, flags=os.O_RDWR):
                    shutil.rmtree(path)
