"""How much memory this process may really still take."""

from __future__ import annotations

import math
from pathlib import Path

# Files in a cgroup, version 2 and version 1: limit, usage, and what of the usage is page cache, in `memory.stat`.
_VERSIONS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that machine and cgroup leave without swapping; infinite where neither says.

    Who takes more is not refused by the kernel, but killed.

    Args:
        meminfo: What the machine says.
        cgroup: Where the process sees its own cgroup; a container sees it at the root.
    """
    return min(_machine(meminfo), *(_cgroup(cgroup, *files) for files in _VERSIONS))


def _machine(meminfo: Path) -> float:
    try:
        return _table(meminfo.read_text())["MemAvailable:"] * 1024
    except (OSError, ValueError, KeyError):
        return math.inf


def _cgroup(folder: Path, limit: str, usage: str, caches: tuple[str, ...]) -> float:
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return math.inf
        stat = _table((folder / limit).with_name("memory.stat").read_text())
        # Page cache makes room for whoever asks.
        used = int((folder / usage).read_text()) - sum(stat.get(name, 0) for name in caches)
        return max(0, int(most) - used)
    except (OSError, ValueError):
        return math.inf


def _table(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
