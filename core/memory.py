"""The memory that this process can still use, and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .mounts import Mount, parse_mounts

# The page cache in a cgroup's `memory.stat`, for version 2 and 1. Pages of a tmpfs are not part of it: they are listed
# as anonymous memory, are charged to the cgroup of the process that touches them first, and cannot be reclaimed.
_CACHE: Final = {2: ("inactive_file", "active_file"), 1: ("total_inactive_file", "total_active_file")}
_SHARED: Final = {2: "shmem", 1: "total_shmem"}
_USAGE: Final = {2: "memory.current", 1: "memory.usage_in_bytes"}
# Beyond `memory.high` a cgroup is not killed, but is slowed down until it practically stands still.
_LIMITS: Final = {2: ("memory.max", "memory.high"), 1: ("memory.limit_in_bytes",)}


@dataclass(frozen=True)
class MemoryLeft:
    """Memory that one limit leaves: the machine's memory or a cgroup's limit.

    Attributes:
        bytes: Bytes that can still be used without swapping.
        limit: The cgroup's limit or the machine's total memory, in bytes.
        cgroup: Path of the cgroup that sets the limit; None for the machine.
        shared: Bytes in tmpfs files that are charged to the cgroup; 0 for the machine, where any tmpfs may count.
    """

    bytes: int
    limit: int
    cgroup: str | None = None
    shared: int = 0


def available_memory(proc: Path = Path("/proc")) -> float:
    """Bytes that this process can still use without swapping; infinity if nothing reports a limit.

    The kernel does not refuse to allocate more. Exceeding this gets the process killed.

    Args:
        proc: Mount point of procfs.
    """
    return min((left.bytes for left in memory_left(proc)), default=math.inf)


def memory_left(proc: Path = Path("/proc")) -> list[MemoryLeft]:
    """The memory left by each limit on this process: the machine, its cgroup, and every cgroup above that."""
    return [*_machine(proc / "meminfo"), *_groups(proc / "self")]


def _machine(meminfo: Path) -> Iterator[MemoryLeft]:
    table = _table(_text(meminfo))
    if table.keys() >= {"MemAvailable:", "MemTotal:"}:
        yield MemoryLeft(table["MemAvailable:"] * 1024, table["MemTotal:"] * 1024)


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
    """The cgroup at `path` of a hierarchy and those above it, as far as they are visible here."""
    # In a container, its cgroup is mounted as if it were the root, but the path may be the one outside.
    below = path.relative_to(mount.root) if path.is_relative_to(mount.root) and ".." not in path.parts else Path()
    for group in (below, *below.parents):
        folder = mount.point / group
        limits = [int(text) for name in _LIMITS[version] if (text := _text(folder / name)).isdecimal()]
        usage = _text(folder / _USAGE[version])
        if limits and usage.isdecimal():
            stat = _table(_text(folder / "memory.stat"))
            # The kernel drops page cache when memory is needed.
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
