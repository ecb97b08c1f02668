"""Packing a list, told as a story: list, plan, shards, merge."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packtrain.core.errors import CorruptFile, OutputConflict, TooManyRejects
from packtrain.core.files import fsync_folder, is_temporary, locked, naming_full_disk, remove_temporaries, write_file
from packtrain.core.index import Index
from packtrain.core.manifest import INDEX, MANIFEST, PLAN, Manifest
from packtrain.packer.engine import run_tasks
from packtrain.packer.listing import ImageList, Reject, read_list
from packtrain.packer.merge import merge, read_rejects, remove_notes
from packtrain.packer.notes import PARTS, ROW_COLUMNS, ShardNote, is_in_place, load_note, note_path
from packtrain.packer.options import PackOptions, reject_limit
from packtrain.packer.plan import Plan, make_plan
from packtrain.packer.shard import ShardProgress, ShardTask, pack_shard


@dataclass(frozen=True)
class PackProgress:
    """How far a run is.

    Attributes:
        done: Lines dealt with, those of earlier runs included.
        total: Lines to deal with.
        resumed: Lines that earlier runs have dealt with.
        rejects: Lines refused so far.
    """

    done: int
    total: int
    resumed: int
    rejects: int


@dataclass(frozen=True)
class PackReport:
    """What came of a run.

    Attributes:
        dataset: The folder.
        complete_before: The dataset was complete already; nothing was done.
        packed: Shards packed by this run.
        resumed: Shards finished by earlier runs.
        records: Rows of the dataset.
        bytes: Size of its shards.
        rejects: Lines that were refused.
        duplicates: Lines that repeat an earlier one.
    """

    dataset: Path
    complete_before: bool
    packed: int
    resumed: int
    records: int
    bytes: int
    rejects: int
    duplicates: int


def pack(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    workers: int = 1,
    max_rejects: str = "0.1%",
    retry_rejects: bool = False,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Packs a list of images, or an image folder, into a dataset.

    Stopped at any point, by whatever, the same call goes on where it stopped and gives the same bytes.

    Args:
        source: The list (``path label`` per line), or a folder with one folder per class.
        out: The dataset's folder: new, empty, or holding an unfinished or finished pack by the same plan.
        options: What to store and how.
        workers: Processes; with more than one, the calling script needs the usual ``if __name__ == "__main__"``.
        max_rejects: How many lines may be refused: a percentage or a count.
        retry_rejects: Pack shards with refused lines again.
        on_progress: Called now and then.

    Raises:
        ListError: The list is unusable.
        OutputConflict: `out` holds something else, or another packer is at work there.
        TooManyRejects: The limit is exceeded. Finished shards stay.
        ShardFailed: A shard failed twice for a reason that is not its images' content.
        NoSpace: The file system is full.
    """
    options = options or PackOptions()
    folder = Path(out)
    images = read_list(Path(source), options.labels, root=options.root, classes=options.classes)
    guard = _RejectGuard(reject_limit(max_rejects, images.lines), images.lines)
    guard.count(-1, images.rejects)
    with naming_full_disk(folder.parent):
        plan = _agree_on_plan(folder, images, options)
        with locked(folder / PLAN):
            if (folder / MANIFEST).exists() and (manifest := _reopen(folder, plan, images, retry_rejects)):
                remove_notes(folder)
                return _report(folder, manifest, packed=0, resumed=len(plan.shards), complete_before=True)
            remove_temporaries(folder)
            missing = _missing_shards(folder, plan, guard, retry_rejects)
            _pack_shards(folder, plan, images, missing, workers, guard, on_progress)
            manifest = merge(folder, plan, images)
    return _report(folder, manifest, packed=len(missing), resumed=len(plan.shards) - len(missing), complete_before=False)


def _agree_on_plan(folder: Path, images: ImageList, options: PackOptions) -> Plan:
    """The plan in `folder`, which must be the one asked for; made and written if there is none."""
    _require_usable(folder)
    plan = make_plan(images, options)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_file(folder / PLAN, [plan.dump()], exclusive=True)
        return plan
    except FileExistsError:
        there = Plan.load(folder)
        there.require_same(plan)
        return there


