"""Which kind of file system a path lies on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_NETWORK: Final = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "pvfs2",
        "orangefs",
        "panfs",
        "wekafs",
        "afs",
        "9p",
        "virtiofs",
    ]
)


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`, as the kernel names it (``"ext4"``), or ``"unknown"``."""
    try:
        device = os.stat(path).st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return "unknown"
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"


def is_network(path: Path) -> bool:
    """Whether mapped reads of `path` could end in SIGBUS because a server or a link is gone."""
    kind = file_system(path)
    return kind in _NETWORK or kind.startswith("fuse")
