"""Opens files that somebody else may have made, without waiting and without reading more than is expected.

A dataset or a staging root can come from a stranger. A name in it may be a FIFO, whose opening would wait for a writer,
or a device that never ends. So every file that packtrain did not create itself in this run is opened here.
A file that the user names on the command line may be a pipe, for which `read_named` waits.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DESCRIPTORS: Final = ("/dev", "/dev/fd", "/proc/self/fd")


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Yields a descriptor, and closes it in the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: str | Path, *, dir_fd: int | None = None, follow: bool = True, below: Path | None = None) -> int:
    """Opens a regular file for reading. Returns its descriptor, which is not inherited by programs that are started.

    Args:
        path: Path of the file.
        dir_fd: Descriptor of the folder that a relative `path` is in; None: the working folder.
        follow: False to refuse a symbolic link as the last part of `path`.
        below: Folder that `path` begins with, to refuse a symbolic link as any part after it.

    Raises:
        OSError: The file cannot be opened. The error has errno ``EISDIR`` for a folder, ``ELOOP`` for a link that is
            not to be followed, and ``EINVAL`` for any other file that is not regular.
    """
    if below is not None:
        with closing_descriptor(open_folder(Path(path).parent, below)) as folder:
            return open_regular(Path(path).name, dir_fd=folder, follow=False)
    # Without O_NONBLOCK, opening a FIFO would wait for ever. It changes nothing about regular files.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _not_regular(path, "a socket or a device") from error
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(path))
        if not stat.S_ISREG(mode):
            raise _not_regular(path, "a FIFO" if stat.S_ISFIFO(mode) else "a device")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_folder(path: Path, below: Path) -> int:
    """Opens a folder, and refuses a symbolic link as any part of `path` after `below`. Returns its descriptor.

    Raises:
        OSError: It cannot be opened. The error has errno ``ELOOP`` for a link.
    """
    descriptor = os.open(below, _FOLDER)
    for part in path.relative_to(below).parts:
        try:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
        except NotADirectoryError as error:
            # The kernel says the same of a link.
            if stat.S_ISLNK(os.lstat(part, dir_fd=descriptor).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from error
            raise
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def names_in(path: Path, below: Path) -> list[str]:
    """Returns the sorted names in a folder, which is opened by `open_folder`."""
    with closing_descriptor(open_folder(path, below)) as folder:
        return sorted(os.listdir(folder))


def read_regular(
    path: str | Path, most: int, *, dir_fd: int | None = None, follow: bool = True, below: Path | None = None
) -> bytes:
    """Reads a whole regular file of at most `most` bytes.

    Raises:
        OSError: The file cannot be opened, see `open_regular`, or cannot be read. The error has errno ``EFBIG`` if the
            file is larger.
    """
    descriptor = open_regular(path, dir_fd=dir_fd, follow=follow, below=below)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return _read(file, path, most)


def read_named(path: Path, most: int) -> bytes:
    """Reads a whole file of at most `most` bytes that the user names. It may be a pipe, which can be read only once.

    Raises:
        OSError: As for `read_regular`.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return read_regular(path, most)
    # A pipe that has no writer yet is waited for, as by any program that reads one.
    with path.open("rb", buffering=0) as file:
        return _read(file, path, most)


def _read(file: FileIO, path: str | Path, most: int) -> bytes:
    pieces, left = [], most + 1
    # The size that fstat tells is not asked for: the file may grow while it is read.
    while left and (piece := file.read(min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", os.fspath(path))
    return b"".join(pieces)


def is_stream(path: Path) -> bool:
    """Returns True for a pipe or a descriptor, whose name and folder say nothing.

    Raises:
        OSError: There is no such file.
    """
    return stat.S_ISFIFO(path.stat().st_mode) or str(path.parent) in _DESCRIPTORS


def _not_regular(path: str | Path, what: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {what}, not a regular file", os.fspath(path))
