"""Indexes foreign tar shards: reads each once, and makes a dataset of them whose shards stay in place."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Final

import numpy as np

from packtrain._core.arguments import checks_names, flag, function, path_of, whole
from packtrain._core.errors import OutputConflict, PackError, PacktrainError, TooManyRejects, UsageError
from packtrain._core.files import file_errors, is_temporary, write_file
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, Link, Manifest, ShardInfo
from packtrain._core.schema import Field, Schema
from packtrain._storage.links import base_name
from packtrain._storage.location import Location, absolute, each, lies_here, object_store, real
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url, place_of
from packtrain._storage.sequential import FileState, changed

from ..engine import run_tasks
from ..notes import PARTS
from ..options import reject_limit
from ..parts import Part
from ..pins import pin_shards
from ..planning import written_by
from ..publishing import NO_GAPS, building, collecting, only_writer, publish, remove_abandoned, write_dataset
from . import links, tables
from .headers import shown
from .plan import IndexPlan, Rules
from .scan import Scan, ScanProgress, ScanTask, check_ends, joined, read_shard, scan_shard
from .scan_notes import SHARD_LIST, ScanNotes, ShardList
from .shard_files import WithObjects, read_if_there
from .sources import find_shards
from .tables import Before, TarSamples
from .unpacking import unpacked_shards

_SHOWN: Final = 5
_ROUNDS: Final = 4
"""Looks at the notes before giving up; between two looks, shards without a note are read."""


@dataclass(frozen=True)
class IndexProgress:
    """Progress of a run.

    Attributes:
        done: Number of bytes of shards that have been read, those of earlier runs included.
        total: Number of bytes to read.
        samples: Number of samples that this run has found so far.
        resumed: Number of bytes that earlier runs have read.
    """

    done: int
    total: int
    samples: int
    resumed: int = 0


@dataclass(frozen=True)
class IndexReport:
    """Result of a run.

    Attributes:
        dataset: Folder of the dataset, or its address.
        indexed: Number of shards that this run has taken in.
        shards: Number of shards in the dataset.
        records: Number of samples in the dataset.
        bytes: Total size of the shards in bytes.
        rejects: Number of refused samples.
        fields: Name, kind and extensions of each field, and the number of samples without it.
        labels: Type of the labels.
        left_out: Number of members, in the shards that this run has taken in, that belong to no sample.
        compared: Number of shards that an update has read because their time of change, not their bytes, was another.
        resumed: Number of the shards taken in that earlier runs have read.
        part: The part that was read, such as ``"3/16"``; None for the dataset. For a part, the numbers of shards,
            samples, bytes and refused samples above are those of its new shards alone, `fields` is empty and `labels`
            too: they are decided when all parts are there.
        complete_before: True if the dataset was there already, so that no part and no merge had anything to do.
        missing: Number of shards of the whole list that still had to be read when this part was done; 0 without parts.
        pins: The datasets that some of the new shards belong to, and the version of each that is kept for this one.
    """

    dataset: Location
    indexed: int
    shards: int
    records: int
    bytes: int
    rejects: int
    fields: tuple[IndexedField, ...]
    labels: str
    left_out: int
    compared: int = 0
    resumed: int = 0
    part: str | None = None
    complete_before: bool = False
    missing: int = 0
    pins: tuple[tuple[Path, int], ...] = ()


@dataclass(frozen=True)
class IndexedField:
    """A field of an indexed dataset.

    Attributes:
        name: Its name.
        kind: Its kind.
        extensions: What the names of its members end with.
        missing: Number of samples without it.
    """

    name: str
    kind: str
    extensions: tuple[str, ...]
    missing: int


@checks_names()
def index_shards(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    fields: Sequence[str] = (),
    masks: Sequence[str] = (),
    label: str | None = None,
    mode: str = "RGB",
    update: bool = False,
    base: str | os.PathLike[str] | None = None,
    unpack: str | os.PathLike[str] | None = None,
    num_workers: int = 1,
    max_rejects: str | int = "0.1%",
    part: Part | str | None = None,
    on_progress: Callable[[IndexProgress], None] | None = None,
) -> IndexReport:
    """Makes a dataset of WebDataset tar shards, which stay where they are.

    Each shard is read once, from front to back; in an object store, by ranged requests. Rows are in the order of the
    shards, and in that of each shard.

    If a run stops for any reason, the same call continues: shards that were read before, and have not changed since,
    are not read again. Several machines that share `out` can each read a part of the shards at the same time; then
    `packtrain.merge` makes the dataset. If the dataset is there, the same call says so.

    Args:
        shards: The shards: files, folders, patterns such as ``train-{000000..000146}.tar``, or ``@FILE`` for a list.
            Each may also be an address in an object store, such as ``s3://bucket/train-{000000..000146}.tar``.
        out: Folder of the dataset: new or empty, or with `update` one that was indexed before. It may be an address if
            the shards lie in a store, too, and without `update`.
        fields: What the members with an extension are, each as ``NAME=EXT`` or ``NAME=EXT:KIND``, such as
            ``"caption=txt"`` or ``"features=pth:bytes"``. All others are understood by their extensions.
        masks: Names of fields that are masks, maps of class indices, and not images.
        label: Where the label is: ``"EXT"``, a member that holds a whole number; ``"EXT:KEY"``, a number or the name of
            a class in a JSON object; or ``"none"``. None for ``"cls"``, if there is any.
        mode: Pixel mode that readers deliver: ``"RGB"`` or ``"L"``.
        update: True to take new shards, if any, into the dataset `out`. Those that are in it are not read again, unless
            their time of change is another: then their bytes are compared. What the extensions mean stays as it is.
        base: With `update`, the folder or the address that all shards of the dataset were moved to. None if they are
            where they were.
        unpack: Folder into which compressed shards (gzip, bzip2, xz and, with the package zstandard, zstd) are
            decompressed before they are indexed there. None: they are refused, as their records cannot be read in
            place.
        num_workers: Number of worker processes. They are spawned, so with more than one the calling script needs the
            usual ``if __name__ == "__main__"``.
        max_rejects: How many samples may be refused: a percentage (``"0.1%"``) or a count (``"20"`` or ``20``). Of a
            part, any number; the merge counts them.
        part: Which part of the shards to read: ``Part(3, 16)`` or ``"3/16"``; or ``"auto"``, to read it from the
            variables of a Slurm array, as for `packtrain.pack`. None reads all, with nobody else at work in `out`, and
            makes the dataset.
        on_progress: Called in the calling process, several times a second.

    Returns:
        What was found.

    Raises:
        UsageError: An argument has the wrong type, or does not fit what is in the shards.
        PackError: A shard cannot be read, is not a sound tar archive of samples, or has changed since it was indexed.
        OutputConflict: `out` holds something else, or what other rules have made, or somebody else is indexing there;
            or shards belong to a version of a dataset that cannot be kept from being removed.
        TooManyRejects: More samples were refused than allowed.
        DatasetError: The dataset that is to be updated is not sound.
        RemoteError: The object store does not answer as it should; NotThere if it has no such bucket, Denied if it does
            not let these credentials read or write.
        MissingDependency: What reads object stores is not installed.
    """
    rules = Rules.parse(fields, masks, label, mode)
    flag("update", update)
    function("on_progress", on_progress)
    num_workers = whole("num_workers", num_workers, 1)
    part = Part.of(part)
    named = place_of("out", out)
    out = real(named)
    sources = [shards] if isinstance(shards, str | os.PathLike) else list(shards)
    if base is not None and not update:
        raise UsageError("`base` says where the shards of an indexed dataset are now: add `update`")
    with closing(object_store()) as objects:
        run = _Indexing(num_workers, max_rejects, part, on_progress, objects)
        places = find_shards(sources, objects) if sources or not update else []
        if unpack is not None:
            places = unpacked_shards(places, path_of("unpack", unpack), workers=num_workers, part=part)
        if update:
            report = run.update(places, out, rules, base)
        else:
            with file_errors(_spool(out)):
                report = run.again(places, out, rules) or run.index(places, out, rules)
        return replace(report, dataset=named)


def merge_scans(out: Location, max_rejects: str | int) -> IndexReport | None:
    """Makes the dataset of the shards that all parts of an index have read.

    Args:
        out: Folder of the dataset, or its address.
        max_rejects: As for `index_shards`.

    Returns:
        What was found, also if the dataset is there already; None if nothing was indexed in `out`.

    Raises:
        PackError: Shards have not been read, or have changed since.
        OutputConflict: Somebody works there without parts.
        TooManyRejects: More samples were refused than allowed.
    """
    named, out = out, real(out)
    with closing(object_store()) as objects, file_errors(_spool(out)):
        if (listed := ShardList.load(out, objects)) is not None:
            run = _Indexing(1, max_rejects, None, None, objects)
            try:
                with listed.working(out, objects, shared=True) as notes:
                    if listed.before or _manifest_at(out, objects) is None:
                        report = run.publish(out, listed, notes, notes.all_scans())
                        return replace(report, dataset=named, resumed=report.indexed)
                    # Another merge was faster, and then a part began again, or was stopped before the notes were gone.
                    notes.remove()
            except (PacktrainError, OSError):
                # Another merge was faster.
                if _manifest_at(out, objects) is None or ShardList.load(out, objects) is not None:
                    raise
        manifest = _manifest_at(out, objects)
        return None if manifest is None else replace(_complete(out, manifest, objects), dataset=named)


def _spool(out: Location) -> Path:
    """The folder of this machine in which a dataset is built."""
    return out if isinstance(out, Path) else Path(gettempdir())


@dataclass(frozen=True)
class _Indexing:
    """Options of a run; see `index_shards`."""

    workers: int
    max_rejects: str | int
    part: Part | None
    on_progress: Callable[[IndexProgress], None] | None
    objects: Objects

    def index(self, places: Sequence[Location], out: Location, rules: Rules, before: int = 0) -> IndexReport:
        """Reads shards, and makes a dataset of them, or takes them into the dataset of `before` shards in `out`."""
        numbers = range(len(places)) if self.part is None else self.part.shards(len(places))
        self._check_ends([places[number] for number in numbers])
        listed = ShardList(rules, tuple(map(str, places)), written_by(), before)
        with listed.working(out, self.objects, shared=self.part is not None) as notes:
            scans, resumed = self._scan(notes, places, rules, numbers)
            if self.part is None:
                return replace(self.publish(out, listed, notes, scans), resumed=resumed)
            return IndexReport(
                dataset=out,
                indexed=len(scans),
                shards=len(scans),
                records=sum(len(scan.keys) for scan in scans),
                bytes=sum(scan.state.bytes for scan in scans),
                rejects=sum(len(scan.unfit) for scan in scans),
                fields=(),
                labels="",
                left_out=sum(scan.left_out for scan in scans),
                resumed=resumed,
                part=str(self.part),
                missing=len(notes.lacking()),
            )

    def again(self, places: Sequence[Location], out: Location, rules: Rules) -> IndexReport | None:
        """Reports on the dataset in `out`, if it is there and is what would be made; returns None if `out` is free."""
        manifest = _manifest_at(out, self.objects)
        if manifest is None or links.shard_places(out, manifest) != places:
            _require_free(out, self.objects)
            return None
        # All parts were merged meanwhile, perhaps.
        links.require_unchanged(out, manifest, self.objects)
        plan = IndexPlan.load(out, self.objects)
        plan.require_same(rules, self._unfit(places, rules, plan.doubtful(rules)), out)
        return replace(_complete(out, manifest, self.objects), part=None if self.part is None else str(self.part))

    def _unfit(self, places: Sequence[Location], rules: Rules, extensions: set[str]) -> set[str]:
        """Those of the extensions whose arrays do not fit together. Shards are read until that is seen of all."""
        fields: dict[str, Field] = {}
        unfit: set[str] = set()
        for number, place in enumerate(places):
            if unfit == extensions:
                break
            scan = read_shard(ScanTask(number, place, rules, Path()), lambda progress: None, self.objects)
            for extension in extensions & scan.found.keys():
                if (field := scan.found[extension].extension.field) is not None:
                    fields[extension] = joined(fields.get(extension), field)
            unfit = {extension for extension, field in fields.items() if field.kind == "bytes"}
        return unfit

    def _scan(
        self, notes: ScanNotes, places: Sequence[Location], rules: Rules, numbers: Sequence[int]
    ) -> tuple[list[Scan], int]:
        """Reads the shards without a note, until all of them have one. Returns all notes, and how many were there.

        Raises:
            PackError: A shard cannot be read, or changes all the time.
        """
        resumed = None
        for _ in range(_ROUNDS):
            scans, missing, found = notes.look(numbers)
            resumed = len(numbers) - len(missing) if resumed is None else resumed
            if not missing:
                return scans, resumed
            self._scan_tasks([ScanTask(number, places[number], rules, notes.folder) for number in missing], found)
        raise changed(places[missing[0]])

    def _scan_tasks(self, tasks: Sequence[ScanTask], found: Mapping[int, FileState]) -> None:
        total, done, samples = sum(state.bytes for state in found.values()), Counter[int](), Counter[int]()
        resumed = total - sum(found[task.number].bytes for task in tasks)

        def advance(progress: ScanProgress) -> None:
            done[progress.number], samples[progress.number] = progress.bytes, progress.samples
            if self.on_progress is not None:
                self.on_progress(IndexProgress(resumed + done.total(), total, samples.total(), resumed))

        workers = min(self.workers, len(tasks))
        for progress in run_tasks(WithObjects(scan_shard), tasks, workers=workers, on_progress=advance):
            advance(progress)

    def publish(self, out: Location, listed: ShardList, notes: ScanNotes, scans: Sequence[Scan]) -> IndexReport:
        """Puts a dataset of scanned shards in its place, behind those of the dataset that is there, if one is."""
        rules, places = listed.rules, listed.locations
        before = Before.load(Path(out)) if lies_here(out / MANIFEST) else None
        if before is not None:
            links.require_no_strangers(before.folder)
        known = [] if before is None else [shard.name for shard in before.manifest.shards]
        if len(known) != listed.before:
            raise OutputConflict(f"{out} has just been changed by somebody else. Run the command again")
        if before is None:
            rules.require_used(dict.fromkeys(extension for scan in scans for extension in scan.found))
        settled, fields = tables.settle(rules, scans)
        if before is not None:
            settled, fields = replace(settled, labels=rules.labels), before.fields_with(fields)
        names = links.shard_names(places, known)
        extensions = {rule.extension: rule.name for rule in settled.fields}
        tables.refuse_rounded_labels(scans)
        parts = [] if before is None else [before.rows_with(fields)]
        line = 0 if before is None else before.manifest.lines
        for number, (scan, name) in enumerate(zip(scans, names, strict=True), len(known)):
            parts.append(tables.rows(scan, number, name, line, extensions, fields, settled.labels))
            line += len(scan.keys)
        _check_rejects(parts, self.max_rejects, 0 if before is None else before.manifest.rejects)
        plan = IndexPlan(settled, listed.written_by)
        schema = Schema(fields, *tables.settle_labels(parts, None if before is None else before.manifest))
        shards = [] if before is None else before.shards()
        for scan, place, name, part in zip(scans, places, names, parts[-len(scans) :], strict=True):
            link = Link("", scan.state.modified_ns, scan.state.etag)
            shards.append((place, ShardInfo(name, scan.state.bytes, scan.crc32c, len(part.columns), (), link)))
        here = [place for place in places if isinstance(place, Path) and isinstance(out, Path)]
        with building(out, plan.dump()) as temporary:
            manifest = _write(temporary, out, plan, schema, parts, *links.linked_shards(shards))
            pins = pin_shards(here, str(out))
            publish(temporary, out, self.objects)
            notes.remove()
        return replace(_report(out, manifest, plan, scans), pins=pins)

    def update(
        self, places: Sequence[Location], folder: Location, rules: Rules, base: str | os.PathLike[str] | None
    ) -> IndexReport:
        """Brings the times in a dataset up to date, and takes those shards in that it does not have."""
        if isinstance(folder, Url):
            raise UsageError(
                f"{folder} cannot be updated: nothing replaces the files of a dataset in a store at once. Index all "
                "shards again, to another address"
            )
        if rules != Rules():
            raise UsageError(
                "an update keeps to what the extensions meant at first: leave out `fields`, `masks`, `label` and `mode`"
            )
        moved = None if base is None else absolute(place_of("base", base))
        if not (folder / PLAN).exists():
            raise OutputConflict(f"{folder} is no indexed dataset: it has no {PLAN}. Leave out --update to make one")
        with file_errors(folder), only_writer(folder / PLAN, shared=self.part is not None):
            plan, old = IndexPlan.load(folder), Manifest.load(folder)
            manifest = old if moved is None else replace(old, base=base_name(moved, folder))
            known = links.shard_places(folder, manifest)
            links.require_outside(folder, [*known, *places])
            compared = self._compare(links.with_other_times(folder, manifest, old.base, self.objects))
            manifest = links.with_times(manifest, compared)
            if manifest != old:
                write_file(folder / MANIFEST, [manifest.dump()])
            there = {real(place) for place in known}
            if new := [place for place in places if real(place) not in there]:
                report = self.index(new, folder, plan.rules, len(manifest.shards))
            else:
                remove_abandoned(folder)
                report = _report(folder, manifest, plan, [])
        return replace(report, compared=len(compared))

    def _compare(self, tasks: Sequence[links.Comparison]) -> dict[int, FileState]:
        """Reads old shards whose time has changed."""
        total, done = sum(task.shard.bytes for task in tasks), 0

        def advance(bytes: int) -> None:
            nonlocal done
            done += bytes
            if self.on_progress is not None:
                self.on_progress(IndexProgress(done, total, 0))

        return dict(
            run_tasks(WithObjects(links.compare), tasks, workers=min(self.workers, len(tasks)), on_progress=advance)
        )

    def _check_ends(self, places: Sequence[Location]) -> None:
        found = each(lambda place: check_ends(place, self.objects), places)
        problems = [problem for problem in found if problem is not None]
        if len(problems) == 1:
            raise PackError(problems[0])
        if problems:
            more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            listed = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
            raise PackError(f"{len(problems)} of {len(places)} shards cannot be indexed:{listed}{more}")


def _require_free(out: Location, objects: Objects) -> None:
    """Refuses a place with something in it before the time is spent to read all shards.

    At an address there may be what an indexer left that was stopped.

    Raises:
        UsageError: Nothing can be written there.
        OutputConflict: There is something.
        RemoteError: The object store does not answer as it should.
    """
    if isinstance(out, Path):
        if out.exists() and not out.is_dir():
            raise OutputConflict(f"{out} is a file, but packtrain writes a folder. Choose another name")
        if out.is_dir() and any(path.name != PARTS and not is_temporary(path) for path in out.iterdir()):
            raise OutputConflict(
                f"{out} is not empty. Choose a new folder, or add `--update` to take new shards into an indexed dataset"
            )
        return
    out.require_writable()
    names = {found.name for found in objects.list(out)}
    own = (f"{INDEX}/", f"{PARTS}/")
    strangers = [name for name in names if name not in (PLAN, REJECTS) and not name.startswith(own)]
    if strangers or (names and not names.intersection((PLAN, f"{PARTS}/{SHARD_LIST}"))):
        raise OutputConflict(f"{out} is not empty ({', '.join(sorted(names)[:3])}). Choose another address")
    if PLAN in names:
        IndexPlan.load(out, objects)


def _manifest_at(out: Location, objects: Objects) -> Manifest | None:
    """Reads the manifest of an indexed dataset; None if there is none."""
    data = read_if_there(out / MANIFEST, objects)
    manifest = None if data is None else Manifest.parse(data, out / MANIFEST)
    return None if manifest is None or manifest.base is None else manifest


def _complete(out: Location, manifest: Manifest, objects: Objects) -> IndexReport:
    """The report on a dataset that is finished already."""
    if isinstance(out, Path):
        remove_abandoned(out)
    return replace(_report(out, manifest, IndexPlan.load(out, objects), []), complete_before=True)


def _check_rejects(parts: Sequence[TarSamples], max_rejects: str | int, before: int) -> None:
    rejects = [item for part in parts for item in part.rejects]
    lines = len(rejects) + sum(len(part.columns) for part in parts)
    if len(rejects) == lines:
        why = f"; the first: {rejects[0].path}: {rejects[0].reason}" if rejects else ": there is none"
        raise PackError(f"no sample of {lines} can be used{why}")
    # Those that the dataset had before were accepted then.
    limit = max(before, reject_limit(max_rejects, lines))
    if len(rejects) > limit:
        examples = "".join(f"\n  {shown(os.fsencode(item.path))}: {item.reason}" for item in rejects[:_SHOWN])
        raise TooManyRejects(
            f"{len(rejects)} of {lines} samples refused, {limit} allowed.{examples}\n"
            "Say with --field what the extensions are and with --label where labels are (`--label none`: nowhere), "
            "or allow more with --max-rejects"
        )


def _write(
    temporary: Path,
    folder: Location,
    plan: IndexPlan,
    schema: Schema,
    parts: Sequence[TarSamples],
    base: Location,
    shards: tuple[ShardInfo, ...],
) -> Manifest:
    """Writes index, rejects.jsonl and manifest to `temporary`; all of it is to lie in `folder`."""
    rejects = [item for part in parts for item in part.rejects]
    with collecting(temporary, schema, sum(len(part.columns) for part in parts)) as rows:
        for part in parts:
            rows.add(np.arange(len(part.columns)) + rows.records, part.arrays(schema), part.columns.texts)
        described = partial(
            Manifest,
            name=re.sub("[^A-Za-z0-9_-]", "-", folder.name)[:255] or INDEX,
            format="tar",
            lines=rows.records + len(rejects),
            duplicates=0,
            plan_sha256=plan.sha256,
            written_by=plan.written_by,
            shards=shards,
        )
        return write_dataset(temporary, schema, rows, NO_GAPS, rejects, described, base_name(base, folder))


def _report(folder: Location, manifest: Manifest, plan: IndexPlan, scans: Sequence[Scan]) -> IndexReport:
    extensions = {
        field.name: tuple(rule.extension for rule in plan.rules.fields if rule.name == field.name)
        for field in manifest.fields
    }
    return IndexReport(
        dataset=folder,
        indexed=len(scans),
        shards=len(manifest.shards),
        records=manifest.records,
        bytes=manifest.bytes,
        rejects=manifest.rejects,
        fields=tuple(
            IndexedField(field.name, field.kind, extensions[field.name], field.missing) for field in manifest.fields
        ),
        labels=str(manifest.labels),
        left_out=sum(scan.left_out for scan in scans),
    )
