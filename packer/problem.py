"""Problems that `verify` finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packtrain._core.errors import UnreadableFile
from packtrain._core.files import checksum_file
from packtrain._core.manifest import FileInfo
from packtrain._core.problems import error_kind, reason


@dataclass(frozen=True)
class Problem:
    """Something that differs from what was written.

    Attributes:
        file: Name of the file, relative to the dataset.
        message: What is wrong.
        row: Row of the damaged record; None if it is not about one record.
        line: 0-based line of that record in the list; None if it is not about one record.
        unreadable: True if the file could not be read for a reason that is not its content, such as a missing right; it
            may be sound.
    """

    file: str
    message: str
    row: int | None = None
    line: int | None = None
    unreadable: bool = False


def check_file(folder: Path, info: FileInfo, name: str | None = None, path: Path | None = None) -> Iterator[Problem]:
    """Compares size and checksum of a file with what the manifest says.

    Args:
        folder: Folder of the dataset.
        info: What the manifest says about the file.
        name: Its name, relative to that folder; None for the name in `info`.
        path: Where it lies, if that is elsewhere.
    """
    name = name or info.name
    path = path or folder / name
    try:
        size = os.stat(path).st_size
        if size != info.bytes:
            yield Problem(name, f"has {size} bytes, {info.bytes} were written")
        elif (checksum := checksum_file(path)) != info.crc32c:
            yield Problem(name, other_bytes(checksum, info.crc32c))
    except OSError as error:
        yield Problem(name, f"cannot be read: {reason(error)}", unreadable=error_kind(error) is UnreadableFile)


def other_bytes(found: int, written: int) -> str:
    """Says that bytes have another crc32c than was written."""
    return f"its bytes are not those that were written (crc32c {found:08x} instead of {written:08x})"
