"""The journal of a copy, from which an interrupted copy can continue."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from .pieces import Piece

_Key = tuple[str, int, int, int]


class Journal:
    """Records which pieces were copied, with their checksums: one line each, appended by a single write.

    The journal is not fsynced: a copy that continues from it first verifies the pieces it names. A line that is torn,
    damaged or about another file is ignored.

    Args:
        path: The journal file; created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._checksums = dict(_lines(path))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def __getitem__(self, piece: Piece) -> int | None:
        """crc32c of the piece as it was copied; None if the journal does not have it."""
        return self._checksums.get(_key(piece))

    def add(self, piece: Piece, checksum: int) -> None:
        """Records a copied piece."""
        # The leading newline keeps a torn line before this one from damaging it.
        os.write(self._descriptor, f"\n{json.dumps([*_key(piece), checksum])}\n".encode())


def _key(piece: Piece) -> _Key:
    return piece.file.name, piece.file.bytes, piece.offset, piece.length


def _lines(path: Path) -> Iterator[tuple[_Key, int]]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            name, bytes, offset, length, checksum = json.loads(line)
            yield (str(name), int(bytes), int(offset), int(length)), int(checksum)
        except (ValueError, TypeError):
            continue
