"""One run through the shards of a plan: which are missing, and how they are packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from packtrain._core.errors import ShardFailed
from packtrain._core.files import remove_abandoned, remove_temporaries
from packtrain._core.manifest import Manifest
from packtrain._storage.remote.urls import Url

from .engine import Engine, run_tasks
from .listing import Listing, Source
from .markers import PACKING, leave, leave_failure, remove_ended
from .notes import ListFacts, make_parts, read_note
from .output import Output
from .plan import Plan
from .rejects import RejectGuard
from .shard import ShardProgress, ShardTask, pack_shard

CLUSTER: Final = "cluster"
"""The role of a cluster's tasks, see `ShardTask`: a machine that was taken for dead may still be at work on one."""


def pack_elsewhere(source: Source, task: ShardTask, report: Callable[[ShardProgress], None]) -> ShardProgress:
    """Packs one shard like `pack_shard`, on a machine that may not be the one that made the plan.

    Raises:
        UsageError: This machine does not see the dataset's folder.
    """
    with task.output.arrive(task.plan.sha256) as output:
        return pack_shard(source, replace(task, output=output), report)


@dataclass(frozen=True)
class PackRun:
    """One run through shards of a plan.

    Attributes:
        output: Where to.
        plan: The plan.
        images: The list.
        numbers: Numbers of the shards that this run is about.
        guard: Counts refused lines.
        workers: Number of worker processes.
        engine: What packs the shards, see `pack`.
        role: What the run calls itself, if others work beside it, see `ShardTask`.
        retry_rejects: True to pack shards that have refused lines again.
        on_progress: See `pack`.
    """

    output: Output
    plan: Plan
    images: Listing
    numbers: Sequence[int]
    guard: RejectGuard
    workers: int = 1
    engine: Engine | None = None
    role: str = ""
    retry_rejects: bool = False
    on_progress: Callable[[PackProgress], None] | None = None

    def missing(self) -> list[int]:
        """The numbers of the shards that have to be packed. Counts the refused lines of the others."""
        make_parts(self.output.folder)
        missing = []
        for number in self.numbers:
            note = read_note(self.output.folder, self.plan, number, self.output.holds)
            if isinstance(note, str) or (self.retry_rejects and note.rejects):
                missing.append(number)
            else:
                self.guard.count(number, note.rejects)
        return missing

    def pack(self, missing: Sequence[int]) -> Counter[str]:
        """Packs these shards. Returns the remarks about their records, with the number of records of each."""
        remarks: Counter[str] = Counter()
        done = dict.fromkeys(missing, 0)
        total = self._lines(self.numbers)
        resumed = lines = total - self._lines(missing)

        def advance(progress: ShardProgress) -> None:
            nonlocal lines
            lines += progress.lines - done[progress.number]
            done[progress.number] = progress.lines
            self.guard.count(progress.number, progress.rejects)
            if self.on_progress is not None:
                self.on_progress(PackProgress(lines, total, resumed, self.guard.total))

        run, function = (run_tasks, pack_shard) if self.engine is None else (self.engine, pack_elsewhere)
        workers = min(self.workers, len(missing))
        try:
            # The source goes to each worker once, not with each task: it may hold millions of inputs.
            bound = partial(function, self.images.source)
            with closing(run(bound, self._tasks(missing), workers=workers, on_progress=advance)) as results:
                for result in results:
                    advance(result)
                    remarks.update(result.remarks)
            if self.engine is not None:
                self.output.gather([self.plan.shards[number].name for number in missing])
        except ShardFailed as error:
            # A worker that was killed could not say so itself, on whichever machine.
            if error.shard is not None:
                leave_failure(self.output, error.shard, self._worker_role, str(error))
                if self.engine is not None:
                    leave(self.output, error.shard + PACKING, None)
            raise
        finally:
            # Workers that were stopped could not clean up.
            (remove_abandoned if self.role else remove_temporaries)(self.output.folder)
            remove_ended(self.output)
        return remarks

    @property
    def _worker_role(self) -> str:
        return self.role if self.engine is None else CLUSTER

    def _lines(self, numbers: Sequence[int]) -> int:
        return sum(self.plan.shards[number].count for number in numbers)

    def _tasks(self, numbers: Sequence[int]) -> Iterator[ShardTask]:
        plan, images = self.plan, self.images
        listed = ListFacts(images.duplicates, tuple(images.rejects))
        for number in numbers:
            yield ShardTask(
                self.output,
                plan.only(number),
                number,
                images.entries(plan.ordinals(number)),
                None if number else listed,
                self._worker_role,
                self.retry_rejects,
            )


@dataclass(frozen=True)
class PackProgress:
    """Progress of a run.

    Attributes:
        done: Number of lines that are done, including those of earlier runs.
        total: Number of lines to pack; 0 for samples that come one by one, of which nobody knows.
        resumed: Number of lines that earlier runs have done.
        rejects: Number of lines refused so far.
    """

    done: int
    total: int
    resumed: int
    rejects: int


@dataclass(frozen=True)
class PackReport:
    """Result of a run.

    Attributes:
        dataset: Folder or address of the dataset.
        complete_before: True if the dataset was already complete, so that nothing was done.
        packed: Number of shards packed by this run.
        resumed: Number of shards finished by earlier runs.
        records: Number of records in the dataset.
        bytes: Total size of the shards in bytes.
        rejects: Number of refused lines.
        duplicates: Number of lines that repeat an earlier line; they are packed as well.
        remarks: What is worth knowing about the records that this run packed, each with the number of records it is
            about; above all why records are not crop-ready. The commonest first.
        part: The part that was packed, such as ``"3/16"``; None if it was the whole dataset. For a part, the numbers of
            shards, records, bytes and rejects above are those of its shards alone.
        missing: Number of shards of the whole dataset that still had no note when this part was done; 0 without parts.
        classes: Class names by label; None if the labels have no names, and for a part.
    """

    dataset: Path | Url
    complete_before: bool
    packed: int
    resumed: int
    records: int
    bytes: int
    rejects: int
    duplicates: int
    remarks: Mapping[str, int] = field(default_factory=dict)
    part: str | None = None
    missing: int = 0
    classes: tuple[str, ...] | None = None


def pack_report(output: Output, manifest: Manifest, *, packed: int = 0, complete_before: bool = False) -> PackReport:
    """Report on a finished dataset."""
    return PackReport(
        dataset=output.address,
        complete_before=complete_before,
        packed=packed,
        resumed=len(manifest.shards) - packed,
        records=manifest.records,
        bytes=manifest.bytes,
        rejects=manifest.rejects,
        duplicates=manifest.duplicates,
        classes=manifest.classes,
    )
