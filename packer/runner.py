"""Packs a list step by step: read the list, agree on a plan, pack the missing shards, merge."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from packtrain._core.arguments import flag, function, instance, path_of, whole
from packtrain._core.errors import OutputConflict, TooManyRejects
from packtrain._core.files import (
    file_errors,
    fsync_folder,
    is_temporary,
    locked,
    make_folder,
    remove_temporaries,
    write_file,
)
from packtrain._core.manifest import MANIFEST, PLAN, Manifest

from .engine import run_tasks
from .listing import Listing
from .lists.reader import read_list
from .merge import merge, remove_notes
from .notes import PARTS, load_note, make_parts, note_path
from .options import PackOptions, reject_limit
from .plan import Plan
from .planning import outline_plan, plan_shards
from .rejects import RejectGuard
from .reopen import reopen
from .shard import ShardProgress, ShardTask, pack_shard


@dataclass(frozen=True)
class PackProgress:
    """Progress of a run.

    Attributes:
        done: Number of lines that are done, including those of earlier runs.
        total: Number of lines to pack.
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
        dataset: Folder of the dataset.
        complete_before: True if the dataset was already complete, so that nothing was done.
        packed: Number of shards packed by this run.
        resumed: Number of shards finished by earlier runs.
        records: Number of records in the dataset.
        bytes: Total size of the shards in bytes.
        rejects: Number of refused lines.
        duplicates: Number of lines that repeat an earlier line; they are packed as well.
        remarks: What is worth knowing about the records that this run packed, each with the number of records it is
            about; above all why records are not crop-ready. The commonest first.
    """

    dataset: Path
    complete_before: bool
    packed: int
    resumed: int
    records: int
    bytes: int
    rejects: int
    duplicates: int
    remarks: Mapping[str, int] = field(default_factory=dict)


def pack(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    workers: int = 1,
    max_rejects: str | int = "0.1%",
    retry_rejects: bool = False,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Packs a list of images, or an image folder, into a dataset.

    If a run stops for any reason, even a crash, the same call continues where it stopped and gives the same bytes.

    Args:
        source: The list (``path label`` on each line, or columns as in CSV files), or a folder with one folder of
            images per class.
        out: Folder of the dataset. It must be new, empty, or packed (completely or not) by the same plan. Inside an
            image folder, it is left out of what is packed.
        options: What to store, and how; None for the defaults.
        workers: Number of worker processes. The default, 1, packs in the calling process and uses only one core; the
            command ``packtrain pack`` uses all available cores. Workers are spawned, so with more than one the calling
            script needs the usual ``if __name__ == "__main__"``.
        max_rejects: How many lines may be refused: a percentage (``"0.1%"``) or a count (``"20"`` or ``20``). A
            percentage above zero allows at least one.
        retry_rejects: True to pack shards that have refused lines again.
        on_progress: Called in the calling process, about five times a second per worker and after each shard.

    Returns:
        What was done, and what the dataset holds.

    Raises:
        ListError: The list is unusable.
        UsageError: An argument has the wrong type or is out of range, the options do not fit the list, or a path is a
            URL.
        OutputConflict: `out` holds something else, or another packer is working there.
        CorruptFile: `out` holds a dataset or plan that is damaged.
        TooManyRejects: More lines were refused than allowed. Finished shards are kept.
        ShardFailed: A shard failed twice for a reason other than the content of its images.
        NoSpace: The file system of `out` is full. Finished shards are kept.
    """
    options = PackOptions() if options is None else options
    instance("options", options, PackOptions)
    check_run(workers, on_progress)
    flag("retry_rejects", retry_rejects)
    folder = path_of("out", out)
    with file_errors(folder):
        require_usable(folder)
    images = read_list(
        path_of("source", source),
        options.labels,
        columns=options.columns,
        root=options.root,
        classes=options.classes,
        by_name=options.label_names,
        leave_out=folder,
        allow_empty=options.allow_empty,
    )
    limit = reject_limit(max_rejects, images.lines)
    return pack_listing(images, folder, options, workers, limit, retry_rejects=retry_rejects, on_progress=on_progress)


def check_run(workers: int, on_progress: Callable[[PackProgress], None] | None) -> None:
    """Checks arguments that say how a run goes.

    Raises:
        UsageError: One has the wrong type or is out of range.
    """
    whole("workers", workers, 1)
    function("on_progress", on_progress)


