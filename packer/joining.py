"""Writes segments of a dataset again: several as one, or one without the rows that were dropped of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from packtrain._core.arguments import checks_names, flag, function, whole
from packtrain._core.errors import OutputConflict
from packtrain._core.manifest import FieldInfo
from packtrain._core.sizes import byte_count
from packtrain._core.version_files import SEGMENTS, require_no_links
from packtrain._core.version_schema import part_schema, version_schema
from packtrain._core.versions import Change, Segment, Version, layer_manifest, segment_manifest
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._readers.dataset.versioned import SegmentStore
from packtrain._storage.remote.urls import place_of
from packtrain._storage.staging.locks import VersionLease

from .changing import ChangeReport, options_like, require_own_shards, segment_of, would_be
from .dataset_rows import DatasetRows, digest_of
from .layers import next_version
from .object_workplace import workplace_at
from .options import PackOptions
from .output import Output
from .pack import pack_listing
from .pack_run import PackProgress
from .plan import Plan
from .planning import outline_plan, plan_shards
from .split import carried_names, carried_sides
from .workplace import Workplace

Progress = Callable[[PackProgress], None]


@checks_names()
def compact(
    dataset: str | os.PathLike[str],
    *,
    segments_under: str | int = "1GiB",
    num_workers: int = 1,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> ChangeReport:
    """Joins small segments that follow each other into one, as a new version with the same rows in the same order.

    Records are copied byte for byte. Fields that were added lie in the new segment itself, and rows that were dropped
    are not in it. Earlier versions keep the segments that they name, until `packtrain.drop_version`. If a run stops for
    any reason, the same call continues where it stopped, or at an address begins anew.

    Args:
        dataset: The folder of the dataset, or its address in an object store.
        segments_under: How large a segment may be, in bytes or as in ``"200MiB"``, to be joined with others. Segments
            that store a field in different ways are not joined.
        num_workers: Number of worker processes, as in `packtrain.pack`.
        dry_run: True to write nothing, and report what would be written.
        on_progress: Called as by `packtrain.pack`, for each new segment.

    Returns:
        The new version, or the newest one if there is nothing to join.

    Raises:
        UsageError: An argument is out of range.
        OutputConflict: Another process joins the same segments, or has changed one meanwhile.
        PacktrainError: What `packtrain.pack` raises.
    """
    most = byte_count("segments_under", segments_under)
    workers = whole("num_workers", num_workers, 1)
    function("on_progress", on_progress)
    flag("dry_run", dry_run)
    # One that was never changed has one segment, and stays as it is.
    with workplace_at(place_of("dataset", dataset)) as place, place.held() as newest:
        place.bring_manifests(newest)
        runs = [run for run in _runs(place.folder, newest, most) if len(run) > 1]
        if not runs:
            return ChangeReport(place.address, newest.number, newest.records, dry_run=dry_run)
        if not dry_run:
            place.begin()
        count = sum(map(len, runs))
        change = Change("compact", f"joined {count:,} segments into {len(runs):,}")
        return rewrite(place, newest, runs, change, workers=workers, dry_run=dry_run, on_progress=on_progress)


def rewrite(
    place: Workplace,
    newest: Version,
    runs: Sequence[Sequence[Segment]],
    change: Change,
    *,
    workers: int,
    dry_run: bool,
    on_progress: Progress | None,
) -> ChangeReport:
    """Puts a new segment in the place of each run of segments of a version that follow each other."""
    folder = place.folder
    require_no_links(folder)
    place.bring_indexes(newest)
    with nullcontext() if dry_run else closing(VersionLease(folder, newest.number)) as lease:
        joined = [_Joined.of(place, newest, run, lease) for run in runs]
        if dry_run:
            size = sum(segment_bytes(folder, each) * each.rows // max(1, each.records) for run in runs for each in run)
            paths = [f"{SEGMENTS}/{place.expected_name(each.plan)}" for each in joined]
            paths += carried_names(newest, len(runs))
            return replace(would_be(place, newest, newest.records, *paths, bytes=size), joined=sum(map(len, runs)))
        with ExitStack() as stack:
            made = list[tuple[Sequence[Segment], Segment]]()
            for run, each in zip(runs, joined, strict=True):
                name = place.name_of(each.plan)
                # It belongs to this process until the version names it.
                output = stack.enter_context(place.writing(f"{SEGMENTS}/{name}"))
                with place.shards(run):
                    made.append((run, each.packed(output, name, workers, on_progress)))
            version = place.publish(partial(_with_others, place, made, change))
    return ChangeReport(place.address, version.number, version.records, joined=sum(map(len, runs)))


def segment_bytes(folder: Path, segment: Segment) -> int:
    """Size of the shards of a segment and its layers."""
    layers = (layer_manifest(folder, segment, layer) for layer in segment.layers)
    return segment_manifest(folder, segment).bytes + sum(layer.bytes for layer in layers)


def _runs(folder: Path, version: Version, most: int) -> Iterator[list[Segment]]:
    """The segments that are small enough, as long as they follow each other and store each field in one way."""
    run, known = list[Segment](), dict[str, FieldInfo]()
    for segment in version.segments:
        fields = {field.name: field for field in part_schema(folder, segment).fields}
        small = segment_bytes(folder, segment) < most
        if not small or any(_way(fields[name]) != _way(known[name]) for name in fields.keys() & known.keys()):
            yield run
            run, known = [], {}
        if small:
            run.append(segment)
            known = {**fields, **known}
    yield run


def _way(field: FieldInfo) -> object:
    """Store options and encoding of a field."""
    return field.store, field.encoding


def _with_others(
    place: Workplace, made: Sequence[tuple[Sequence[Segment], Segment]], change: Change, newest: Version
) -> Version:
    """The version that follows `newest`, with a new segment in the place of each of these runs."""
    segments = list(newest.segments)
    for run, new in made:
        start = segments.index(run[0]) if run[0] in segments else 0
        if segments[start : start + len(run)] != list(run):
            raise OutputConflict(
                f"{place.address}: somebody else has just changed what is joined, in version {newest.number} or before "
                f"(segment {run[0].name}). Run the command again"
            )
        segments[start : start + len(run)] = [new]
    version = next_version(place, segments, change, newest)
    return replace(version, split=carried_sides(place.folder, newest, made))


@dataclass(frozen=True)
class _Joined:
    """A segment that is to be made of others.

    Attributes:
        plan: How it is packed, which follows from what it is made of.
        rows: What it is to hold.
        options: The options for that.
    """

    plan: Plan
    rows: DatasetRows
    options: PackOptions

    @classmethod
    def of(cls, place: Workplace, version: Version, run: Sequence[Segment], lease: VersionLease | None) -> Self:
        """The segment that takes the place of these of a version."""
        folder = place.folder
        require_own_shards(place, run)
        schema = version_schema(folder, run).schema
        stores = [SegmentStore(folder, schema, segment, lease, "pread", True) for segment in run]
        stored = StoredRows.of_segments(folder, run, stores)
        rows = DatasetRows(stored, schema, digest_of(run))
        options = replace(options_like(place, version), store=None)
        return cls(plan_shards(outline_plan(rows, options), rows), rows, options)

    def packed(self, output: Output, name: str, workers: int, on_progress: Progress | None) -> Segment:
        """Packs it."""
        pack_listing(self.rows, output, self.options, num_workers=workers, max_rejects=0, on_progress=on_progress)
        return segment_of(output.folder, name)
