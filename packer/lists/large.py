"""A list that is too large to be kept in memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError
from packtrain._core.files import file_errors
from packtrain._core.opening import open_regular

LARGE: Final = 256 << 20
"""Bytes from which on a list is not kept in memory."""
_PIECE: Final = 4 << 20


class LargeText:
    """The content of a file, read where it is needed. It is sliced like bytes.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.fdopen(open_regular(path), "rb", buffering=0)
        self._state = self._now()

    def __del__(self) -> None:
        if "_file" in vars(self):
            self._file.close()

    def __len__(self) -> int:
        return self._state[0]

    def __getitem__(self, part: slice) -> bytes:
        """A part of the text, of step 1.

        Raises:
            ListError: The file has changed, or cannot be read.
        """
        start, stop, _ = part.indices(len(self))
        pieces = []
        with file_errors(self._path, ListError, verb="read the list"):
            while start < stop:
                pieces.append(os.pread(self._file.fileno(), min(_PIECE, stop - start), start))
                start += len(pieces[-1])
                if not pieces[-1]:
                    break
            if start < stop or self._now() != self._state:
                raise ListError(f"the list {self._path} was changed while it was being packed: run the same once more")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sha256(self) -> str:
        """SHA-256 of the text, in hexadecimal digits."""
        digest = hashlib.sha256()
        for start in range(0, len(self), _PIECE):
            digest.update(self[start : start + _PIECE])
        return digest.hexdigest()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns
