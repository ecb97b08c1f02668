"""File systems that paths are on."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NETWORK: Final = re.compile(
    "nfs4?|cifs|smb3|smbfs|lustre|gpfs|beegfs|ceph|glusterfs|pvfs2|orangefs|panfs|wekafs|afs|9p|virtiofs|fuse.*"
)
IN_MEMORY: Final = frozenset(["tmpfs", "ramfs", "devtmpfs"])
"""Types of file systems that keep their files in memory."""


@dataclass(frozen=True)
class Mount:
    """A line of ``/proc/PID/mountinfo``.

    Attributes:
        id: Number of the mount.
        parent: Number of the mount that this one is mounted on.
        device: Device number of the file system, ``"major:minor"``.
        root: Folder of the file system that is mounted; ``"/"`` for all of it.
        point: Mount point.
        kind: Type of the file system, as the kernel names it (for example ``"ext4"``).
        options: Options of the mount and of the file system.
    """

    id: int
    parent: int
    device: str
    root: Path
    point: Path
    kind: str
    options: frozenset[str]


def read_mounts(process: str | int = "self", holding: Path | None = None) -> list[Mount]:
    """The mounts that a process sees, of those that hold a path if one is given; empty if they cannot be read."""
    try:
        text = Path(f"/proc/{process}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return parse_mounts(text, holding)


def parse_mounts(text: str, holding: Path | None = None) -> list[Mount]:
    """Parses the lines of a ``mountinfo`` file, described in proc_pid_mountinfo(5); see `read_mounts`."""
    mounts, path = [], f"{holding}/"
    for line in text.split("\n"):
        # Lines of any other form are skipped.
        with suppress(ValueError):
            before, _, after = line.partition(" - ")
            number, parent, device, root, point, options, *_ = before.split(" ")
            kind, _, more = after.split(" ", 2)
            point = _unescaped(point)
            # A container has dozens, which take longer to make than a dataset takes to open.
            if holding is not None and not path.startswith(f"{point.rstrip('/')}/"):
                continue
            both = frozenset(f"{options},{more}".split(","))
            mounts.append(Mount(int(number), int(parent), device, Path(_unescaped(root)), Path(point), kind, both))
    return mounts


def mount_of(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that holds an absolute path without symbolic links, found the way the kernel walks the path.

    Device numbers are not used, because on btrfs `stat` and mountinfo give different ones.
    """
    numbers = {mount.id for mount in mounts}
    level = [mount for mount in mounts if mount.parent not in numbers or mount.parent == mount.id]
    found = None
    while reached := [mount for mount in level if path.is_relative_to(mount.point)]:
        found = min(reached, key=lambda mount: len(mount.point.parts))
        level = [mount for mount in mounts if mount.parent == found.id and mount is not found]
    return found


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`, as the kernel names it (for example ``"ext4"``), or ``"unknown"``."""
    try:
        # Triggers an automount.
        os.stat(path)
        whole = path.resolve()
        mount = mount_of(whole, read_mounts(holding=whole))
    except OSError:
        return "unknown"
    return mount.kind if mount else "unknown"


def is_network(path: Path) -> bool:
    """Return True if `path` is on a network file system, where mapped reads end in SIGBUS if the server fails."""
    return _NETWORK.fullmatch(file_system(path)) is not None


def _unescaped(text: str) -> str:
    """Decodes spaces, tabs, newlines and backslashes, which mountinfo writes as octal numbers."""
    if "\\" in text:
        text = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
    return text
