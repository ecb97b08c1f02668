"""What a full file system leaves of a budget."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from packtrain._core.errors import NoRoom
from packtrain._core.sizes import size

_SECONDS: Final = 1.0
"""After so long, more is tried again: where a quota is used up, only trying can tell."""


class Ceiling:
    """How much the chunks of a cache may take since its file system was found to be full.

    Args:
        folder: Folder of the cache.

    Attributes:
        bytes: As much as they took then; None if the file system is not known to be full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self.bytes: int | None = None
        self._until = 0.0
        self._need: int | None = None

    def set(self, used: int, need: int) -> None:
        """The file system is full: chunks take `used` bytes, and there is no room for `need` more."""
        self.bytes = used
        self._until = time.monotonic() + _SECONDS
        # A disk that is full has room again when it says so.
        self._need = need if self.free() < need else None

    def lift(self) -> None:
        """Forgets it if there may be room again."""
        if self.bytes is not None and (time.monotonic() >= self._until or self._roomy()):
            self.bytes = None

    def free(self) -> int:
        """Bytes that are free on the file system."""
        state = os.statvfs(self._folder)
        return state.f_bavail * state.f_frsize

    def error(self, used: int, budget: int) -> NoRoom:
        """The error if that leaves no room for a chunk; the cache has `used` bytes of its budget."""
        return NoRoom(
            f"the file system of {self._folder} is full: {size(self.free())} are free, and the cache has {size(used)} "
            f"of its budget of {size(budget)}. Make room there, or open the dataset with a smaller budget; the cache "
            "goes on as soon as there is room"
        )

    def _roomy(self) -> bool:
        return self._need is not None and self.free() >= self._need
