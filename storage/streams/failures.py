"""Chunks that could not be had, and when they are fetched again; and what a full file system leaves of a budget."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from packtrain._core.errors import CorruptRecord, NoRoom
from packtrain._core.sizes import size

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_BELIEVED_SECONDS: Final = 60.0
"""Seconds for which a chunk whose records were wrong twice is not fetched again for those who were there by then."""
_SHARED_SECONDS: Final = 1.0
"""Seconds for which a finding also holds for those who come later: workers of a job start at about the same time."""
_FULL_SECONDS: Final = 1.0
"""After so long, a full file system is tried again: where a quota is used up, only trying can tell."""


class _Corrupt(NamedTuple):
    """A chunk with wrong records: the error, when it was found, and until when nobody tries again."""

    error: CorruptRecord
    at: float
    until: float


class Failures:
    """Chunks that failed in a cache.

    A chunk that nobody waits for is fetched again after a pause, which grows each time.
    """

    def __init__(self) -> None:
        self._pauses: Final = dict[int, tuple[float, float]]()
        """When a chunk may be tried again, and the pause after that."""
        self._corrupt: Final = dict[int, _Corrupt]()

    def __bool__(self) -> bool:
        """True if some chunk has a pause."""
        return bool(self._pauses)

    def pause(self, chunk: int) -> None:
        """A chunk could not be fetched, or not be kept."""
        _, pause = self._pauses.get(chunk, (0.0, _FIRST_PAUSE))
        self._pauses[chunk] = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE)

    def end_pause(self, chunk: int) -> None:
        """A chunk is there, or somebody waits for it."""
        self._pauses.pop(chunk, None)

    def paused(self) -> set[int]:
        """The chunks that are not to be tried now."""
        now = time.monotonic()
        return {chunk for chunk, (until, _) in self._pauses.items() if until > now}

    def corrupt(self, chunk: int, error: CorruptRecord) -> None:
        """Records of a chunk are not what was packed."""
        # The first time it may have been on the way, so whoever asks next has it fetched again.
        now = time.monotonic()
        self._corrupt[chunk] = _Corrupt(error, now, now + _BELIEVED_SECONDS if chunk in self._corrupt else 0.0)

    def sound(self, chunk: int) -> None:
        """All records of a chunk are what was packed."""
        self._corrupt.pop(chunk, None)

    def outdated(self, chunk: int, since: float) -> bool:
        """True if somebody who came at `since` has reason to ask again: the object may have been mended before."""
        found = self._corrupt.get(chunk)
        return found is None or (found.at < since and time.monotonic() > found.at + _SHARED_SECONDS)

    def believed(self, chunk: int, since: float) -> CorruptRecord | None:
        """The error of a chunk that was wrong two times, for a while; None for whoever has to ask again."""
        found = self._corrupt.get(chunk)
        known = found is not None and time.monotonic() < found.until and not self.outdated(chunk, since)
        return found.error if found is not None and known else None


class Ceiling:
    """Limit on the bytes of all chunks since the file system was found to be full.

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
        self._until = time.monotonic() + _FULL_SECONDS
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
