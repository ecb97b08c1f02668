"""Notes of an interrupted copy, from which it can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from .pieces import Piece

_Key = tuple[str, int, int, int]


class Journal:
    """Which pieces were copied, with their checksums: a line each, appended by one write.

    Nothing is fsynced: who goes on from it sums what it names before trusting it. A line that was torn, that is damaged
    or that speaks of another file is as good as none.

    Args:
        path: The file; made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._sums = dict(_lines(path))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def __getitem__(self, piece: Piece) -> int | None:
        """crc32c of what was copied there, or None."""
        return self._sums.get(_key(piece))

    def add(self, piece: Piece, checksum: int) -> None:
        """Notes a copied piece."""
        # A newline on both sides, so that a torn line before it costs only itself.
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
