"""The sides of the rows of a dataset that was split. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import CorruptFile, UsageError
from packtrain._core.version_files import SIDES
from packtrain._core.versions import NO_SIDE, Segment, Split, Version

from .kept import checked_column

Sides = npt.NDArray[np.uint8]


def not_split(name: str) -> UsageError:
    """The error for a dataset whose rows are on no side."""
    return UsageError(f"{name} is not split: `packtrain split {name} --val 10%` splits it")


def has_sides(version: Version, names: Sequence[str]) -> bool:
    """True if these are sides of a version, and the rows of each of its segments are on one."""
    split = version.split
    return (
        split is not None
        and set(names) <= set(split.names)
        and all(split.of(segment.name) is not None for segment in version.segments)
    )


def segment_sides(dataset: Path, split: Split | None, segment: Segment) -> Sides:
    """The number of the side of each row of a segment, uint8 [records], `NO_SIDE` where there is none.

    Raises:
        CorruptFile: The file of the sides is missing or damaged.
        UnreadableFile: It cannot be read.
    """
    file = None if split is None else split.of(segment.name)
    if split is None or file is None:
        return np.broadcast_to(np.uint8(NO_SIDE), segment.records)
    sides: Sides = checked_column(dataset, SIDES, file, "|u1", segment.records)
    if ((sides >= len(split.names)) & (sides != NO_SIDE)).any():
        name = f"{SIDES}/{file.name}.npy"
        raise CorruptFile(f"{dataset / name} is damaged: it has numbers that are no side's", file=name)
    return sides
