"""How much memory this process may really still take, and who limits it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .mounts import Mount, parse_mounts

# What counts as page cache in a group's `memory.stat`, in version 2 and 1. Pages of a tmpfs do not: they are listed as
# anonymous memory, are charged to the group of whoever touches them first, and nobody can take them back.
_CACHE: Final = {2: ("inactive_file", "active_file"), 1: ("total_inactive_file", "total_active_file")}
_SHARED: Final = {2: "shmem", 1: "total_shmem"}
_USAGE: Final = {2: "memory.current", 1: "memory.usage_in_bytes"}
# Beyond `memory.high` a group is not killed, but slowed down until it as good as stands still.
_LIMITS: Final = {2: ("memory.max", "memory.high"), 1: ("memory.limit_in_bytes",)}


@dataclass(frozen=True)
class MemoryLeft:
    """What one of those who limit memory leaves.

    Attributes:
        bytes: That can still be taken without swapping.
        limit: Bytes that there are at all.
        shared: Bytes in a tmpfs that count for it; of the machine all may, and none is said to.
        cgroup: Path of the control group that says so; None for the machine.
    """

    bytes: int
    limit: int
    cgroup: str | None = None
    shared: int = 0


def available_memory(proc: Path = Path("/proc")) -> float:
    """Bytes that machine and cgroups leave without swapping; infinite where nobody says.

    Who takes more is not refused by the kernel, but killed.

    Args:
        proc: Where the kernel says so.
    """
    return min((left.bytes for left in memory_left(proc)), default=math.inf)


def memory_left(proc: Path = Path("/proc")) -> list[MemoryLeft]:
    """What each leaves that limits this process's memory: the machine, its cgroup, and every group above that."""
    return [*_machine(proc / "meminfo"), *_groups(proc / "self")]


def _machine(meminfo: Path) -> Iterator[MemoryLeft]:
    try:
        table = _table(meminfo.read_text())
        yield MemoryLeft(table["MemAvailable:"] * 1024, table["MemTotal:"] * 1024)
    except (OSError, ValueError, KeyError):
        return


def _groups(process: Path) -> Iterator[MemoryLeft]:
    try:
        member = (process / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        mounts = parse_mounts((process / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return
    for line in member.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or "memory" in controllers.split(","):
            version = 2 if number == "0" else 1
            for mount in mounts:
                if mount.kind == "cgroup2" if version == 2 else mount.kind == "cgroup" and "memory" in mount.options:
                    yield from _chain(mount, Path(path), version)


def _chain(mount: Mount, path: Path, version: int) -> Iterator[MemoryLeft]:
    """The group at `path` of a hierarchy and those above it, as far as they are seen here."""
    # A container sees its group mounted as if it were the root, and may be told the path outside.
    below = path.relative_to(mount.root) if path.is_relative_to(mount.root) and ".." not in path.parts else Path()
    for group in (below, *below.parents):
        folder = mount.point / group
        limits = [int(text) for name in _LIMITS[version] if (text := _text(folder / name)).isdecimal()]
        usage = _text(folder / _USAGE[version])
        if limits and usage.isdecimal():
            stat = _table(_text(folder / "memory.stat"))
            # Page cache makes room for whoever asks.
            used = int(usage) - sum(stat.get(name, 0) for name in _CACHE[version])
            left, name = max(0, min(limits) - used), str(mount.root / group)
            yield MemoryLeft(left, min(limits), name, stat.get(_SHARED[version], 0))


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""


def _table(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
