"""Translation of an `OSError` to packtrain's own error, with advice.

`reading` is for files of a dataset that is being opened. Packing and staging use `files.file_errors`, which takes its
advice from here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .errors import CorruptFile, DatasetError, UnreadableFile

_NO_RIGHT: Final = "give this user the right to do so (`ls -ld` on the path shows who has it)"
_REMEDIES: Final = {
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: "this file system is mounted read-only: choose another folder, or mount it with the right to write",
    errno.ENOENT: "make sure that it exists and is mounted",
    errno.ENOTDIR: "a part of this path is a file, not a folder: correct the path, or remove the file",
    errno.ELOOP: "it is a symbolic link, or there is one in its path: put the file itself there",
    errno.EIO: "the disk or the network failed: `dmesg` may say why",
    errno.ESTALE: "the network file system has lost this file: mount it again, or open the dataset again",
    errno.ENOTCONN: "the network file system is not connected: mount it again",
    errno.EMFILE: "allow this process more open files (`ulimit -n`)",
    errno.ENFILE: "the whole machine has too many open files: stop other programs, or raise `sysctl fs.file-max`",
    errno.ENOMEM: "there is too little memory, or too many maps (`sysctl vm.max_map_count`)",
}
_NOT_AS_WRITTEN: Final = frozenset(
    [errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EFBIG, errno.ENAMETOOLONG]
)
"""Errors that say something about the dataset: a file is missing, is not a file, or is too large."""


def reason(error: OSError) -> str:
    """Return what went wrong and, where that is known, what to do about it."""
    what = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0)
    return what if remedy is None else f"{what}: {remedy}"


def way_out(error: OSError) -> str:
    """Return advice about a command that failed, a sentence without its full stop."""
    remedy = _REMEDIES.get(error.errno or 0, "remove this cause")
    return f"{remedy[0].upper()}{remedy[1:]}, then run the same command again"


def error_kind(error: OSError) -> type[DatasetError]:
    """The error that a failure to read a file of a dataset becomes."""
    return CorruptFile if error.errno in _NOT_AS_WRITTEN else UnreadableFile


@contextmanager
def reading(path: Path, *, file: str | None = None, missing: bool = True) -> Iterator[None]:
    """Turns an `OSError` from reading a file of a dataset into an error of packtrain's own.

    Args:
        path: The file.
        file: Its name for the error, relative to the dataset; None for its last part.
        missing: False to let `FileNotFoundError` and `NotADirectoryError` through.

    Raises:
        CorruptFile: The file is missing, is not a regular file, or is too large.
        UnreadableFile: It cannot be read for any other reason.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            if missing:
                raise CorruptFile(f"{path} is missing", file=file or path.name) from error
            raise
        raise error_kind(error)(f"{path} cannot be read: {reason(error)}", file=file or path.name) from error