def pack_listing(
    images: Listing,
    folder: Path,
    options: PackOptions,
    workers: int,
    max_rejects: int,
    *,
    retry_rejects: bool = False,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Packs what a listing says into `folder`; see `pack`. At most `max_rejects` lines may be refused."""
    guard = RejectGuard(max_rejects, images.lines)
    with file_errors(folder):
        if (folder / MANIFEST).exists():
            guard.accept(Manifest.load(folder).rejects)
        _count_bad_lines(guard, images)
        plan = _agree_on_plan(folder, images, options)
        with locked(folder / PLAN):
            if (folder / MANIFEST).exists() and (manifest := reopen(folder, plan, images, retry_rejects)):
                remove_notes(folder)
                return _report(folder, manifest, packed=0, resumed=len(plan.shards), complete_before=True)
            remove_temporaries(folder)
            missing = _missing_shards(folder, plan, guard, retry_rejects)
            remarks = _pack_shards(folder, plan, images, missing, workers, guard, on_progress)
            manifest = merge(folder, plan, images)
    resumed = len(plan.shards) - len(missing)
    report = _report(folder, manifest, packed=len(missing), resumed=resumed, complete_before=False)
    return replace(report, remarks=dict(remarks.most_common()))


def _agree_on_plan(folder: Path, images: Listing, options: PackOptions) -> Plan:
    """Returns the plan in `folder`, which must be the one asked for. Makes and writes it if there is none."""
    if not (folder / PLAN).exists():
        plan = plan_shards(outline_plan(images, options), images)
        make_folder(folder)
        # Another packer may have been faster, and may have removed our temporary file.
        with suppress(FileExistsError, FileNotFoundError):
            write_file(folder / PLAN, [plan.dump()], exclusive=True)
    there = Plan.load(folder)
    there.require_same(outline_plan(images, options, there), folder)
    return there


def _count_bad_lines(guard: RejectGuard, images: Listing) -> None:
    try:
        guard.count(-1, images.rejects)
    except TooManyRejects as error:
        raise (TooManyRejects(f"{error}. {images.advice}") if images.advice else error) from None


def require_usable(folder: Path) -> None:
    """Refuses a folder in which something else lies.

    Raises:
        OutputConflict: There is something in it that no packer left.
    """
    if folder.is_symlink() and not folder.exists():
        raise OutputConflict(
            f"{folder} is a link that leads nowhere. Make the folder that it leads to, or choose another name"
        )
    if folder.exists() and not folder.is_dir():
        raise OutputConflict(f"{folder} is a file, but packtrain writes a folder. Choose another name")
    if folder.is_dir():
        strangers = [path.name for path in folder.iterdir() if not is_temporary(path)]
        # Look for the plan last: a packer that starts at the same time writes its plan first.
        if strangers and not (folder / PLAN).exists():
            raise OutputConflict(
                f"{folder} is not empty ({', '.join(sorted(strangers)[:3])}), and has no {PLAN} of packtrain's. Choose "
                "a new or empty folder"
            )


def _missing_shards(folder: Path, plan: Plan, guard: RejectGuard, retry_rejects: bool) -> list[int]:
    """Returns the numbers of the shards that have to be packed. Counts the refused lines of the others."""
    make_parts(folder)
    remove_temporaries(folder / PARTS)
    missing = []
    for number in range(len(plan.shards)):
        note = load_note(folder, plan, number)
        if note is None or (retry_rejects and note.rejects):
            note_path(folder, plan.shards[number].name).unlink(missing_ok=True)
            missing.append(number)
        else:
            guard.count(number, note.rejects)
    fsync_folder(folder / PARTS)
    return missing


def _pack_shards(
    folder: Path,
    plan: Plan,
    images: Listing,
    missing: Sequence[int],
    workers: int,
    guard: RejectGuard,
    on_progress: Callable[[PackProgress], None] | None,
) -> Counter[str]:
    """Packs the missing shards. Returns the remarks about their records, with the number of records of each."""
    remarks: Counter[str] = Counter()
    done = dict.fromkeys(missing, 0)
    resumed = plan.entries - sum(plan.shards[number].count for number in missing)

    def advance(progress: ShardProgress) -> None:
        done[progress.number] = progress.lines
        guard.count(progress.number, progress.rejects)
        if on_progress is not None:
            on_progress(PackProgress(resumed + sum(done.values()), plan.entries, resumed, guard.total))

    tasks = _tasks(folder, plan, images, missing)
    try:
        for result in run_tasks(pack_shard, tasks, workers=min(workers, len(missing)), on_progress=advance):
            advance(result)
            remarks.update(result.remarks)
    finally:
        # Workers that were stopped could not clean up.
        remove_temporaries(folder)
    return remarks


def _tasks(folder: Path, plan: Plan, images: Listing, numbers: Sequence[int]) -> Iterator[ShardTask]:
    for number in numbers:
        yield ShardTask(folder, plan, number, images.entries(plan.ordinals(number)), images.source)


def _report(folder: Path, manifest: Manifest, *, packed: int, resumed: int, complete_before: bool) -> PackReport:
    return PackReport(
        dataset=folder,
        complete_before=complete_before,
        packed=packed,
        resumed=resumed,
        records=manifest.records,
        bytes=manifest.bytes,
        rejects=manifest.rejects,
        duplicates=manifest.duplicates,
    )
