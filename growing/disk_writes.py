"""How much is written to a disk in a day: flash wears out by it, and a cache that is filled all day writes a lot."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.manifest import Count, Time

_SECOND_NS: Final = 10**9
_HOUR_NS: Final = 3600 * _SECOND_NS
_DAY_NS: Final = 24 * _HOUR_NS
# What a few seconds say about a day is worth nothing.
_LEAST_NS: Final = 60 * _SECOND_NS
_SECTOR: Final = 512


@dataclass(frozen=True)
class Hour:
    """What was written in one hour of the clock.

    Attributes:
        start_ns: When the first of it was counted, in nanoseconds since 1970.
        bytes: How much, in allocated blocks.
    """

    start_ns: Time
    bytes: Count


class DiskWrites:
    """Bytes written in the last 24 hours, kept by the hour.

    Args:
        hours: What was known before.
    """

    def __init__(self, hours: Iterable[Hour] = ()) -> None:
        self._hours = {hour.start_ns // _HOUR_NS: hour for hour in hours}

    def add(self, count: int, now_ns: int) -> None:
        """Counts bytes that were written, and forgets what is older than a day."""
        number = now_ns // _HOUR_NS
        before = self._hours.get(number, Hour(now_ns, 0))
        self._hours[number] = Hour(before.start_ns, before.bytes + count)
        # A clock that was put back leaves hours of the future.
        self._hours = {each: hour for each, hour in self._hours.items() if number - 24 < each <= number}

    @property
    def hours(self) -> tuple[Hour, ...]:
        """What is known, oldest first."""
        return tuple(self._hours[number] for number in sorted(self._hours))


def written_in_a_day(hours: Iterable[Hour], now_ns: int) -> tuple[int, int]:
    """Bytes written in the last 24 hours, and bytes per day at this rate: more, if less than a day is known."""
    known = [hour for hour in hours if now_ns - hour.start_ns < _DAY_NS]
    if not known:
        return 0, 0
    total = sum(hour.bytes for hour in known)
    covered = max(_LEAST_NS, now_ns - min(hour.start_ns for hour in known))
    return total, total * _DAY_NS // covered


def drive_bytes(path: Path, sysfs: Path = Path("/sys")) -> int | None:
    """Size of the drive that holds a path, of all of them together where there are several; None if nothing says so.

    A partition counts as its whole drive. A file system in memory has none.
    """
    try:
        device = os.stat(path).st_dev
        node = sysfs / "dev/block" / f"{os.major(device)}:{os.minor(device)}"
        sizes = [int((drive / "size").read_text()) for drive in _drives(node.resolve(strict=True))]
    except (OSError, ValueError):
        return None
    return sum(sizes) * _SECTOR or None


def _drives(node: Path) -> set[Path]:
    """The drives below a device: below a volume or an array, those that it is made of."""
    drive = node.parent if (node / "partition").exists() else node
    below = drive / "slaves"
    parts = [each.resolve() for each in below.iterdir()] if below.is_dir() else []
    return {found for part in parts for found in _drives(part)} or {drive}
