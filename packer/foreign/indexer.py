"""Indexes foreign tar shards: reads each once, and makes a dataset of them whose shards stay in place."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import gettempdir
from typing import Final

import numpy as np

from packtrain._core.arguments import checks_names, flag, function, path_of, whole
from packtrain._core.errors import OutputConflict, PackError, TooManyRejects, UsageError
from packtrain._core.files import file_errors, write_file
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, Link, Manifest, ShardInfo
from packtrain._core.schema import Field, Schema
from packtrain._storage.location import Location, each, object_store, real
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url, place_of

from ..engine import run_tasks
from ..options import reject_limit
from ..publishing import (
    NO_GAPS,
    building,
    collecting,
    exchange,
    not_empty,
    only_updater,
    publish,
    upload,
    write_dataset,
)
from . import links, tables
from .headers import shown
from .plan import IndexPlan, Rules
from .scan import Scan, ScanProgress, ScanTask, check_ends, scan_shard
from .shard_files import State, WithObjects, states, unreadable
from .sources import find_places
from .tables import Before, Rows
from .unpacking import unpacked_shards

_SHOWN: Final = 5


@dataclass(frozen=True)
class IndexProgress:
    """Progress of a run.

    Attributes:
        done: Number of bytes of shards that have been read.
        total: Number of bytes to read.
        samples: Number of samples found so far.
    """

    done: int
    total: int
    samples: int


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
    workers: int = 1,
    max_rejects: str | int = "0.1%",
    on_progress: Callable[[IndexProgress], None] | None = None,
) -> IndexReport:
    """Makes a dataset of WebDataset tar shards, which stay where they are.

    Each shard is read once, from front to back; in an object store, by ranged requests. Rows are in the order of the
    shards, and in that of each shard.

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
        workers: Number of worker processes. They are spawned, so with more than one the calling script needs the usual
            ``if __name__ == "__main__"``.
        max_rejects: How many samples may be refused: a percentage (``"0.1%"``) or a count (``"20"`` or ``20``).
        on_progress: Called in the calling process, several times a second.

    Returns:
        What was found.

    Raises:
        UsageError: An argument has the wrong type, or does not fit what is in the shards.
        PackError: A shard cannot be read, is not a sound tar archive of samples, or has changed since it was indexed.
        OutputConflict: `out` holds something else, or somebody else is indexing there.
        TooManyRejects: More samples were refused than allowed.
        DatasetError: The dataset that is to be updated is not sound.
        RemoteError: The object store does not answer as it should; NotThere if it has no such bucket, Denied if it does
            not let these credentials read or write.
        MissingDependency: What reads object stores is not installed.
    """
    rules = Rules.parse(fields, masks, label, mode)
    flag("update", update)
    function("on_progress", on_progress)
    workers = whole("workers", workers, 1)
    out = place_of("out", out)
    sources = [shards] if isinstance(shards, str | os.PathLike) else list(shards)
    if base is not None and not update:
        raise UsageError("`base` says where the shards of an indexed dataset are now: add `update`")
    with closing(object_store()) as objects:
        run = _Run(workers, max_rejects, on_progress, objects)
        places = find_places(sources, objects) if sources or not update else []
        if unpack is not None:
            places = unpacked_shards(places, path_of("unpack", unpack), workers=workers)
        if update:
            return _update(run, places, out, rules, base)
        if isinstance(out, Path):
            out = Path(os.path.realpath(out))
        with file_errors(out if isinstance(out, Path) else Path(gettempdir())):
            _require_free(out, objects)
            return run.index(places, out, rules, None)


def _update(
    run: _Run, places: Sequence[Location], out: Location, rules: Rules, base: str | os.PathLike[str] | None
) -> IndexReport:
    if isinstance(out, Url):
        raise UsageError(
            f"{out} cannot be updated: nothing replaces the files of a dataset in a store at once. Index all shards "
            "again, to another address"
        )
    if rules != Rules():
        raise UsageError(
            "an update keeps to what the extensions meant at first: leave out `fields`, `masks`, `label` and `mode`"
        )
    moved = None if base is None else place_of("base", base)
    if isinstance(moved, Path):
        moved = Path(os.path.abspath(moved))
    folder = Path(os.path.realpath(out))
    with file_errors(folder), only_updater(folder):
        return run.update(places, folder, moved)


@dataclass(frozen=True)
class _Run:
    """How shards are indexed; see `index_shards`."""

    workers: int
    max_rejects: str | int
    on_progress: Callable[[IndexProgress], None] | None
    objects: Objects

    def index(self, places: Sequence[Location], folder: Location, rules: Rules, before: Before | None) -> IndexReport:
        """Reads shards, and puts a dataset of them in its place."""
        self._check_ends(places)
        if before is not None:
            links.require_no_strangers(before.folder)
        known = [] if before is None else [shard.name for shard in before.manifest.shards]
        scans = self._scan([ScanTask(number, place, rules) for number, place in enumerate(places, len(known))])
        if before is None:
            rules.require_used(dict.fromkeys(extension for scan in scans for extension in scan.found))
        settled, fields = tables.settle(rules, scans)
        if before is not None:
            settled, fields = replace(settled, labels=rules.labels), before.fields_with(fields)
        names = links.shard_names(places, known)
        parts = _rows(scans, names, settled, fields, before)
        _check_rejects(parts, self.max_rejects, 0 if before is None else before.manifest.rejects)
        plan = IndexPlan(settled, f"packtrain {metadata.version('packtrain')}")
        schema = Schema(fields, *tables.settle_labels(parts, None if before is None else before.manifest))
        shards = [] if before is None else before.shards()
        for scan, place, name, part in zip(scans, places, names, parts[-len(scans) :], strict=True):
            link = Link("", *scan.state[1:])
            shards.append((place, ShardInfo(name, scan.state.bytes, scan.crc32c, len(part.columns), (), link)))
        with building(folder, plan.dump()) as temporary:
            manifest = _write(temporary, folder, plan, schema, parts, *links.linked_shards(shards))
            if isinstance(folder, Url):
                upload(temporary, folder, self.objects)
            else:
                (publish if before is None else exchange)(temporary, folder)
        return _report(folder, manifest, plan, scans)

    def update(self, places: Sequence[Location], folder: Path, base: Location | None) -> IndexReport:
        """Brings the links of a dataset up to date, and takes those shards in that it does not have."""
        plan, old = IndexPlan.load(folder), Manifest.load(folder)
        manifest = old if base is None else replace(old, base=links.base_name(base, folder))
        known = links.shard_places(folder, manifest)
        links.require_outside(folder, [*known, *places])
        compared = self._compare(links.with_other_times(folder, manifest, old.base, self.objects))
        manifest = links.with_times(manifest, compared)
        if manifest != old:
            write_file(folder / MANIFEST, [manifest.dump()])
        there = {real(place) for place in known}
        if new := [place for place in places if real(place) not in there]:
            report = self.index(new, folder, plan.rules, Before.load(folder))
        else:
            report = _report(folder, manifest, plan, [])
        return replace(report, compared=len(compared))

    def _compare(self, tasks: Sequence[links.Comparison]) -> list[links.Compared]:
        """Reads old shards whose time has changed."""
        total, done = sum(task.shard.bytes for task in tasks), 0

        def advance(bytes: int) -> None:
            nonlocal done
            done += bytes
            if self.on_progress is not None:
                self.on_progress(IndexProgress(done, total, 0))

        return list(
            run_tasks(WithObjects(links.compare), tasks, workers=min(self.workers, len(tasks)), on_progress=advance)
        )

    def _scan(self, tasks: Sequence[ScanTask]) -> list[Scan]:
        """Reads all shards. Returns what is in them, in their order."""
        total, done, samples = self._total(tasks), Counter[int](), Counter[int]()

        def advance(progress: ScanProgress) -> None:
            done[progress.number], samples[progress.number] = progress.bytes, progress.samples
            if self.on_progress is not None:
                self.on_progress(IndexProgress(done.total(), total, samples.total()))

        scans = []
        workers = min(self.workers, len(tasks))
        for scan in run_tasks(WithObjects(scan_shard), tasks, workers=workers, on_progress=advance):
            advance(ScanProgress(scan.number, scan.state.bytes, len(scan.keys)))
            scans.append(scan)
        return sorted(scans, key=lambda scan: scan.number)

    def _total(self, tasks: Sequence[ScanTask]) -> int:
        """Bytes of all shards."""
        places = [task.place for task in tasks]
        total = 0
        for place, state in zip(places, states(places, self.objects), strict=True):
            if not isinstance(state, State):
                raise unreadable(place, state) from state
            total += state.bytes
        return total

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
        if out.is_dir() and os.listdir(out):
            raise not_empty(out)
        return
    out.require_writable()
    names = {found.name for found in objects.list(out)}
    strangers = [name for name in names if name not in (PLAN, REJECTS) and not name.startswith(f"{INDEX}/")]
    if strangers or (names and PLAN not in names):
        raise OutputConflict(f"{out} is not empty ({', '.join(sorted(names)[:3])}). Choose another address")
    if names:
        IndexPlan.fetch(out, objects)


def _rows(
    scans: Sequence[Scan], names: Sequence[str], rules: Rules, fields: Sequence[Field], before: Before | None
) -> list[Rows]:
    """The rows of the dataset: those of before, and those of each new shard."""
    extensions = {rule.extension: rule.name for rule in rules.fields}
    parts = [] if before is None else [before.rows_with(fields)]
    line = 0 if before is None else before.manifest.lines
    tables.refuse_rounded_labels(scans)
    for scan, name in zip(scans, names, strict=True):
        parts.append(tables.rows(scan, name, line, extensions, fields, rules.labels))
        line += len(scan.keys)
    return parts


def _check_rejects(parts: Sequence[Rows], max_rejects: str | int, before: int) -> None:
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
    parts: Sequence[Rows],
    base: Location,
    shards: tuple[ShardInfo, ...],
) -> Manifest:
    """Writes index, rejects.jsonl and manifest to `temporary`; all of it is to lie in `folder`."""
    rejects = [item for part in parts for item in part.rejects]
    with collecting(temporary, schema, sum(len(part.columns) for part in parts)) as rows:
        for part in parts:
            rows.add(np.arange(len(part.columns)) + rows.records, part.arrays(schema), part.columns.paths)
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
        return write_dataset(temporary, schema, rows, NO_GAPS, rejects, described, links.base_name(base, folder))


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
