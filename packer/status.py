"""The status of a packing, from what lies in its folder; no clock of any machine is asked."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packtrain._core.arguments import checks_names
from packtrain._core.files import file_errors
from packtrain._core.manifest import MANIFEST, Manifest
from packtrain._core.processes import ProcessName
from packtrain._storage.remote.urls import Url, place_of

from .finished import finished
from .foreign.scan_notes import scans_of
from .markers import FAILED, PACKED, PACKING, Marker
from .merge import plan_in
from .notes import PARTS, NoteFacts, read_facts
from .object_output import output_at
from .output import Output
from .parts import array_list
from .plan import Plan

MOST_TASKS: Final = 1000
"""The largest number of a task in an array, in Slurm as it comes (``MaxArraySize=1001``)."""
_READERS: Final = 16
_TIMED: Final = 256
"""The number of finished shards from which the time that is left is estimated."""


@dataclass(frozen=True)
class UnderWay:
    """A shard that somebody packs.

    Attributes:
        shard: Name of the shard.
        host: Name of the machine.
        process: Id of the process there.
        run: What the run calls itself, such as ``part 3/16`` or ``run without parts``.
        job: Number of the Slurm job, or None.
    """

    shard: str
    host: str
    process: int
    run: str
    job: str | None

    def __str__(self) -> str:
        job = "" if self.job is None else f", Slurm job {self.job}"
        return f"{self.shard}: {self.run} on {self.host}, process {self.process}{job}"


@dataclass(frozen=True)
class FailedShard:
    """A shard that could not be packed when it was last tried.

    Attributes:
        shard: Name of the shard.
        why: What was wrong.
        host: Name of the machine on which it failed.
        run: What the run calls itself, such as ``part 3/16``.
    """

    shard: str
    why: str
    host: str
    run: str

    def __str__(self) -> str:
        return f"{self.shard}: {self.run} on {self.host}: {self.why}"


@dataclass(frozen=True)
class PackStatus:
    """The status of a packing, or of a finished dataset.

    Attributes:
        dataset: Folder or address of the dataset.
        complete: True if it is finished: merged, so that it can be read, as far as it has not lost shards since.
        shards: Number of shards.
        done: Number of shards that are packed.
        under_way: Shards that somebody packs. A process of another machine may have ended without a word; one of this
            machine has not.
        failed: Shards that could not be packed.
        missing: Names of the other shards that are to be packed. They are not begun, or their process has ended; or the
            finished dataset has lost them.
        lines: Number of lines that are to be packed.
        lines_done: Number of lines in the shards that are done.
        rejects: Number of refused lines in these.
        seconds_left: Estimated time until all shards are packed, if as many are packed at the same time as now; None
            as long as no shard is finished or none is under way.
        part: What to give to ``--part`` in an array of these tasks: ``"auto/64"``.
        array: Tasks of a Slurm array, as for ``--array``, that pack what is failed or missing; empty if nothing is, or
            if the dataset is finished, which parts do not open again.
        array_under_way: Tasks that pack what is under way, should those processes have died; may share tasks with
            `array`.
    """

    dataset: Path | Url
    complete: bool
    shards: int
    done: int
    under_way: tuple[UnderWay, ...] = ()
    failed: tuple[FailedShard, ...] = ()
    missing: tuple[str, ...] = ()
    lines: int = 0
    lines_done: int = 0
    rejects: int = 0
    seconds_left: float | None = None
    part: str = ""
    array: str = ""
    array_under_way: str = ""


@checks_names()
def pack_status(out: str | os.PathLike[str]) -> PackStatus:
    """Return how far a packing is, or whether it is finished.

    It reads the folder and changes nothing, and so may be called at any time and on any machine.

    Args:
        out: Folder of the dataset, or its address in an object store.

    Raises:
        UsageError: `out` is no path.
        OutputConflict: Nothing was packed there.
        CorruptFile: The plan, or the manifest of a finished dataset, is damaged.
        UnreadableFile: The note of a shard cannot be read.
        PackError: The folder cannot be read.
    """
    place = place_of("out", out)
    if (scans := scans_of(place)) is not None:
        shards, unread = scans
        return PackStatus(
            place,
            complete=False,
            shards=len(shards),
            done=len(shards) - len(unread),
            missing=tuple(shards[number] for number in unread),
            part=_part(len(shards)),
            array=_array(len(shards), unread),
        )
    with output_at(place) as output, file_errors(output.folder, verb="read"):
        output.prepare()
        merged = (output.folder / MANIFEST).exists()
        if merged and (manifest := Manifest.load(output.folder)).base is not None:
            # Nobody packs the shards of an indexed dataset.
            return PackStatus(
                output.address,
                complete=True,
                shards=len(manifest.shards),
                done=len(manifest.shards),
                lines=manifest.lines,
                lines_done=manifest.lines,
                rejects=manifest.rejects,
                seconds_left=0.0,
            )
        plan = plan_in(output)
        return _complete(output, plan) if merged else _incomplete(output, plan)


def _complete(output: Output, plan: Plan) -> PackStatus:
    manifest, lost = finished(output, plan)
    return PackStatus(
        output.address,
        complete=True,
        shards=len(plan.shards),
        done=len(plan.shards) - len(lost),
        missing=tuple(plan.shards[number].name for number in lost),
        lines=plan.entries,
        lines_done=plan.entries - sum(plan.shards[number].count for number in lost),
        rejects=manifest.rejects,
        seconds_left=None if lost else 0.0,
        part=_part(len(plan.shards)),
    )


def _incomplete(output: Output, plan: Plan) -> PackStatus:
    folder = output.folder
    try:
        there = set(os.listdir(folder / PARTS))
    except FileNotFoundError:
        there = set()
    done: dict[int, NoteFacts] = {}
    under_way: dict[int, UnderWay] = {}
    failed: dict[int, FailedShard] = {}
    missing: list[int] = []
    for number, facts in enumerate(_facts(output, plan, there)):
        name = plan.shards[number].name
        if facts is not None:
            done[number] = facts
        elif name + PACKING in there and (found := _under_way(folder, name)):
            under_way[number] = found
        elif name + FAILED in there and (marker := Marker.load(folder, name + FAILED)):
            failed[number] = FailedShard(name, marker.why or "", marker.host, marker.role)
        else:
            missing.append(number)
    listed = next((facts.listed for facts in done.values() if facts.listed is not None), None)
    return PackStatus(
        dataset=output.address,
        complete=False,
        shards=len(plan.shards),
        done=len(done),
        under_way=tuple(under_way.values()),
        failed=tuple(failed.values()),
        missing=tuple(plan.shards[number].name for number in missing),
        lines=plan.entries,
        lines_done=sum(plan.shards[number].count for number in done),
        rejects=sum(len(facts.rejects) for facts in (*done.values(), *((listed,) if listed else ()))),
        seconds_left=_seconds_left(folder, plan, done, len(under_way)),
        part=_part(len(plan.shards)),
        array=_array(len(plan.shards), sorted([*failed, *missing])),
        array_under_way=_array(len(plan.shards), list(under_way)),
    )


def _facts(output: Output, plan: Plan, there: Collection[str]) -> Iterator[NoteFacts | None]:
    """The facts of each shard that is done, in order; None for the others."""

    def read(number: int) -> NoteFacts | None:
        if f"{plan.shards[number].name}.npz" not in there:
            return None
        facts = read_facts(output.folder, plan, number, output.holds)
        return None if isinstance(facts, str) else facts

    # On a network file system each note takes a few milliseconds, most of which is waiting.
    with ThreadPoolExecutor(_READERS) as pool:
        yield from pool.map(read, range(len(plan.shards)))


def _under_way(folder: Path, shard: str) -> UnderWay | None:
    """Returns who packs a shard; None if that is a process that has ended."""
    marker = Marker.load(folder, shard + PACKING)
    process = None if marker is None else ProcessName.parse(marker.process)
    if marker is None or process is None or process.ended:
        return None
    return UnderWay(shard, marker.host, process.process, marker.role, marker.job)


def _seconds_left(folder: Path, plan: Plan, done: Iterable[int], under_way: int) -> float | None:
    """The time that is left, from how long finished shards took. What is half done counts as not begun."""
    numbers = list(done)
    left = plan.entries - sum(plan.shards[number].count for number in numbers)
    if not left:
        return 0.0
    seconds, lines = 0.0, 0
    for number in numbers[:: -(-len(numbers) // _TIMED) or 1]:
        shard = plan.shards[number]
        marker = Marker.load(folder, shard.name + PACKED)
        if marker is not None and marker.seconds is not None:
            seconds, lines = seconds + marker.seconds, lines + shard.count
    return seconds / lines * left / under_way if lines and under_way else None


def _tasks(shards: int) -> int:
    """Return the number of parts of an array: one for each shard, where Slurm allows as many."""
    return max(1, min(shards, MOST_TASKS))


def _part(shards: int) -> str:
    return f"auto/{_tasks(shards)}"


def _array(shards: int, numbers: Sequence[int]) -> str:
    return array_list(sorted({number % _tasks(shards) + 1 for number in numbers}))
