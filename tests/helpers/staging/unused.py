"""Staged copies that nobody uses, and budgets that they fit into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packtrain import StageOptions, stage
from packtrain.staging import entries, evict

SLACK = 40_960
"""Room for the files that exist only during a copy."""


def staged(source: str | Path, place: Path, **options: Any) -> Path:
    """Stages a dataset, and lets go of the copy at once."""
    result = stage(source, StageOptions(to=place, **options))
    result.lease.close()
    return result.path


def room_for(source: str | Path, place: Path, left_out: int = 0) -> int:
    """A budget that just holds a dataset, or the dataset without some of its shards; the place is empty again then."""
    path = staged(source, place)
    shard = max(file.stat().st_blocks * 512 for file in path.glob("*.tar"))
    (entry,) = evict(place)
    return entry.bytes + SLACK - left_out * shard


def budget_of(place: Path, count: int) -> int:
    """A budget for exactly `count` of the present entries, which all have nearly the same size."""
    return count * max(entry.bytes for entry in entries(place)) + SLACK


def writable_shard(dataset: Path) -> Path:
    """The third shard of a dataset, which may be damaged then."""
    path = sorted(dataset.glob("*.tar"))[2]
    path.chmod(0o644)
    return path
