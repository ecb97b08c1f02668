"""Which file system a path lies on."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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
IN_MEMORY: Final = frozenset(["tmpfs", "ramfs", "devtmpfs"])
"""Types of file systems whose files take memory."""


@dataclass(frozen=True)
class Mount:
    """A line of ``/proc/PID/mountinfo``.

    Attributes:
        id: Number of the mount.
        parent: Number of the one that it is mounted on.
        device: ``"major:minor"`` of the file system.
        root: Folder of that file system which is seen here; ``"/"`` for all of it.
        point: Where it is seen.
        kind: Type of the file system, as the kernel names it (``"ext4"``).
        options: Of the mount and of the file system.
    """

    id: int
    parent: int
    device: str
    root: Path
    point: Path
    kind: str
    options: frozenset[str]


def read_mounts(process: str | int = "self") -> list[Mount]:
    """The mounts that a process sees; none where it may not be asked."""
    try:
        text = Path(f"/proc/{process}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return parse_mounts(text)


def parse_mounts(text: str) -> list[Mount]:
    """The lines of a ``mountinfo`` file; see proc_pid_mountinfo(5)."""
    mounts = []
    for line in text.split("\n"):
        # A line that is no such line names no mount.
        with suppress(ValueError):
            before, _, after = line.partition(" - ")
            number, parent, device, root, point, options, *_ = before.split(" ")
            kind, _, more = after.split(" ", 2)
            both = frozenset(f"{options},{more}".split(","))
            mounts.append(Mount(int(number), int(parent), device, _unescaped(root), _unescaped(point), kind, both))
    return mounts


def mount_of(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without symbolic links lies on, found as the kernel walks the path.

    Not by the number of its device: on btrfs `stat` gives another one than mountinfo.
    """
    numbers = {mount.id for mount in mounts}
    level = [mount for mount in mounts if mount.parent not in numbers or mount.parent == mount.id]
    found = None
    while reached := [mount for mount in level if path.is_relative_to(mount.point)]:
        found = min(reached, key=lambda mount: len(mount.point.parts))
        level = [mount for mount in mounts if mount.parent == found.id and mount is not found]
    return found


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`, as the kernel names it (``"ext4"``), or ``"unknown"``."""
    try:
        # Mounts what an automounter would.
        os.stat(path)
        mount = mount_of(path.resolve(), read_mounts())
    except OSError:
        return "unknown"
    return mount.kind if mount else "unknown"


def is_network(path: Path) -> bool:
    """Whether mapped reads of `path` could end in SIGBUS because a server or a link is gone."""
    kind = file_system(path)
    return kind in _NETWORK or kind.startswith("fuse")


def _unescaped(text: str) -> Path:
    """Spaces, tabs, newlines and backslashes are written as octal numbers."""
    return Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text))
