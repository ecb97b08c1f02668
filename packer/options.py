"""Options of packing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from packtrain._core.errors import UsageError
from packtrain._core.files import MiB
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._readers.formats import container

_USUAL_SHARD: Final = 512 * MiB
_SMALLEST_SHARD: Final = 16 * MiB
_MANY_SHARDS: Final = 64


@dataclass(frozen=True)
class PackOptions:
    """Options of a dataset. All of them except `root` and `allow_empty` decide its plan.

    Attributes:
        format: Container format: ``"tar"``, ``"hdf5"`` or ``"lmdb"``.
        store: How pixels are stored.
        labels: Type of the labels that follow the path on each line.
        label_names: True if the label on each line is the name of its class. Classes are numbered in the order of
            `classes`, or else in sorted order; so `labels` stays int.
        classes: File with one class name per line, in label order; None for a dataset without class names, or if an
            image folder or `label_names` gives them. Class folders are numbered in its order as well.
        root: Folder that relative paths start from; None for the folder of the list. It is not part of the plan, so
            that machines that mount the images at different paths can share one plan.
        shard_bytes: Target size of a shard in bytes. None for a size that depends on the amount of data only
            (`usual_shard_bytes`), or that of the plan if there is one already.
        seed: Seed that shuffles the order of the records; None keeps the order of the list.
        allow_empty: True if an image folder may have class folders without images, which are classes all the same.
    """

    format: str = "tar"
    store: StoreOptions = field(default_factory=StoreOptions)
    labels: LabelSpec = field(default_factory=LabelSpec)
    label_names: bool = field(default=False, kw_only=True)
    classes: Path | None = None
    root: Path | None = None
    shard_bytes: int | None = None
    seed: int | None = 0
    allow_empty: bool = False

    def __post_init__(self) -> None:
        container(self.format)
        if self.shard_bytes is not None and self.shard_bytes < 1:
            raise UsageError(f"shard size {self.shard_bytes}: expected at least one byte")
        if (self.label_names or self.classes is not None) and str(self.labels) != "int":
            raise UsageError(f"class names need labels int, not {self.labels}")


def usual_shard_bytes(total: int) -> int:
    """Returns the size that shards aim at, unless a size is asked for, for `total` bytes of records.

    As long as shards would be smaller than usual, there are 64 of them, so that all cores have work and several readers
    can share the dataset. But they are not so small that files cost more than what is in them.
    """
    return min(max(-(-total // _MANY_SHARDS), _SMALLEST_SHARD), _USUAL_SHARD)


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
