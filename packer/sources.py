"""Reads the files that a list names, and refuses those that cannot become records."""

from __future__ import annotations

import errno
import os
from typing import Final

from packtrain._core.opening import open_regular

_NO_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)
"""Errors by which `open_regular` says that there is no regular file of this name."""
LARGEST_FILE: Final = (1 << 31) - 1


class Refused(Exception):
    """A source file cannot become a record.

    The message says why. It ends up in rejects.jsonl, so it holds nothing that differs between runs.
    """


def read_source(path: str, *, may_be_empty: bool = False) -> bytes:
    """Reads a source file.

    Args:
        path: Path of the file.
        may_be_empty: True if an empty file is as good as any.

    Raises:
        Refused: The file is missing, too large, not a regular file, or empty where that may not be.
        OSError: Reading fails for another reason, which is not the fault of the file. The error names the file.
    """
    try:
        descriptor = open_regular(path)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise Refused(error.strerror or os.strerror(error.errno)) from error
        raise
    except ValueError as error:
        raise Refused("a path that holds a zero byte") from error
    try:
        status = os.fstat(descriptor)
        if status.st_size > LARGEST_FILE:
            raise Refused(f"larger than {LARGEST_FILE} bytes")
        data = os.read(descriptor, status.st_size + 1)
        if len(data) != status.st_size:
            pieces = [data]
            while pieces[-1]:
                pieces.append(os.read(descriptor, LARGEST_FILE))
            data = b"".join(pieces)
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(descriptor)
    return require_content(data, may_be_empty=may_be_empty)


def require_content(data: bytes, *, may_be_empty: bool) -> bytes:
    """Returns what a source file holds.

    Raises:
        Refused: It is empty where that may not be.
    """
    if not data and not may_be_empty:
        raise Refused("empty file")
    return data
