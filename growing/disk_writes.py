"""Bytes that are written to a drive in a day. Flash endures a limited number, and a filler writes all day."""

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
    """Bytes written in one hour of the clock.

    Attributes:
        start_ns: Time of the first write, in nanoseconds since 1970.
        bytes: Number of bytes, in allocated blocks.
    """

    start_ns: Time
    bytes: Count


class DiskWrites:
    """Bytes written in the last 24 hours, kept by the hour."""

    def __init__(self, hours: Iterable[Hour] = ()) -> None:
        self._hours = {hour.start_ns // _HOUR_NS: hour for hour in hours}

    def add(self, count: int, now_ns: int) -> None:
        """Count bytes that were written, and forget what is older than a day."""
        number = now_ns // _HOUR_NS
        before = self._hours.get(number, Hour(now_ns, 0))
        self._hours[number] = Hour(before.start_ns, before.bytes + count)
        # A clock that was put back leaves hours of the future.
        self._hours = {each: hour for each, hour in self._hours.items() if number - 24 < each <= number}

    @property
    def hours(self) -> tuple[Hour, ...]:
        """The hours in which something was written, oldest first."""
        return tuple(self._hours[number] for number in sorted(self._hours))


def written_in_a_day(hours: Iterable[Hour], now_ns: int) -> tuple[int, int]:
    """Return the bytes written in the last 24 hours, and the bytes per day at the rate of the time that is known."""
    known = [hour for hour in hours if now_ns - hour.start_ns < _DAY_NS]
    if not known:
        return 0, 0
    total = sum(hour.bytes for hour in known)
    covered = max(_LEAST_NS, now_ns - min(hour.start_ns for hour in known))
    return total, total * _DAY_NS // covered


def drive_bytes(path: Path, sysfs: Path = Path("/sys")) -> int | None:
    """Return the size of the drive, or of all drives together, that hold a path; None if the system does not say.

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
    """Return the drives below a device, which may be a partition, a volume or an array."""
    drive = node.parent if (node / "partition").exists() else node
    below = drive / "slaves"
    parts = [each.resolve() for each in below.iterdir()] if below.is_dir() else []
    return {found for part in parts for found in _drives(part)} or {drive}
