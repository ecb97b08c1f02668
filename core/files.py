"""Writes files that are either complete and on the medium, or not there.

A file is written under a temporary name in its own folder, fsynced, renamed, and the folder is fsynced. A crash leaves
at worst a temporary file, whose name says which file it was for (`remove_temporaries`). This cannot help against a disk
that lies about fsync.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from crc32c import crc32c

from .errors import CorruptFile, NoSpace, OutputConflict, PackError, PacktrainError
from .locks import Lock
from .opening import closing_descriptor, open_regular
from .problems import reading, way_out
from .processes import ProcessName

MiB: Final = 1 << 20
_TEMPORARY: Final = ".tmp-"
_KEPT_BYTES: Final = 180
"""Bytes of a file's name in that of its temporary: file systems allow 255 bytes, and a process takes up to 62."""
_MAKE_ROOM: Final = "make room"
NO_LOCKS: Final = frozenset([errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
"""Errors by which a file system says that it has no locks."""
_NO_COPY: Final = frozenset([errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
"""Errors by which a file system says that it cannot copy by itself."""
FULL: Final = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
"""Errors by which a file system says that there is no room left: at all, for this user, or in this file."""


def temporary_path(final: Path, owner: ProcessName | None = None) -> Path:
    """Returns a new name in the folder of `final`; unique, so that two writers never share a temporary file.

    Args:
        final: The name that the file will have.
        owner: Process that writes the file, if others are to know; see `remove_abandoned`.
    """
    by = "" if owner is None else f"{owner}-"
    return final.with_name(f".{_kept(final.name)}{_TEMPORARY}{by}{uuid.uuid4().hex[:12]}")


def _kept(name: str) -> str:
    """The end of a long name, where the numbers of shards are."""
    data = os.fsencode(name)
    return name if len(data) <= _KEPT_BYTES else data[-_KEPT_BYTES:].decode(errors="ignore")


def temporaries_of(final: Path) -> Iterator[Path]:
    """The paths that `temporary_path` gave for `final`, whatever its name, and that are still there."""
    return final.parent.glob(f".{glob.escape(_kept(final.name))}{_TEMPORARY}*")


def is_temporary(path: Path) -> bool:
    """Returns True if `path` has the form that `temporary_path` gives."""
    return path.name.startswith(".") and _TEMPORARY in path.name


def remove_temporaries(folder: Path, name: str = "*") -> None:
    """Removes what crashed writers left in `folder`: of files called `name` (a glob), by default of any file."""
    for path in folder.glob(f".{_kept(name)}{_TEMPORARY}*"):
        path.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Like `remove_temporaries`, but leaves all files alone whose owner may still be at work, or is not known."""
    for path in folder.glob(f".*{_TEMPORARY}*-*"):
        owner = ProcessName.parse(path.name.rpartition(_TEMPORARY)[2].rpartition("-")[0])
        if owner is not None and owner.ended:
            path.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Makes renames and removals in `folder` durable."""
    fsync_file(folder)


def fsync_file(path: Path) -> None:
    """Makes the content of a file or a folder durable, whichever process wrote it."""
    with closing_descriptor(os.open(path, os.O_RDONLY)) as descriptor:
        os.fsync(descriptor)


def make_folder(folder: Path) -> None:
    """Makes a folder and its missing parents, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        fsync_folder(path.parent)


def publish(temporary: Path, final: Path) -> None:
    """Renames a complete, fsynced temporary file to its final name, durably."""
    os.rename(temporary, final)
    fsync_folder(final.parent)


def write_all(descriptor: int, buffers: Sequence[bytes | memoryview]) -> int:
    """Like `os.writev`, but continues after a short write. Returns the number of bytes written."""
    total = sum(len(buffer) for buffer in buffers)
    written = os.writev(descriptor, buffers)
    if written < total:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    return total


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Writes all of `data` to a file from `offset` on: a single `os.pwrite` may write less."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def write_file(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    exclusive: bool = False,
    durable: bool = True,
    mode: int = 0o666,
    dir_fd: int | None = None,
) -> None:
    """Writes a whole file atomically, and durably unless told otherwise.

    Args:
        path: Final name of the file.
        chunks: Content of the file, in pieces.
        exclusive: True to refuse, atomically, to replace an existing file.
        durable: False to leave it to somebody else to bring the file to the medium.
        mode: Mode of the file, of which the process's mask is taken away.
        dir_fd: Descriptor of the folder that the file is in; `path` is then its plain name.

    Raises:
        FileExistsError: `exclusive` is True and `path` exists.
    """
    temporary = temporary_path(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with closing_descriptor(os.open(temporary, flags, mode, dir_fd=dir_fd)) as descriptor:
            for chunk in chunks:
                write_all(descriptor, [chunk])
            if durable:
                os.fsync(descriptor)
        if exclusive:
            os.link(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            os.rename(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        if durable:
            fsync_folder(path.parent) if dir_fd is None else os.fsync(dir_fd)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=dir_fd)


def is_copy(path: Path, size: int, checksum: int) -> bool:
    """Returns True if a file of a dataset is there of which the manifest says so much."""
    return path.is_file() and path.stat().st_size == size and checksum_file(path) == checksum


def copy_file(source: Path, path: Path, size: int, checksum: int) -> None:
    """Copies a file of a dataset, of which the manifest says so much, unless the copy is there; atomically and durably.

    A file system that can share blocks shares them.

    Raises:
        CorruptFile: `source` is missing, or another file.
        UnreadableFile: It cannot be read.
    """
    if is_copy(path, size, checksum):
        return
    temporary = temporary_path(path)
    with reading(source):
        opened = os.fdopen(open_regular(source), "rb", buffering=0)
    try:
        with opened, open(temporary, "xb", buffering=0) as copy:
            left = size
            while left and (count := _copied(opened.fileno(), copy.fileno(), left)):
                left -= count
            os.fsync(copy.fileno())
        if left or checksum_file(temporary) != checksum:
            raise CorruptFile(f"{source} is damaged: it is not the file that the manifest names", file=source.name)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _copied(source: int, target: int, most: int) -> int:
    """Copies bytes from one file to another where these are; returns their number."""
    try:
        return os.copy_file_range(source, target, most)
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
    return os.sendfile(target, source, None, most)


def checksum_file(path: Path) -> int:
    """Returns the crc32c of a whole regular file, read in pieces small enough for the processor's cache."""
    checksum = 0
    buffer = bytearray(MiB)
    view = memoryview(buffer)
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum = crc32c(view[:count], checksum)
    return checksum


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Holds a kernel lock on an existing file, so that only one packer works in its folder, or only those that share.

    Where a file system has no locks, or keeps them to one machine, nobody is told of the others.

    Args:
        path: The file.
        shared: True for one of several that work in the folder together.

    Raises:
        OutputConflict: Another process holds the lock in a way that excludes this one.
    """
    lock: Lock | None = None
    try:
        lock = Lock(path, shared=shared, inherited=False, wait=False, flags=os.O_RDONLY if shared else os.O_RDWR)
    except BlockingIOError as error:
        raise OutputConflict(
            f"another packer is working in {path.parent}. Wait for it or stop it, then run the command again"
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    with lock or nullcontext():
        yield


@contextmanager
def file_errors(path: Path, otherwise: type[PacktrainError] = PackError, *, verb: str = "write to") -> Iterator[None]:
    """Turns an `OSError` into a packtrain error that names the path and the next step.

    Args:
        path: The file or folder that is used.
        otherwise: Error to raise if the file system is not full.
        verb: What could not be done with `path`, for the message.

    Raises:
        NoSpace: The file system is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            remedy = _MAKE_ROOM if error.errno != errno.EFBIG else "raise the limit of file sizes (`ulimit -f`)"
            raise no_space(path, f"{error.strerror}; {_free_space(path)} free", remedy) from error
        why = error.strerror or str(error)
        # A call with a descriptor names a number, or nothing.
        if isinstance(error.filename, str | bytes | os.PathLike) and Path(os.fsdecode(error.filename)) != path:
            why = f"{why} ({os.fsdecode(error.filename)})"
        raise otherwise(f"cannot {verb} {path}: {why}. {way_out(error)}") from error


def no_space(path: Path, why: str, remedy: str = _MAKE_ROOM) -> NoSpace:
    """The error for a full file system; `why` gives the figures."""
    return NoSpace(f"no space left for {path} ({why}). Finished work is kept: {remedy} and run the same command again")


def _free_space(path: Path) -> str:
    """Free space on the file system of a file or folder that may be missing, for people."""
    try:
        return f"{shutil.disk_usage(path if path.exists() else path.parent).free / MiB:,.0f} MiB"
    except OSError:
        return "an unknown amount"
