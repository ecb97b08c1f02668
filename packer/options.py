"""Options of packing."""

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
    """Options of a dataset. All of them except `root` are part of its plan.

    Attributes:
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``.
        store: How pixels are stored.
        labels: Type of the labels that follow the path on each line.
        classes: File with one class name per line, in label order; None for a dataset without class names.
        root: Folder that relative paths start from; None for the folder of the list. It is not part of the plan, so
            that machines that mount the images at different paths can share one plan.
        shard_bytes: Target size of a shard in bytes.
        seed: Seed that shuffles the order of the records; None keeps the order of the list.
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
            raise UsageError(f"class names need labels int, not {self.labels}")


def reject_limit(text: str, lines: int) -> int:
    """Returns how many of `lines` lines may be refused under a limit such as ``"0.1%"`` or ``"20"``.

    A percentage above zero allows at least one line.

    Raises:
        UsageError: `text` is neither a percentage nor a count.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if not found or (not found[2] and "." in found[1]):
        raise UsageError(f"max rejects {text!r}: expected a percentage or a count, such as 0.1% or 20")
    if not found[2]:
        return int(found[1])
    percent = float(found[1])
    return max(1, int(lines * percent / 100)) if percent > 0 else 0
