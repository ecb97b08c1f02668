"""The number of processor cores that this process can really use."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of cores that the CPU affinity and the cgroup's quota allow, at least 1.

    Args:
        cgroup: Folder of the process's own cgroup, which a container sees at the root. Version 2 is tried before 1.
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
