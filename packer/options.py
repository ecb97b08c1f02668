"""What a caller may choose when packing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from packtrain._core.errors import UsageError
from packtrain._core.files import MiB
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._readers.formats import container


@dataclass(frozen=True)
class PackOptions:
    """Options of one dataset; all of them are part of its plan, but for `root`.

    Attributes:
        format: Container: ``"tar"``, ``"hdf5"`` or ``"lmdb"``.
        store: How pixels are stored.
        labels: What follows the path on each line.
        classes: File with one class name per line, in label order, or None.
        root: Folder that relative paths start from; None: the list's own folder. Not part of the plan, so that nodes
            which mount the images at different places can share one.
        shard_bytes: Size that shards aim at.
        seed: Of the order in which records are placed; None keeps the list's order.
    """

    format: str = "tar"
    store: StoreOptions = field(default_factory=StoreOptions)
    labels: LabelSpec = field(default_factory=LabelSpec)
    classes: Path | None = None
    root: Path | None = None
    shard_bytes: int = 512 * MiB
    seed: int | None = 0

    def __post_init__(self) -> None:
        container(self.format)
        if self.shard_bytes < 1:
            raise UsageError(f"shard size {self.shard_bytes}: expected at least one byte")
        if self.classes is not None and str(self.labels) != "int":
            raise UsageError(f"class names belong to labels int, not {self.labels}")


def reject_limit(text: str, lines: int) -> int:
    """How many of `lines` lines may be refused under ``"0.1%"`` or ``"20"``.

    A percentage above zero allows at least one.

    Raises:
        UsageError: It is neither.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if not found or (not found[2] and "." in found[1]):
        raise UsageError(f"max rejects {text!r}: expected a percentage or a count, as 0.1% or 20")
    if not found[2]:
        return int(found[1])
    percent = float(found[1])
    return max(1, int(lines * percent / 100)) if percent > 0 else 0
