"""How many processor cores this process may really use."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that affinity and the cgroup's quota leave, at least 1.

    Args:
        cgroup: Where the process sees its own cgroup; a container sees it at the root. Version 2, else version 1.
    """
    cores = len(os.sched_getaffinity(0))
    for quota_file, period_file in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            text = (cgroup / quota_file).read_text()
            quota, period = text.split() if period_file is None else (text, (cgroup / period_file).read_text())
            if quota.strip() not in ("max", "-1"):
                return max(1, min(cores, int(quota) // int(period)))
        except (OSError, ValueError):
            continue
    return cores


def cores_per_rank() -> int:
    """This rank's share of the available cores, at least 1.

    torchrun says in ``LOCAL_WORLD_SIZE`` how many ranks run on this machine; without it there is one.
    """
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
