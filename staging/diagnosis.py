"""What is odd about a place for staged data, in sentences that say what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from packtrain._core.mounts import Mount, mount_of, read_mounts
from packtrain._core.sizes import size

from .room import Place, remount


def warnings(folder: Path, source: Path, need: int) -> list[str]:
    """What a user should know before `need` bytes of the dataset `source` are copied into `folder`.

    Raises:
        OSError: One of the folders does not exist.
    """
    place = Place.look(folder)
    same = os.stat(folder).st_dev == os.stat(source).st_dev
    return [
        *private(folder.resolve(), read_mounts(), read_mounts(1), os.environ.get("SLURM_JOB_ID")),
        *too_small(place, source, need),
        *swapping(place, need, Path("/proc/meminfo").read_text()),
        *(nothing_gained(place, source) if same else ()),
    ]


def private(folder: Path, ours: Sequence[Mount], everyones: Sequence[Mount], job: str | None) -> Iterator[str]:
    """Whether others see something else at `folder`.

    Args:
        folder: An absolute path without symbolic links.
        ours: What this process has mounted.
        everyones: What the first process of the machine has mounted; none if that may not be known.
        job: Number of the Slurm job that this is.
    """
    here, there = _place(folder, ours), _place(folder, everyones)
    if here is None or there is None or here[1] == there[1]:
        return
    point = here[0].point if here[0].point != Path("/") else folder
    if job is not None:
        yield (
            f"{point} is private to Slurm job {job}: the copy is neither shared with other jobs nor kept. Name a "
            f"node-local disk with --to, or ask the administrator for Dirs= without {point} in job_container.conf"
        )
    else:
        yield (
            f"{point} is private to this container or service: the copy is not shared with other processes of this "
            "machine, and may end with it. Name a folder with --to that is mounted from outside"
        )


def too_small(place: Place, source: Path, need: int) -> Iterator[str]:
    """Whether the dataset would not fit into an empty tmpfs."""
    wanted = need + place.reserve
    if not place.in_memory or wanted <= place.total or not place.total:
        return
    memory = min((left.limit for left in place.memory), default=wanted)
    if wanted <= memory:
        step = f"an administrator makes it larger with `{remount(place.point, wanted)}`"
    else:
        step = f"as there are {size(memory)} of memory, name a local disk with --to"
    yield f"{place.point} is a tmpfs of {size(place.total)}, and {source} takes {size(need)}: {step}"


def swapping(place: Place, need: int, meminfo: str) -> Iterator[str]:
    """Whether a tmpfs may be swapped out, and probably will be."""
    table = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    swap, available = (int(table.get(name, "0").split()[0]) * 1024 for name in ("SwapTotal", "MemAvailable"))
    if place.in_memory and swap and place.mount and "noswap" not in place.mount.options and 2 * need > available:
        yield (
            f"this machine swaps ({size(swap)}), and {size(need)} of {size(available)} free memory are to be staged in "
            f"{place.point}: what is swapped out is read slowly. Leave memory free, or ask the administrator for a "
            "tmpfs mounted with noswap"
        )


def nothing_gained(place: Place, source: Path) -> Iterator[str]:
    """For a copy beside its source."""
    yield (
        f"{source} and {place.folder} lie on one file system: a copy there is read no faster. Name a faster place with "
        "--to, or read the dataset where it is"
    )


def _place(path: Path, mounts: Sequence[Mount]) -> tuple[Mount, tuple[str, Path]] | None:
    """The mount of a path, and which folder of which file system the path is."""
    mount = mount_of(path, mounts)
    return None if mount is None else (mount, (mount.device, mount.root / path.relative_to(mount.point)))
