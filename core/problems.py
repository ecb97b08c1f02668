"""What an `OSError` means: the error of packtrain's own that it becomes, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .errors import CorruptFile, DatasetError, UnreadableFile

_REMEDIES: Final = {
    errno.EMFILE: "this process has too many files open; allow more with `ulimit -n`",
    errno.ENFILE: "the machine has too many files open; allow more with `sysctl fs.file-max`",
    errno.EACCES: "its owner can give you access",
    errno.EPERM: "its owner can give you access",
    errno.EIO: "the disk or the network failed; `dmesg` may say why",
    errno.ESTALE: "it was replaced on the network file system meanwhile; open the dataset again",
    errno.ENOMEM: "there is too little memory, or too many maps (`sysctl vm.max_map_count`)",
}
_NOT_AS_WRITTEN: Final = frozenset(
    [errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EFBIG, errno.ENAMETOOLONG]
)
"""Errors that say something about the dataset: a file is missing, is not a file, or is too large."""


def reason(error: OSError) -> str:
    """What went wrong and, where that is known, what to do about it."""
    what = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0)
    return what if remedy is None else f"{what}: {remedy}"


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


def printable(text: str) -> str:
    """`text` without what could disturb a terminal: a dataset may hold names that a stranger chose."""
    return "".join(char if char.isprintable() else "?" for char in text)
