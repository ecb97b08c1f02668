"""Chunks that could not be had, and when they are fetched again."""

from __future__ import annotations

import time
from typing import Final

from packtrain._core.errors import CorruptRecord

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_BELIEVED_SECONDS: Final = 60.0
"""How long a chunk is not fetched again, whoever asks for it, if its records were not what was packed two times."""


class Failures:
    """What failed in a cache.

    A chunk that nobody waits for is fetched again after a pause, which grows each time.
    """

    def __init__(self) -> None:
        self._pauses: Final = dict[int, tuple[float, float]]()
        """When a chunk may be tried again, and the pause after that."""
        self._corrupt: Final = dict[int, tuple[float, CorruptRecord]]()
        """Until when nobody tries again, and the error."""

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
        self._corrupt[chunk] = time.monotonic() + _BELIEVED_SECONDS if chunk in self._corrupt else 0.0, error

    def sound(self, chunk: int) -> None:
        """All records of a chunk are what was packed."""
        self._corrupt.pop(chunk, None)

    def believed(self, chunk: int) -> CorruptRecord | None:
        """What is wrong with a chunk that was wrong two times, for a while."""
        until, error = self._corrupt.get(chunk, (0.0, None))
        return error if time.monotonic() < until else None
