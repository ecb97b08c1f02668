"""The limit on the number of refused lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from packtrain._core.errors import TooManyRejects

from .listing import Reject


class RejectGuard:
    """Counts the refused lines of each shard and stops the run when there are too many.

    Args:
        limit: Number of lines that may be refused.
        lines: Number of lines in the list, for messages.
    """

    def __init__(self, limit: int, lines: int) -> None:
        self._limit = limit
        self._lines = lines
        self._by_shard: dict[int, Sequence[Reject]] = {}

    @property
    def total(self) -> int:
        """Number of lines refused so far."""
        return sum(map(len, self._by_shard.values()))

    def accept(self, rejects: int) -> None:
        """Raises the limit to at least `rejects`.

        A finished dataset has had this many refused lines before, so no later run may fail because of them.
        """
        self._limit = max(self._limit, rejects)

    def count(self, shard: int, rejects: Sequence[Reject]) -> None:
        """Sets the refused lines of a shard so far.

        Raises:
            TooManyRejects: The limit is exceeded.
        """
        self._by_shard[shard] = rejects
        if self.total <= self._limit:
            return
        found = sorted((item for items in self._by_shard.values() for item in items), key=lambda item: item.line)
        examples = "".join(f"\n  line {item.line}: {_short(item.path)}: {item.reason}" for item in found[:5])
        kinds = Counter(item.reason.partition(":")[0] for item in found).most_common(3)
        summary = ", ".join(f"{count} x {kind}" for kind, count in kinds)
        raise TooManyRejects(
            f"{self.total} of {self._lines} lines refused, {self._limit} allowed ({summary}).{examples}\n"
            "Finished shards are kept. Mend the files and run again with --retry-rejects, or allow more with "
            "--max-rejects. If the list changes, pack into another folder"
        )


def _short(path: str) -> str:
    # A file that is not a list at all may hold anything, even terminal control codes.
    text = repr(path)
    return text if len(text) <= 120 else text[:117] + "..."
