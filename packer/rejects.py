"""Refused lines: the limit on their number, and rejects.jsonl."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Final

from crc32c import crc32c

from packtrain._core.errors import CorruptFile, TooManyRejects
from packtrain._core.files import write_file
from packtrain._core.manifest import REJECTS, FileInfo, Manifest
from packtrain._core.opening import read_regular
from packtrain._core.problems import reading
from packtrain._core.typed import Mismatch, parse_json

from .listing import Listing, Reject, where_looked

_MOST_REJECT_BYTES: Final = 1 << 30
_MEND: Final = (
    "Finished shards are kept. Mend the files and pack again with --retry-rejects, or allow more with --max-rejects. "
    "If the list changes, pack into another folder"
)


class RejectGuard:
    """Counts the refused lines of each shard and stops the run when there are too many.

    Args:
        limit: Number of lines that may be refused.
        lines: Number of lines in the list, for messages.
        images: The list, if it is at hand.
        advice: What to do if there are too many.

    Attributes:
        total: Number of lines refused so far.
    """

    def __init__(self, limit: int, lines: int, images: Listing | None = None, *, advice: str = _MEND) -> None:
        self._limit = limit
        self._lines = lines
        self._images = images
        self._advice = advice
        self._by_shard: dict[int, Sequence[Reject]] = {}
        self.total = 0

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
        self.total += len(rejects) - len(self._by_shard.get(shard, ()))
        self._by_shard[shard] = rejects
        if self.total <= self._limit:
            return
        found = sorted((item for items in self._by_shard.values() for item in items), key=lambda item: item.line)
        examples = "".join(f"\n  line {item.line}{_short(item.path)}: {item.reason}" for item in found[:5])
        kinds = Counter(item.reason.partition(":")[0] for item in found).most_common(3)
        summary = ", ".join(f"{count} x {kind}" for kind, count in kinds)
        images = self._images
        looked = (images and where_looked(images, item.path, item.reason) for item in found)
        where = "".join(f"\n{folder}." for folder in islice(filter(None, looked), 1))
        raise TooManyRejects(
            f"{self.total} of {self._lines} lines refused, {self._limit} allowed ({summary}).{examples}{where}\n"
            f"{self._advice}"
        )


def write_rejects(folder: Path, rejects: Sequence[Reject]) -> FileInfo:
    """Writes rejects.jsonl. Returns what the manifest has to say about it."""
    lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in rejects)
    data = "".join(lines).encode("utf-8", "backslashreplace")
    write_file(folder / REJECTS, [data])
    return FileInfo(REJECTS, len(data), crc32c(data))


def read_rejects(folder: Path, manifest: Manifest) -> list[Reject]:
    """Returns the refused lines of a finished dataset, in line order.

    Raises:
        CorruptFile: rejects.jsonl is missing or differs from what was written.
        UnreadableFile: It cannot be read.
    """
    path = folder / REJECTS
    with reading(path):
        data = read_regular(path, min(manifest.rejects_file.bytes, _MOST_REJECT_BYTES))
    if crc32c(data) != manifest.rejects_file.crc32c:
        raise CorruptFile(f"{path} is damaged: its checksum differs from the manifest's", file=REJECTS)
    rejects = []
    for number, line in enumerate(data.splitlines()):
        try:
            rejects.append(parse_json(Reject, line))
        except Mismatch as error:
            raise CorruptFile(f"{path} is damaged: line {number}: {error}", file=REJECTS) from error
    return rejects


def _short(path: str) -> str:
    """The path of a line behind its number; nothing if it has none."""
    # A file that is not a list at all may hold anything, even terminal control codes.
    text = path and f": {path!r}"
    return text if len(text) <= 122 else text[:119] + "..."
