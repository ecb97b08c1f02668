"""Writes segments of a dataset again: several as one, or one without the rows that were dropped of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, flag, function, path_of, whole
from packtrain._core.errors import OutputConflict, UsageError
from packtrain._core.manifest import FieldInfo
from packtrain._core.options import StoreOptions
from packtrain._core.schema import LABEL, Field, Schema
from packtrain._core.sizes import byte_count
from packtrain._core.version_schema import MergedSchema, part_schema, part_schemas
from packtrain._core.versions import (
    SEGMENTS,
    Change,
    Segment,
    Version,
    layer_manifest,
    load_version,
    newest_version,
    publish,
    segment_manifest,
)
from packtrain._readers.dataset.kept import KeptRows
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._readers.dataset.versioned import SegmentStore, VersionLease

from .changing import ChangeReport, options_like, part_name, segment_of, would_be, writing
from .dataset_rows import StoredRecords, require_outside, require_own_columns, stored_by
from .listing import EncodedSample, ListedSample, Reject, dataset_name
from .lists.labels import stored_labels
from .options import Columns, PackOptions
from .output import Output
from .pack import pack_listing
from .pack_run import PackProgress
from .planning import outline_plan, plan_shards

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
    any reason, the same call continues where it stopped.

    Args:
        dataset: The folder of the dataset.
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
    folder, most = path_of("dataset", dataset), byte_count("segments_under", segments_under)
    workers = whole("num_workers", num_workers, 1)
    function("on_progress", on_progress)
    flag("dry_run", dry_run)
    # One that was never changed has one segment, and stays as it is.
    newest = newest_version(folder)
    runs = [run for run in _runs(folder, newest, most) if len(run) > 1]
    if not runs:
        return ChangeReport(folder, newest.number, newest.records, dry_run=dry_run)
    count = sum(map(len, runs))
    change = Change("compact", f"joined {count:,} segments into {len(runs):,}")
    return rewrite(folder, newest, runs, change, workers=workers, dry_run=dry_run, on_progress=on_progress)


def rewrite(
    folder: Path,
    newest: Version,
    runs: Sequence[Sequence[Segment]],
    change: Change,
    *,
    workers: int,
    dry_run: bool,
    on_progress: Progress | None,
) -> ChangeReport:
    """Puts a new segment in the place of each run of segments of a version that follow each other."""
    lease = None if dry_run else VersionLease(folder, newest.number)
    try:
        joined = [_Joined.of(folder, newest, run, lease) for run in runs]
        if dry_run:
            size = sum(segment_bytes(folder, each) * each.rows // max(1, each.records) for run in runs for each in run)
            paths = (f"{SEGMENTS}/{each.name}" for each in joined)
            return replace(would_be(folder, newest, newest.records, *paths, bytes=size), joined=sum(map(len, runs)))
        with ExitStack() as stack:
            made = list[tuple[Sequence[Segment], Segment]]()
            for run, each in zip(runs, joined, strict=True):
                # It belongs to this process until the version names it.
                stack.enter_context(writing(folder / SEGMENTS / each.name))
                made.append((run, each.packed(folder, workers, on_progress)))
            version = publish(folder, partial(_with_others, folder, made, change))
    finally:
        if lease is not None:
            lease.close()
    return ChangeReport(folder, version.number, version.records, joined=sum(map(len, runs)))


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
    """How a field is stored."""
    return field.store, field.encoding


def _with_others(
    folder: Path, made: Sequence[tuple[Sequence[Segment], Segment]], change: Change, newest: Version
) -> Version:
    """The version that follows `newest`, with a new segment in the place of each of these runs."""
    segments = list(newest.segments)
    for run, new in made:
        start = segments.index(run[0]) if run[0] in segments else 0
        if segments[start : start + len(run)] != list(run):
            raise OutputConflict(
                f"{folder}: somebody else has just changed what is joined, in version {newest.number} or before "
                f"(segment {run[0].name}). Run the command again"
            )
        segments[start : start + len(run)] = [new]
    version = newest.after(change, segments)
    merged = MergedSchema.of(part_schemas(folder, version))
    return replace(version, fields=merged.fields, labels=merged.labels, classes=merged.classes)


@dataclass(frozen=True)
class _Joined:
    """A segment that is to be made of others.

    Attributes:
        name: Its name, which follows from what it is made of.
        rows: What it is to hold.
        options: How.
    """

    name: str
    rows: JoinedRows
    options: PackOptions

    @classmethod
    def of(cls, folder: Path, version: Version, run: Sequence[Segment], lease: VersionLease | None) -> Self:
        """The segment that takes the place of these of a version."""
        if any(segment_manifest(folder, segment).base is not None for segment in run):
            raise UsageError(f"{folder} holds an index of shards that lie elsewhere, and cannot be written again")
        rows, options = JoinedRows(folder, run, lease), replace(options_like(folder, version), store=None)
        return cls(part_name(plan_shards(outline_plan(rows, options), rows)), rows, options)

    def packed(self, folder: Path, workers: int, on_progress: Progress | None) -> Segment:
        """Packs it."""
        place = folder / SEGMENTS / self.name
        pack_listing(
            self.rows, Output(place), self.options, num_workers=workers, max_rejects=0, on_progress=on_progress
        )
        return segment_of(place, self.name)


class _Part(NamedTuple):
    """A segment: its records, and which rows of it there are; None: all."""

    store: SegmentStore
    kept: KeptRows | None


@contextmanager
def version_rows(source: Path, out: Path, options: PackOptions) -> Iterator[tuple[JoinedRows, PackOptions]]:
    """Gives the rows of the newest version of a dataset to be packed once more in `out`; see `dataset_rows`.

    Raises:
        UsageError: `out` lies in the dataset, the options do not fit it, or no row is as they say.
        DatasetError: The dataset is damaged.
    """
    require_outside(source, out)
    require_own_columns(source, options)
    version = load_version(source)
    chosen = None if options.where is None else StoredRows(source).where(options.where)
    if chosen is not None and not len(chosen):
        raise UsageError(f"where={options.where!r}: no row of {source} is like this, and a dataset needs one")
    lease = VersionLease(source, version.number)
    try:
        rows = JoinedRows(source, version.segments, lease, options.store, chosen)
        usual = segment_manifest(source, version.segments[0]).format
        yield rows, replace(options, format=options.format or usual)
    finally:
        lease.close()


class JoinedRows:
    """The rows of segments that follow each other, as a `Listing`. Lines of a single one stay; others are counted.

    Args:
        folder: The dataset.
        run: The segments.
        lease: A lease on a version that names them; None in a dry run.
        store: How images are to be stored; None: as they are.
        chosen: Which of the rows there are, ascending, int64 [rows]; None: all.

    Raises:
        UsageError: The images are pixels, and are to be stored as files.
        DatasetError: A segment is damaged.
    """

    def __init__(
        self,
        folder: Path,
        run: Sequence[Segment],
        lease: VersionLease | None,
        store: StoreOptions | None = None,
        chosen: npt.NDArray[np.int64] | None = None,
    ) -> None:
        merged = MergedSchema.of([part_schema(folder, segment) for segment in run])
        names = Field.__dataclass_fields__
        fields = tuple(Field(**{name: getattr(field, name) for name in names}) for field in merged.fields)
        schema = Schema(fields, merged.labels, merged.classes)
        parts = [
            _Part(
                SegmentStore(folder, schema, segment, lease, "pread", True),
                None if segment.dropped is None else KeptRows(folder, segment),
            )
            for segment in run
        ]
        self.labels, self.classes = merged.labels, merged.classes
        self.columns: Columns | None = None
        self.fields: tuple[Field, ...] | None = tuple(stored_by(field, store) for field in fields)
        self.name = dataset_name(parts[0].store.manifest.name)
        self.rejects: list[Reject] = []
        self._chosen = chosen
        self.lines, self.duplicates = sum(segment.rows for segment in run) if chosen is None else len(chosen), 0
        self.advice = "Choose another store mode or another size"
        digest = repr(run) if chosen is None else f"{run!r} {hashlib.sha256(chosen.tobytes()).hexdigest()}"
        self.sha256 = hashlib.sha256(digest.encode()).hexdigest()
        self.source = JoinedRecords(parts, [segment.rows for segment in run])
        for part in parts:
            part.store.index.check_all()

    def __len__(self) -> int:
        """Number of rows."""
        return self.source.starts[-1] if self._chosen is None else len(self._chosen)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the rows with these numbers."""
        ordinals = self._of_all(ordinals)
        numbers = np.searchsorted(self.source.starts, ordinals, side="right") - 1
        samples = dict[int, ListedSample]()
        for number in np.unique(numbers).tolist():
            chosen = ordinals[numbers == number]
            store, rows = self.source.located(number, chosen)
            values = np.empty(0) if self.labels.kind == "none" else store.column(LABEL, rows)
            labels = stored_labels(self.labels, values, np.arange(len(rows)))
            lines = self.source.line_numbers(chosen).tolist()
            found = map(ListedSample, lines, store.filenames(rows), labels)
            samples |= dict(zip(chosen.tolist(), found, strict=True))
        return tuple(samples[ordinal] for ordinal in ordinals.tolist())

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the lines, int64 [n], of these rows [n]."""
        return self.source.line_numbers(self._of_all(ordinals))

    def _of_all(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return ordinals if self._chosen is None else self._chosen[ordinals]


class JoinedRecords:
    """The records of segments that follow each other, as a `Source`; see `StoredRecords`.

    Args:
        parts: The segments.
        lengths: How many rows there are of each.

    Attributes:
        starts: Number of the first row of each segment, and behind them the number of all rows.
    """

    def __init__(self, parts: Sequence[_Part], lengths: Sequence[int]) -> None:
        self._parts: Final = parts
        self._records: Final = [StoredRecords(part.store) for part in parts]
        self.starts: Final = [0, *accumulate(lengths)]

    def located(self, number: int, ordinals: npt.NDArray[np.int64]) -> tuple[SegmentStore, npt.NDArray[np.int64]]:
        """The records of segment `number`, and which of its rows these are."""
        store, kept = self._parts[number]
        inner = ordinals - self.starts[number]
        return store, inner if kept is None else kept[inner]

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the lines, int64 [n], of these rows [n]."""
        if len(self._parts) > 1:
            return ordinals
        store, rows = self.located(0, ordinals)
        return store.lines(rows)

    def _place(self, sample: ListedSample) -> tuple[int, int]:
        """The segment of a sample, and its row there."""
        if len(self._parts) == 1:
            return 0, int(np.searchsorted(self._parts[0].store.index["line"], sample.line))
        number = int(np.searchsorted(self.starts, sample.line, side="right")) - 1
        return number, int(self.located(number, np.array([sample.line]))[1][0])

    def encoder(self, schema: Schema) -> str | None:
        """See `Source`."""
        return next(filter(None, (records.encoder(schema) for records in self._records)), None)

    def reading(
        self, samples: Sequence[ListedSample], *, content: bool = True
    ) -> AbstractContextManager[JoinedRecords]:
        """See `Source`."""
        return nullcontext(self)

    def keeps_sizes(self, schema: Schema) -> bool:
        """See `Source`."""
        return all(records.keeps_sizes(schema) for records in self._records)

    def size(self, schema: Schema, sample: ListedSample) -> int:
        """See `Source`."""
        number, row = self._place(sample)
        store = self._parts[number].store
        return sum(max(0, store.field(name).length(row)) for name in schema.names)

    def where(self, sample: ListedSample) -> str:
        """See `Source`."""
        number, row = self._place(sample)
        store = self._parts[number].store
        return f"{store.path}: {store.describe(row)}"

    def resolve(self, path: str) -> str:
        """Returns the path as it is: the file is not needed."""
        return path

    def encode(self, schema: Schema, sample: ListedSample) -> EncodedSample:
        """See `Source`."""
        number, row = self._place(sample)
        return EncodedSample(sample.label, self._records[number].row(schema, row))
