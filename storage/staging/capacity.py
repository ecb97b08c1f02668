"""Space for more copies in a folder: limits, ways to get more, and warnings about unsuitable folders."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Self

from packtrain._core.memory import MemoryLeft, memory_left
from packtrain._core.mounts import IN_MEMORY, Mount, mount_of, read_mounts
from packtrain._core.sizes import size

from ..location import Location

GiB: Final = 1 << 30
_RESERVE: Final = 2 * GiB
_STRAYS_NAMED: Final = 5
_NOTHING_GAINED: Final = (
    "{source} and {folder} are on the same file system, so the copy will not be faster to read. Use a faster folder "
    "(`to`), or read the dataset where it is"
)

Bound = Literal["budget", "file system", "memory", "cgroup"]


@dataclass(frozen=True)
class Capacity:
    """Space that can still be used in a folder.

    Attributes:
        bytes: Bytes that can be added; negative if more than the available space is already taken or promised.
        bound: The limit that is reached first.
        message: The figures and the next step, as a clause that follows "DATASET takes 3 GiB, but ".
    """

    bytes: int
    bound: Bound
    message: str


@dataclass(frozen=True)
class FileSystem:
    """The file system of a folder, as the operating system reports it.

    Attributes:
        folder: Path of the folder.
        total: Size of its file system in bytes; 0 if the file system has no size of its own.
        free: Free bytes that this user may take.
        mount: The mount that holds the folder; None if unknown.
        memory: The limits on this process's memory, if the folder is in memory; otherwise empty.
    """

    folder: Path
    total: int
    free: int
    mount: Mount | None
    memory: tuple[MemoryLeft, ...]

    @classmethod
    def inspect(cls, folder: Path, proc: Path = Path("/proc")) -> Self:
        """Collects what the system reports about an existing folder.

        Raises:
            OSError: The folder does not exist or is not accessible.
        """
        state = os.statvfs(folder)
        mount = mount_of(folder.resolve(), read_mounts())
        memory = memory_left(proc) if mount is not None and mount.kind in IN_MEMORY else ()
        return cls(folder, state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize, mount, tuple(memory))

    @property
    def point(self) -> Path:
        """Mount point of the file system, or the folder if that is unknown."""
        return self.mount.point if self.mount else self.folder

    @property
    def in_memory(self) -> bool:
        """True if files there take memory, which is charged to the cgroup of the process that writes them."""
        return self.mount is not None and self.mount.kind in IN_MEMORY

    def after_freeing(self, freed: int) -> FileSystem:
        """The system as it would be if `freed` bytes were deleted there."""
        # They are not necessarily charged to our cgroups: the process that wrote them may have been in another one.
        memory = (
            replace(left, bytes=left.bytes + (freed if left.cgroup is None else min(freed, left.shared)))
            for left in self.memory
        )
        return replace(self, free=self.free + freed, memory=tuple(memory))

    @property
    def reserve(self) -> int:
        """Bytes to leave free by default: a sixteenth of the file system, at most 2 GiB.

        That is enough for the shared memory of a loader (a few dozen batches), even if /dev/shm is small.
        """
        return min(_RESERVE, self.total // 16) if self.total else _RESERVE


def capacity(
    system: FileSystem,
    *,
    budget: int | None = None,
    used: int = 0,
    promised: int = 0,
    reserve: int | None = None,
    need: int = 0,
) -> Capacity:
    """Return how much more can be staged.

    Args:
        system: Where.
        budget: Maximum number of bytes for all entries together; None for no limit.
        used: Bytes that entries and unfinished copies take now.
        promised: Bytes that copies in progress will take in addition.
        reserve: Bytes to leave free for other programs; None for `FileSystem.reserve`.
        need: Bytes to be added. Only the message depends on it: it says how much would be enough.
    """
    kept_free = system.reserve if reserve is None else reserve
    bounds = list(_system_limits(system, promised, kept_free, need))
    if budget is not None:
        bounds.append(_budget(system, budget, used + promised))
    return min(bounds, key=lambda bound: bound.bytes)


def remount(point: Path, need: int) -> str:
    """The command with which an administrator enlarges a tmpfs to hold `need` bytes."""
    return f"mount -o remount,size={gibibytes(need)}G {shlex.quote(str(point))}"


def gibibytes(count: float) -> int:
    """`count` bytes in GiB, rounded up, at least 1."""
    return max(1, math.ceil(count / GiB))


def _budget(system: FileSystem, budget: int, taken: int) -> Capacity:
    left = budget - taken
    figures = f"the budget of {size(budget)} has only {size(max(0, left))} left ({size(taken)} staged or being copied)"
    return Capacity(left, "budget", f"{figures}: raise it (`budget`), or make room ({_list(system)})")


def _system_limits(system: FileSystem, promised: int, kept_free: int, need: int) -> Iterator[Capacity]:
    """The room that the file system, the machine's memory and each cgroup leave."""
    unavailable = promised + kept_free
    promises = f", {size(promised)} promised to other copies" if promised else ""
    details = f"{size(kept_free)} must stay free (`reserve`){promises}"
    memory = min((left.bytes for left in system.memory), default=math.inf)
    # A file system without a size of its own, such as a ramfs, reports 0.
    free = system.free if system.total else 1 << 62
    figures = f"{system.folder} has {size(free)} free of {size(system.total)}; {details}"
    if not system.in_memory:
        step = f"make room there ({_list(system)}), or use another folder (`to`)"
    elif need + unavailable <= memory:
        larger = system.total - system.free + unavailable + need
        step = (
            f"make room there ({_list(system)}), enlarge it (administrator: `{remount(system.point, larger)}`; "
            f"container: --shm-size={gibibytes(larger)}g), or use a local disk (`to`)"
        )
    else:
        step = f"enlarging it would not help, because only {size(memory)} of memory are left: use a local disk (`to`)"
    yield Capacity(free - unavailable, "file system", f"{figures}: {step}")
    for left in system.memory:
        yield _memory(system, left, unavailable, details, need)


