"""Plans and notes made without images: what a pack has done so far, written down by hand."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from packtrain import PackOptions
from packtrain._core.manifest import FileInfo, ShardInfo
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._packer.columns import ShardColumns
from packtrain._packer.listing import ListedSample, Listing, Reject
from packtrain._packer.lists.image_list import ImageList
from packtrain._packer.notes import ListFacts, NoteFacts, ShardNote
from packtrain._packer.plan import Plan
from packtrain._packer.planning import outline_plan, plan_shards
from packtrain.reports import PackProgress

TWO_A_SHARD = PackOptions(store=StoreOptions("raw", resize="8x8"), shard_size=2 * 8 * 8 * 3)
"""Records of one size, two in each shard, whatever the sizes of the files."""
RECORD_BYTES = 2 * 2 * 3
"""Size of every record: raw pixels of 2 x 2, so that plans need no file."""


def image_list(count: int, *, labels: str = "int") -> ImageList:
    """A list of `count` lines, line n with label 7 * n (or 7 * n and -n, or none)."""
    spec = LabelSpec.parse(labels)
    lines = (" ".join([f"folder/{n}.jpg", *map(str, (7 * n, -n)[: spec.fields])]) for n in range(count))
    return ImageList("\n".join(lines).encode(), spec, name="set", root=Path("/nowhere"))


def plan_of(images: ImageList, per_shard: int, *, seed: int | None = 0, format: str = "tar") -> Plan:
    """A plan of at most `per_shard` records in each shard."""
    store = StoreOptions("raw", resize="2x2")
    options = PackOptions(format, store, images.labels, shard_size=per_shard * RECORD_BYTES, seed=seed)
    return plan_shards(outline_plan(images, options), images)


class Stopped(Exception):
    """Raised by a test to stop a run."""


def stop_after(lines: int) -> Callable[[PackProgress], None]:
    """Stops a run when it has done so many lines more than earlier runs."""

    def stop(progress: PackProgress) -> None:
        if progress.done - progress.resumed >= lines:
            raise Stopped

    return stop


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one example of a property, in memory where there is some: every file is fsynced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Stored:
    """The place of a line's record, by the notes that `write_shards` left.

    Attributes:
        shard: Number of the shard.
        values: By column of the note: ``offset``, ``length``, ``crc32c``, ``width``, ``height`` and ``orientation``.
    """

    shard: int
    values: dict[str, int]


def write_shards(folder: Path, plan: Plan, images: ImageList, refused: Collection[int] = ()) -> dict[int, Stored]:
    """Writes a file of random bytes and a note for every shard, as `pack_shard` would.

    Args:
        folder: The dataset's folder.
        plan: Its plan.
        images: The list.
        refused: Lines that are rejects.

    Returns:
        The records by line, in the order of their places.
    """
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    records: dict[int, Stored] = {}
    listed = ListFacts(images.duplicates, tuple(images.rejects))
    for number in range(len(plan.shards)):
        random = np.random.default_rng(number)
        lines: list[int] = []
        rows: list[tuple[tuple[int, ...]]] = []
        labels: list[Any] = []
        rejects: list[Reject] = []
        for entry in images.entries(plan.ordinals(number)):
            if entry.line in refused:
                rejects.append(Reject(entry.line, entry.path, "empty file"))
                continue
            values = {
                "offset": 512 + len(rows) * RECORD_BYTES,
                "length": RECORD_BYTES,
                "crc32c": int(random.integers(1 << 32)),
                "width": int(random.integers(1, 1 << 16)),
                "height": int(random.integers(1, 1 << 16)),
                "orientation": int(random.integers(1, 9)),
            }
            records[entry.line] = Stored(number, values)
            lines.append(entry.line)
            rows.append((tuple(values.values()),))
            labels.append(entry.label)
        files = []
        name = plan.shards[number].name
        for file in (name, Path(name).with_suffix(".idx").name):
            data = random.bytes(50 + number)
            (folder / file).write_bytes(data)
            files.append(FileInfo(file, len(data), crc32c(data)))
        shard = ShardInfo(name, files[0].bytes, files[0].crc32c, len(rows), (files[1],))
        facts = NoteFacts(plan.sha256, shard, tuple(rejects), None if number else listed)
        paths = [f"folder/{line}.jpg".encode() for line in lines]
        ShardNote(facts, ShardColumns.of(plan.schema, lines, labels, rows, paths)).save(folder)
    return records


def with_lines(note: ShardNote, lines: Any) -> ShardNote:
    """The same note for other lines."""
    return replace(note, columns=replace(note.columns, arrays={**note.columns.arrays, "line": lines}))


def entries(listing: Listing) -> list[ListedSample]:
    """All entries of a list, in its order."""
    return list(listing.entries(np.arange(len(listing))))
