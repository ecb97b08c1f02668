"""An open folder, in which everything is addressed by name through the folder's descriptor.

So nobody can make staging work in another folder by putting that, or a link to it, in the place of one that was
checked. Links are never followed. `Folder.remove` is the only function of staging that deletes.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Final, Self

from packtrain._core.files import temporary_path, write_file
from packtrain._core.opening import closing_descriptor, read_regular

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A FIFO or a device must not be waited for.
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_LINKS: Final = 40
"""As many as the kernel follows in a path."""


class Folder:
    """An open folder. Names in it are plain, or have one subfolder in front, as in ``index/line.npy``.

    Args:
        path: Where the folder was opened; only for messages, and for the system's answers about the file system.
        descriptor: Descriptor of the folder. It is closed with this object.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, path: Path, *, follow: bool = True) -> Self:
        """Opens a folder by its path; with `follow`, the last part of the path may be a link."""
        return cls(path, os.open(path, _FOLDER if follow else _FOLDER | os.O_NOFOLLOW))

    @classmethod
    def walk_to(cls, path: Path, check: Callable[[Path, os.stat_result], None]) -> Self:
        """Opens a folder part by part, after calling `check` with each folder and link on the way, and with the last.

        Each part is looked up in the folder that was checked, so none can be exchanged after its check.

        Raises:
            OSError: There is no such folder, or it cannot be opened.
        """
        # Without the right to list them: a folder on the way may only let pass.
        passing = _FOLDER | os.O_PATH | os.O_NOFOLLOW
        here, where, links = os.open("/", passing), Path("/"), 0
        rest = list(reversed(path.parts[1:]))
        try:
            check(where, os.fstat(here))
            while rest:
                name = rest.pop()
                status = os.lstat(name, dir_fd=here)
                if not stat.S_ISLNK(status.st_mode):
                    there, where = os.open(name, passing, dir_fd=here), where.parent if name == ".." else where / name
                else:
                    check(where / name, status)
                    if (links := links + 1) > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = Path(os.readlink(name, dir_fd=here))
                    rest += reversed(target.parts[target.is_absolute() :])
                    there = os.open("/" if target.is_absolute() else ".", passing, dir_fd=here)
                    where = Path("/") if target.is_absolute() else where
                os.close(here)
                here = there
                check(where, os.fstat(here))
            return cls(path, os.open(".", _FOLDER, dir_fd=here))
        finally:
            os.close(here)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def folder(self, name: str, *, make: bool = False) -> Folder:
        """Opens a subfolder, and with `make` creates it if it is missing. Only its owner may use a new one."""
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._descriptor)
        return Folder(self.path / name, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor))

    def own_folder(self, name: str) -> Folder:
        """Opens a subfolder of this user, which replaces whatever else has this name."""
        if not self.has_own_folder(name):
            self.remove(name)
        return self.folder(name, make=True)

    def names(self) -> list[str]:
        """The sorted names of all that is in this folder."""
        # Opened once more, because a descriptor has one position for all processes that share it.
        with closing_descriptor(os.open(".", _FOLDER, dir_fd=self._descriptor)) as descriptor:
            return sorted(os.listdir(descriptor))

    def status(self, name: str) -> os.stat_result | None:
        """The status of a file, a folder or a link itself; None if there is nothing."""
        try:
            with self._parent(name) as (parent, last):
                return os.lstat(last, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def file_status(self, name: str, size: int) -> os.stat_result | None:
        """The status of a regular file of this size; None if there is no such file."""
        status = self.status(name)
        return status if status and stat.S_ISREG(status.st_mode) and status.st_size == size else None

    def has_own_folder(self, name: str) -> bool:
        """True if `name` is a folder of this user, not a link to one."""
        status = self.status(name)
        return status is not None and stat.S_ISDIR(status.st_mode) and is_own(status)

    def has_own_file(self, name: str) -> bool:
        """True if `name` is a file of this user that has no second name, by which it could be somebody's data."""
        status = self.status(name)
        return status is not None and is_own_file(status)

    def open_file(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Opens a file, like `os.open`."""
        with self._parent(name) as (parent, last):
            return os.open(last, flags | _FILE, mode, dir_fd=parent)

    def create(self, name: str) -> bool:
        """Makes sure that there is a file of this user, which may be written. Returns True if it is new.

        What is not such a file loses this name: a link, a FIFO, a file with other names.
        """
        if new := not self.has_own_file(name):
            self.remove(name)
        with closing_descriptor(self.open_file(name, os.O_RDONLY | os.O_CREAT)) as descriptor:
            os.fchmod(descriptor, 0o600)
        return new

    def read(self, name: str, most: int) -> bytes:
        """Reads a regular file of at most `most` bytes."""
        with self._parent(name) as (parent, last):
            return read_regular(last, most, dir_fd=parent, follow=False)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file durably and atomically; `name` is plain."""
        self._remove_folder(name)
        write_file(Path(name), [data], dir_fd=self._descriptor)

    def link(self, name: str, target: Path) -> None:
        """Makes `name` a symbolic link to `target`, atomically replacing what it was."""
        with self._parent(name) as (parent, last):
            temporary = temporary_path(Path(last))
            os.symlink(target, temporary, dir_fd=parent)
            os.rename(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)

    def link_target(self, name: str) -> Path | None:
        """Return the target of a symbolic link; None if `name` is not one."""
        with suppress(OSError), self._parent(name) as (parent, last):
            return Path(os.readlink(last, dir_fd=parent))
        return None

    def rename(self, name: str, to: Folder, new: str) -> None:
        """Renames a file or folder to `new` in the folder `to`."""
        to._remove_folder(new)
        with self._parent(name) as (here, last), to._parent(new) as (there, final):
            os.rename(last, final, src_dir_fd=here, dst_dir_fd=there)

    def remove(self, name: str) -> None:
        """Deletes a file, a link, or a folder with all that is in it; does nothing if there is nothing."""
        status = self.status(name)
        if status is None:
            return
        with self._parent(name) as (parent, last), suppress(FileNotFoundError):
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(last, dir_fd=parent)
            else:
                os.unlink(last, dir_fd=parent)

    def _remove_folder(self, name: str) -> None:
        """Removes a folder from where a file belongs: a file can be renamed over another one, but not over that."""
        status = self.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.remove(name)

    def sync(self) -> None:
        """Makes renames and removals in this folder durable."""
        os.fsync(self._descriptor)

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """Descriptor of the folder that `name` is in, and its plain name there."""
        subfolder, _, last = name.rpartition("/")
        if not subfolder:
            yield self._descriptor, last
            return
        with closing_descriptor(os.open(subfolder, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor)) as descriptor:
            yield descriptor, last


def is_own(status: os.stat_result) -> bool:
    """True if it belongs to this user."""
    return status.st_uid == os.geteuid()


def why_unsafe(path: Path, status: os.stat_result, elsewhere: str) -> str | None:
    """Say why others can put something else in the place of what a folder or a link leads to; None if they cannot.

    Args:
        path: The folder or link.
        status: Its status.
        elsewhere: What to do if the path cannot be made safe.
    """
    typed = quote(str(path))
    if status.st_uid not in (0, os.geteuid()) and not _may_be_root(status.st_uid):
        if stat.S_ISLNK(status.st_mode):
            return (
                f"{path} is a link that belongs to user {status.st_uid}, who can make it lead elsewhere: name the "
                f"folder itself, or {elsewhere}"
            )
        return (
            f"{path} belongs to user {status.st_uid}, who can put something else in its place: have an administrator "
            f"run `chown root {typed}`, or {elsewhere}, such as one of your own in /dev/shm"
        )
    if stat.S_ISDIR(status.st_mode) and others_write(status) and not status.st_mode & stat.S_ISVTX:
        return (
            f"other users may rename files in {path}: run `chmod +t {typed}` (or `chmod go-w {typed}`), or {elsewhere}"
        )
    return None


def others_write(status: os.stat_result) -> bool:
    """True if its mode lets other users write."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _may_be_root(user: int) -> bool:
    """True if this number stands for all users whom a container without root does not know, root among them."""
    try:
        nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
        spans = [map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return False
    # Users of the container may have this number, too: most containers have 65,536 of them.
    return user == nobody and not any(outside <= 0 < outside + count for _, outside, count in spans)


def is_own_file(status: os.stat_result) -> bool:
    """True if it is a regular file of this user without a second name."""
    return stat.S_ISREG(status.st_mode) and is_own(status) and status.st_nlink <= 1