def _require_usable(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise OutputConflict(f"{folder} is a file; packtrain writes a folder")
    if folder.is_dir() and not (folder / PLAN).exists():
        strangers = [path.name for path in folder.iterdir() if not is_temporary(path)]
        if strangers:
            raise OutputConflict(
                f"{folder} is not empty and holds no {PLAN} ({', '.join(sorted(strangers)[:3])}, ...): packtrain writes "
                "into a new or empty folder"
            )


def _missing_shards(folder: Path, plan: Plan, guard: _RejectGuard, retry_rejects: bool) -> list[int]:
    """The shards that are to be packed; the rejects of the others are counted."""
    (folder / PARTS).mkdir(exist_ok=True)
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
    images: ImageList,
    missing: Sequence[int],
    workers: int,
    guard: _RejectGuard,
    on_progress: Callable[[PackProgress], None] | None,
) -> None:
    done = {number: 0 for number in missing}
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
    finally:
        # Workers that were stopped had no time to clean up.
        remove_temporaries(folder)


def _tasks(folder: Path, plan: Plan, images: ImageList, numbers: Sequence[int]) -> Iterator[ShardTask]:
    for number in numbers:
        entries = tuple(images.entry(ordinal) for ordinal in plan.ordinals(number).tolist())
        yield ShardTask(folder, plan, number, entries, tuple(images.resolve(entry.path) for entry in entries))


def _reopen(folder: Path, plan: Plan, images: ImageList, retry_rejects: bool) -> Manifest | None:
    """The manifest of a finished dataset; or None, having turned the dataset into an unfinished one where shards are
    missing or are to be packed again. Notes come before the manifest goes, so that a crash loses nothing.
    """
    manifest = Manifest.load(folder)
    if manifest.plan_sha256 != plan.sha256:
        raise CorruptFile(f"{folder}: manifest and plan do not belong together; pack into another folder", file=PLAN)
    rejects = {item.line: item for item in read_rejects(folder, manifest)}
    refused = [
        tuple(rejects[line] for line in np.sort(images.line_numbers(plan.ordinals(number))).tolist() if line in rejects)
        if rejects
        else ()
        for number in range(len(plan.shards))
    ]
    sound = [is_in_place(folder, info) and not (retry_rejects and refused[i]) for i, info in enumerate(manifest.shards)]
    if all(sound):
        return manifest
    index = Index(folder / INDEX, manifest.columns, manifest.records)
    index.check_all()
    (folder / PARTS).mkdir(exist_ok=True)
    first = 0
    for info, rejected, keep in zip(manifest.shards, refused, sound, strict=True):
        rows = index["by_place"][first : first + info.records]
        first += info.records
        if keep:
            columns = {name: index[name][rows] for name in (*ROW_COLUMNS, "label") if name in index}
            ShardNote(plan.sha256, info, rejected, columns).save(folder)
    fsync_folder(folder)
    (folder / MANIFEST).unlink()
    fsync_folder(folder)
    return None


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


class _RejectGuard:
    """Counts rejects by shard and stops the run when there are too many."""

    def __init__(self, limit: int, lines: int) -> None:
        self._limit = limit
        self._lines = lines
        self._by_shard: dict[int, Sequence[Reject]] = {}

    @property
    def total(self) -> int:
        return sum(map(len, self._by_shard.values()))

    def count(self, shard: int, rejects: Sequence[Reject]) -> None:
        """Takes note of all rejects of a shard so far.

        Raises:
            TooManyRejects: The limit is exceeded.
        """
        self._by_shard[shard] = rejects
        if self.total <= self._limit:
            return
        found = sorted((item for items in self._by_shard.values() for item in items), key=lambda item: item.line)
        examples = "".join(f"\n  line {item.line}: {item.path}: {item.reason}" for item in found[:5])
        kinds = Counter(item.reason.partition(":")[0] for item in found).most_common(3)
        summary = ", ".join(f"{count} x {kind}" for kind, count in kinds)
        raise TooManyRejects(
            f"{self.total} of {self._lines} lines refused, {self._limit} allowed ({summary}).{examples}\n"
            "Finished shards are kept. Mend the list or the files and run again, or allow more with --max-rejects"
        )