def _memory(system: FileSystem, left: MemoryLeft, unavailable: int, details: str, need: int) -> Capacity:
    count = left.bytes - unavailable
    if left.cgroup is None:
        return Capacity(
            count,
            "memory",
            f"{system.folder} is in memory, and this machine has {size(left.bytes)} of memory left; {details}: "
            f"make room there ({_list(system)}), or use a local disk (`to`)",
        )
    wanted = gibibytes(left.limit - left.bytes + unavailable + need)
    more = f"--mem={wanted}G" if "slurm" in left.cgroup else f"Slurm --mem={wanted}G, Docker --memory={wanted}g"
    return Capacity(
        count,
        "cgroup",
        f"{system.folder} is in memory, and the limit of cgroup {left.cgroup} ({size(left.limit)}) leaves "
        f"{size(left.bytes)}; {details}: request more memory ({more}), or use a local disk (`to`)",
    )


def _list(system: FileSystem) -> str:
    return f"`packtrain staged list --to {shlex.quote(str(system.folder))}`"


def warnings(folder: Path, source: Location, need: int) -> list[str]:
    """Warnings for the user before `need` bytes of the dataset `source` are copied into `folder`.

    Raises:
        OSError: `folder` or `source` does not exist.
    """
    system, meminfo = FileSystem.inspect(folder), Path("/proc/meminfo")
    same = isinstance(source, Path) and os.stat(folder).st_dev == os.stat(source).st_dev
    return [
        *private(folder.resolve(), read_mounts(), read_mounts(1), os.environ.get("SLURM_JOB_ID")),
        *swapping(system, need, meminfo.read_text() if meminfo.exists() else ""),
        *([_NOTHING_GAINED.format(source=source, folder=folder)] if same else ()),
    ]


def private(folder: Path, ours: Sequence[Mount], everyones: Sequence[Mount], job: str | None) -> Iterator[str]:
    """Warns if other processes of the machine see a different file system at `folder`.

    Args:
        folder: An absolute path without symbolic links.
        ours: Mounts that this process sees.
        everyones: Mounts that the first process of the machine sees; empty if they cannot be read.
        job: Number of the Slurm job that this process belongs to; None outside Slurm.
    """
    here, there = _locate(folder, ours), _locate(folder, everyones)
    if here is None or there is None or here[1] == there[1]:
        return
    point = here[0].point if here[0].point != Path("/") else folder
    if job is not None:
        yield (
            f"{point} is private to Slurm job {job}: other jobs cannot use the copy, and it is deleted when the job "
            f"ends. Use a disk of the node (`to`), or ask the administrator to leave {point} out of Dirs= in "
            "job_container.conf"
        )
    else:
        yield (
            f"{point} is private to this container or service: other processes of this machine cannot use the copy, "
            "and it may be deleted when the container ends. Use a folder (`to`) that is mounted from the host"
        )


def swapping(system: FileSystem, need: int, meminfo: str) -> Iterator[str]:
    """Warns if a tmpfs may be swapped out and probably will be."""
    table = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    swap, available = (int(table.get(name, "0").split()[0]) * 1024 for name in ("SwapTotal", "MemAvailable"))
    if system.in_memory and swap and system.mount and "noswap" not in system.mount.options and 2 * need > available:
        yield (
            f"this machine has {size(swap)} of swap, and staging takes {size(need)} of {size(available)} free memory "
            f"in {system.point}: swapped-out data is slow to read. Leave more memory free, or ask the administrator to "
            "mount the tmpfs with noswap"
        )


def foreign(strays: Sequence[Path]) -> Iterator[str]:
    """Warns about what lies in a root but is not packtrain's."""
    if strays:
        more = f" and {len(strays) - _STRAYS_NAMED} more" if len(strays) > _STRAYS_NAMED else ""
        yield (
            f"packtrain did not put these into its folder, or cannot delete them, and leaves them alone: "
            f"{', '.join(map(str, strays[:_STRAYS_NAMED]))}{more}. Move or delete them"
        )


def _locate(path: Path, mounts: Sequence[Mount]) -> tuple[Mount, tuple[str, Path]] | None:
    """The mount that holds a path, and the path's location on its file system: device and folder."""
    mount = mount_of(path, mounts)
    return None if mount is None else (mount, (mount.device, mount.root / path.relative_to(mount.point)))
