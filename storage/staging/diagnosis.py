"""Warnings about unsuitable places for staged data; each one says what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packtrain._core.mounts import Mount, mount_of, read_mounts
from packtrain._core.sizes import size

from ..location import Location
from .room import Place, remount

_STRAYS_NAMED: Final = 5


def warnings(folder: Path, source: Location, need: int) -> list[str]:
    """Warnings for the user before `need` bytes of the dataset `source` are copied into `folder`.

    Raises:
        OSError: `folder` or `source` does not exist.
    """
    place = Place.inspect(folder)
    same = isinstance(source, Path) and os.stat(folder).st_dev == os.stat(source).st_dev
    return [
        *private(folder.resolve(), read_mounts(), read_mounts(1), os.environ.get("SLURM_JOB_ID")),
        *too_small(place, source, need),
        *swapping(place, need, Path("/proc/meminfo").read_text()),
        *(nothing_gained(place, source) if same else ()),
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


def too_small(place: Place, source: Location, need: int) -> Iterator[str]:
    """Warns if the dataset would not fit even into an empty tmpfs."""
    wanted = need + place.reserve
    if not place.in_memory or wanted <= place.total or not place.total:
        return
    memory = min((left.limit for left in place.memory), default=wanted)
    if wanted <= memory:
        step = f"an administrator can enlarge it with `{remount(place.point, wanted)}`"
    else:
        step = f"there are only {size(memory)} of memory, so use a local disk (`to`)"
    yield f"{place.point} is a tmpfs of {size(place.total)}, and {source} takes {size(need)}: {step}"


def swapping(place: Place, need: int, meminfo: str) -> Iterator[str]:
    """Warns if a tmpfs may be swapped out and probably will be."""
    table = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    swap, available = (int(table.get(name, "0").split()[0]) * 1024 for name in ("SwapTotal", "MemAvailable"))
    if place.in_memory and swap and place.mount and "noswap" not in place.mount.options and 2 * need > available:
        yield (
            f"this machine has {size(swap)} of swap, and staging takes {size(need)} of {size(available)} free memory "
            f"in {place.point}: swapped-out data is slow to read. Leave more memory free, or ask the administrator to "
            "mount the tmpfs with noswap"
        )


def nothing_gained(place: Place, source: Location) -> Iterator[str]:
    """Warns that the copy is on the same file system as its source."""
    yield (
        f"{source} and {place.folder} are on the same file system, so the copy will not be faster to read. Use a "
        "faster folder (`to`), or read the dataset where it is"
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
