"""How much may still be staged in a folder, who limits that, and what can be done about it."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Self

from packtrain._core.memory import MemoryLeft, memory_left
from packtrain._core.mounts import IN_MEMORY, Mount, mount_of, read_mounts
from packtrain._core.sizes import size

GiB: Final = 1 << 30
_RESERVE: Final = 2 * GiB

Bound = Literal["budget", "file system", "memory", "cgroup"]


@dataclass(frozen=True)
class Room:
    """What can be added to a folder.

    Attributes:
        bytes: So many; less than 0 where more than there is was given away already.
        bound: What limits it.
        message: The figures and the next step; part of a sentence, to follow "DATASET takes 3 GiB, and ".
    """

    bytes: int
    bound: Bound
    message: str


@dataclass(frozen=True)
class Place:
    """What the system says of a folder.

    Attributes:
        folder: The folder.
        total: Bytes of its file system; 0 where that has no size of its own.
        free: Bytes of it that this user may still take.
        mount: The mount that it lies on, if that is known.
        memory: What limits this process's memory, if the folder lies in memory.
    """

    folder: Path
    total: int
    free: int
    mount: Mount | None
    memory: tuple[MemoryLeft, ...]

    @classmethod
    def look(cls, folder: Path, proc: Path = Path("/proc")) -> Self:
        """Asks the system about an existing folder.

        Raises:
            OSError: It does not exist or may not be looked at.
        """
        state = os.statvfs(folder)
        mount = mount_of(folder.resolve(), read_mounts())
        memory = memory_left(proc) if mount is not None and mount.kind in IN_MEMORY else ()
        return cls(folder, state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize, mount, tuple(memory))

    @property
    def point(self) -> Path:
        """Where its file system is mounted."""
        return self.mount.point if self.mount else self.folder

    @property
    def in_memory(self) -> bool:
        """Whether what is written there takes memory, and is charged to the cgroup of whoever writes it."""
        return self.mount is not None and self.mount.kind in IN_MEMORY

    def without(self, freed: int) -> Place:
        """What would be said if so many bytes were deleted there."""
        # They need not have counted for our groups: whoever wrote them first may have been in another.
        memory = (
            replace(left, bytes=left.bytes + (freed if left.cgroup is None else min(freed, left.shared)))
            for left in self.memory
        )
        return replace(self, free=self.free + freed, memory=tuple(memory))

    @property
    def reserve(self) -> int:
        """Bytes to leave free for a loader: a sixteenth of the file system, at most 2 GiB."""
        return min(_RESERVE, self.total // 16) if self.total else _RESERVE


def default_reserve(folder: Path) -> int:
    """Bytes to leave free in `folder` unless somebody says otherwise.

    A sixteenth of its file system, at most 2 GiB: enough for the shared memory of a loader (a few dozen batches) even
    where /dev/shm is small.
    """
    return Place.look(folder).reserve


def room(
    folder: Path,
    *,
    budget: int | None,
    used: int,
    promised: int,
    reserve: int | None,
    need: int = 0,
    freed: int = 0,
) -> Room:
    """How much can be added to what is staged in `folder`.

    Args:
        folder: An existing folder, the one that a user names.
        budget: Bytes that all entries together may take; None for as many as fit.
        used: Bytes that entries and unfinished copies take.
        promised: Bytes that copies under way will take beyond that.
        reserve: Bytes to leave free for others; None for `default_reserve`.
        need: Bytes that are to be added. It decides nothing, but the message tells what would be enough.
        freed: Bytes of entries that would be evicted first.

    Raises:
        OSError: There is no such folder.
    """
    place = Place.look(folder).without(freed)
    return room_in(place, budget=budget, used=used - freed, promised=promised, reserve=reserve, need=need)


def room_in(place: Place, *, budget: int | None, used: int, promised: int, reserve: int | None, need: int = 0) -> Room:
    """What `room` says of a place that was looked at before."""
    kept = place.reserve if reserve is None else reserve
    bounds = list(_outside(place, promised, kept, need))
    if budget is not None:
        bounds.append(_budget(place, budget, used + promised))
    return min(bounds, key=lambda bound: bound.bytes)


def remount(point: Path, need: int) -> str:
    """The command with which an administrator makes a tmpfs large enough for `need` bytes."""
    return f"mount -o remount,size={gibibytes(need)}G {shlex.quote(str(point))}"


def gibibytes(count: float) -> int:
    """So many GiB hold `count` bytes."""
    return max(1, math.ceil(count / GiB))


def _budget(place: Place, budget: int, taken: int) -> Room:
    left = budget - taken
    figures = f"the budget of {size(budget)} has {size(max(0, left))} left ({size(taken)} are staged or being copied)"
    return Room(left, "budget", f"{figures}: raise --budget, or make room ({_list(place)})")


def _outside(place: Place, promised: int, kept: int, need: int) -> Iterator[Room]:
    """What the system limits."""
    spoken_for = promised + kept
    promises = f", {size(promised)} promised to other copies" if promised else ""
    details = f"{size(kept)} are to stay free (--reserve){promises}"
    memory = min((left.bytes for left in place.memory), default=math.inf)
    # A file system without a size of its own, as a ramfs, says 0.
    free = place.free if place.total else 1 << 62
    figures = f"{place.folder} has {size(free)} free of {size(place.total)}; {details}"
    if not place.in_memory:
        step = f"make room there ({_list(place)}), or name another folder with --to"
    elif need + spoken_for <= memory:
        larger = place.total - place.free + spoken_for + need
        step = (
            f"make room there ({_list(place)}), have it made larger (administrator: `{remount(place.point, larger)}`; "
            f"container: --shm-size={gibibytes(larger)}g), or name a local disk with --to"
        )
    else:
        step = f"a larger one would not help, for {size(memory)} of memory are left: name a local disk with --to"
    yield Room(free - spoken_for, "file system", f"{figures}: {step}")
    for left in place.memory:
        yield _memory(place, left, spoken_for, details, need)


def _memory(place: Place, left: MemoryLeft, spoken_for: int, details: str, need: int) -> Room:
    count = left.bytes - spoken_for
    if left.cgroup is None:
        return Room(
            count,
            "memory",
            f"{place.folder} lies in memory, of which this machine has {size(left.bytes)} left; {details}: "
            f"make room there ({_list(place)}), or name a local disk with --to",
        )
    wanted = gibibytes(left.limit - left.bytes + spoken_for + need)
    more = f"--mem={wanted}G" if "slurm" in left.cgroup else f"Slurm --mem={wanted}G, Docker --memory={wanted}g"
    return Room(
        count,
        "cgroup",
        f"{place.folder} lies in memory, of which the limit of cgroup {left.cgroup} ({size(left.limit)}) leaves "
        f"{size(left.bytes)}; {details}: ask for more ({more}), or name a local disk with --to",
    )


def _list(place: Place) -> str:
    return f"`packtrain staged list --to {shlex.quote(str(place.folder))}`"
