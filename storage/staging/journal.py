"""The journal of a copy, from which an interrupted copy can continue."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from packtrain._core.typed import is_count

from .folder import Folder
from .pieces import Piece

JOURNAL: Final = "journal"
_MOST_BYTES: Final = 256 << 20
"""A journal that is larger is not read: that of 30 TB."""
_Key = tuple[str, int, int, int]


@dataclass(frozen=True)
class Known:
    """What is known about a copied piece.

    Attributes:
        checksum: crc32c of the piece.
        stamp: Stamp of the source file from before the piece was read, see `stamp_of`.
    """

    checksum: int
    stamp: str


class Journal:
    """Records which pieces were copied, with their checksums: one line each, appended by a single write.

    The journal is not fsynced: a copy that continues from it first verifies the pieces it names. A line that is torn,
    damaged or about another file is ignored.

    Args:
        folder: Folder of the copy; the journal in it is created if it is missing.
    """

    def __init__(self, folder: Folder) -> None:
        folder.create(JOURNAL)
        self._known = dict(_lines(folder))
        self._descriptor = folder.open_file(JOURNAL, os.O_WRONLY | os.O_APPEND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def __getitem__(self, piece: Piece) -> Known | None:
        """What was noted when the piece was copied; None if the journal does not have it."""
        return self._known.get(_key(piece))

    def add(self, piece: Piece, known: Known) -> None:
        """Records a copied piece."""
        # The leading newline keeps a torn line before this one from damaging it.
        os.write(self._descriptor, f"\n{json.dumps([*_key(piece), known.checksum, known.stamp])}\n".encode())


def _key(piece: Piece) -> _Key:
    return piece.file.name, piece.file.bytes, piece.offset, piece.length


def _lines(folder: Folder) -> Iterator[tuple[_Key, Known]]:
    try:
        lines = folder.read(JOURNAL, _MOST_BYTES).splitlines()
    except OSError:
        # It only saves work. What cannot be read is copied again.
        return
    for line in lines:
        try:
            name, *numbers, stamp = json.loads(line)
            bytes, offset, length, checksum = numbers
        except (ValueError, TypeError, RecursionError):
            continue
        if all(map(is_count, numbers)) and isinstance(name, str) and isinstance(stamp, str):
            yield (name, bytes, offset, length), Known(checksum, stamp)
