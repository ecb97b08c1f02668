"""Makes new versions of a dataset: appends samples, leaves rows out. Nothing that is there is written again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, flag, function, instance, path_of, whole
from packtrain._core.errors import OutputConflict, UsageError
from packtrain._core.manifest import MANIFEST, PLAN, FieldInfo, is_dataset
from packtrain._core.options import LabelSpec
from packtrain._core.problems import reading
from packtrain._core.schema import IMAGE, LABEL
from packtrain._core.version_files import BASE_MANIFEST, DROPPED, SEGMENTS, has_versions, version_name
from packtrain._core.version_schema import PartSchema, merged, part_schema
from packtrain._core.versions import Change, DroppedRows, Segment, Version, require_rows, segment_manifest
from packtrain._readers.dataset.chosen import chosen_rows
from packtrain._readers.dataset.kept import KeptRows, dropped_rows
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._storage.remote.urls import Url, place_of

from .layers import next_version, part_in, require_segments, write_column
from .object_workplace import workplace_at
from .options import Columns, FieldColumn, PackOptions
from .pack import open_listing, pack_listing
from .pack_run import PackProgress, PackReport
from .plan import Plan
from .planning import outline_plan, plan_shards, record_bytes
from .removing import RemovalReport
from .workplace import Workplace, segment_place


@dataclass(frozen=True)
class ChangeReport:
    """A change of a dataset.

    Attributes:
        dataset: Folder or address of the dataset.
        version: Number of the version that has the change.
        records: Number of its rows.
        added: Number of rows that it has and the version before had not.
        dropped: Number of rows that the version before had and it has not.
        packed: Report on what was packed for it; None if nothing was.
        joined: Number of segments that others took the place of.
        removal: What was removed of the dataset; None if nothing was to be.
        dry_run: True if nothing was written, and all of this is what would be.
        written: In a dry run, what would be written, as paths in the folder of the dataset.
        bytes: In a dry run, about how many bytes the records take that would be packed, or the files to be copied.
        relabelled: Number of rows that have another label than before.
        sides: Of a split, the number of rows on each side, by its name.
    """

    dataset: Path | Url
    version: int
    records: int
    added: int = 0
    dropped: int = 0
    packed: PackReport | None = None
    joined: int = 0
    removal: RemovalReport | None = None
    dry_run: bool = False
    written: tuple[str, ...] = ()
    bytes: int = 0
    relabelled: int = 0
    sides: dict[str, int] = dataclass_field(default_factory=dict)


def would_be(
    place: Workplace,
    newest: Version,
    records: int,
    *paths: str,
    added: int = 0,
    dropped: int = 0,
    bytes: int = 0,
    versions: int = 1,
) -> ChangeReport:
    """The report of a dry run: on one or more versions after `newest` for which these paths would be written.

    Raises:
        UsageError: It would have no row.
    """
    require_rows(records)
    of_packed = () if has_versions(place.folder) else (BASE_MANIFEST, version_name(1), MANIFEST)
    written = (*of_packed, *paths, *(version_name(newest.number + 1 + each) for each in range(versions)))
    return ChangeReport(
        place.address, newest.number + versions, records, added, dropped, dry_run=True, written=written, bytes=bytes
    )


@checks_names()
def append(
    dataset: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    columns: Columns | None = None,
    label_names: bool | None = None,
    classes: Path | tuple[str, ...] | None = None,
    root: str | os.PathLike[str] | None = None,
    num_workers: int = 1,
    max_rejects: str | int = "0.1%",
    dry_run: bool = False,
    on_progress: Callable[[PackProgress], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> ChangeReport:
    """Appends the samples of a list, an image folder or another dataset to a dataset, as a new version.

    Only what is appended is written. It is stored as the dataset's first samples are. If a run stops for any reason,
    the same call continues where it stopped, or at an address begins anew; a list whose segment the newest version has
    is not appended again.

    Args:
        dataset: The folder of the dataset, or its address in an object store.
        source: What to append, as `packtrain.pack` takes it.
        columns: Which columns of the list hold what; None: those that the dataset was packed from.
        label_names: True if the label on each line is the name of a class, False if it is a number. None: a number,
            unless the dataset has a class whose name is the number of another one: then it is an error not to say.
        classes: Class names in label order, or a file with one per line, if there are new ones: the names that the
            dataset has come first. None: those that it has.
        root: Folder that relative paths start from; None for the folder of the list.
        num_workers: Number of worker processes, as in `packtrain.pack`.
        max_rejects: How many lines may be refused, as in `packtrain.pack`.
        dry_run: True to write nothing, and report what would be written if no line is refused.
        on_progress: As in `packtrain.pack`.
        on_warning: As in `packtrain.pack`.

    Returns:
        The new version, or the one that has the list already.

    Raises:
        UsageError: The samples do not fit the dataset: other fields, labels or classes.
        OutputConflict: Another process appends the same list.
        PacktrainError: What `packtrain.pack` raises.
    """
    function("on_progress", on_progress)
    function("on_warning", on_warning)
    flag("dry_run", dry_run)
    workers = whole("num_workers", num_workers, 1)
    listed = place_of("source", source)
    with workplace_at(place_of("dataset", dataset)) as place:
        with place.held() as newest:
            like = options_like(place, newest)
        if isinstance(listed, Path) and is_dataset(listed):
            # It says itself what its rows are.
            like = replace(like, columns=None, classes=None, labels=LabelSpec())
        elif label_names is None and not (isinstance(listed, Path) and listed.is_dir()):
            require_plain_names(place, newest, listed)
        options = replace(
            like,
            columns=like.columns if columns is None else instance("columns", columns, Columns),
            label_names=flag("label_names", label_names or False),
            classes=like.classes if classes is None else classes,
            root=None if root is None else path_of("root", root),
        )
        with open_listing(listed, place.folder, options, on_warning) as (images, options, before):
            plan = plan_shards(outline_plan(images, options), images)
            if place.has_packed(newest, plan):
                return ChangeReport(place.address, newest.number, newest.records, dry_run=dry_run)
            fields = tuple(map(FieldInfo.of, plan.fields))
            _joined(newest, PartSchema("", fields, plan.labels, plan.classes, len(images)))
            if dry_run:
                added = len(images)
                size, part = added * record_bytes(images, plan.schema), f"{SEGMENTS}/{place.expected_name(plan)}"
                return would_be(place, newest, newest.records + added, part, added=added, bytes=size)
            place.begin()
            name = place.name_of(plan)
            with place.writing(f"{SEGMENTS}/{name}") as output:
                packed = pack_listing(
                    images,
                    output,
                    options,
                    num_workers=workers,
                    max_rejects=max_rejects,
                    before=before,
                    on_progress=on_progress,
                )
                segment = segment_of(output.folder, name)
                text = f"appended {segment.records:,} samples of {os.path.basename(os.fspath(listed))}"
                version = place.publish(partial(_with_segment, place, segment, plan, Change("append", text)))
    return ChangeReport(place.address, version.number, version.records, added=segment.records, packed=packed)


def require_plain_names(place: Workplace, version: Version, listed: Path | Url) -> None:
    """Refuses to guess what ``1`` on a line of a list means.

    Raises:
        UsageError: A class has the number of another one for a name.
    """
    for number, name in enumerate(version.classes or ()):
        if name.isascii() and name.isdecimal() and int(name) != number:
            raise UsageError(
                f"{place.address} has a class {name!r} whose number is {number}, so nobody knows which of them a "
                f"label in {listed} is: give --labels class for names, or --labels int for numbers (label_names=True "
                "or False)"
            )


@checks_names()
def drop_rows(
    dataset: str | os.PathLike[str],
    rows: Iterable[int] | None = None,
    *,
    where: str | None = None,
    dry_run: bool = False,
) -> ChangeReport:
    """Leaves rows out, in a new version. The records stay where they are, and earlier versions have them.

    Args:
        dataset: The folder of the dataset, or its address in an object store.
        rows: Rows of the newest version: row numbers, negative ones counted from the end, or a boolean for each row.
        where: In place of rows, a condition that holds for them, as `ImageDataset.where` takes it.
        dry_run: True to write nothing, and report what would be written.

    Raises:
        UsageError: The condition is none, a row is outside the dataset, or none would be left.
        OutputConflict: What the rows were in has been replaced meanwhile.
        PacktrainError: The dataset cannot be read, or not be written to.
    """
    flag("dry_run", dry_run)
    with workplace_at(place_of("dataset", dataset)) as place, place.held() as newest:
        numbers = rows_to_drop(place, newest, rows, where)
        chosen = dict(by_segment(place, newest, numbers))
        if dry_run:
            left = newest.records - len(numbers)
            files = [f"{DROPPED}/*.npy" for each in newest.segments if 0 < len(chosen.get(each.name, ())) < each.rows]
            return would_be(place, newest, left, *files, dropped=len(numbers))
        change = Change("drop-rows", f"dropped {counted(len(numbers))}")
        place.begin()
        version = place.publish(partial(without_rows, place, chosen, change))
    return ChangeReport(place.address, version.number, version.records, dropped=len(numbers))


def counted(rows: int) -> str:
    """A number of rows, in words."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


def rows_to_drop(
    place: Workplace, newest: Version, rows: Iterable[int] | None, where: str | None
) -> npt.NDArray[np.int64]:
    """The rows of the newest version that are given, ascending.

    Raises:
        UsageError: There are none, or they are outside.
    """
    if rows is not None and where is None:
        try:
            numbers = np.unique(chosen_rows(rows, newest.records))
        except IndexError as error:
            raise UsageError(str(error)) from None
    elif rows is None and where is not None:
        place.bring_indexes(newest)
        numbers = StoredRows.of_version(place.folder, newest, index_only=True).where(where)
    else:
        raise UsageError("say which rows to drop: either `rows` or `where`")
    if not len(numbers):
        raise UsageError("there is no row to drop")
    return numbers


def segment_of(folder: Path, name: str) -> Segment:
    """Describes a segment that has just been packed, for a version."""
    info, manifest = part_in(folder)
    return Segment(name, info, manifest.records)


def _with_segment(place: Workplace, segment: Segment, plan: Plan, change: Change, newest: Version) -> Version:
    """The version that follows `newest`, with one more segment, which was packed by `plan`."""
    if place.has_packed(newest, plan):
        raise OutputConflict(
            f"{place.address}: somebody else has just appended the same list, in version {newest.number}"
        )
    schema = _joined(newest, part_schema(place.folder, segment))
    return schema.of(newest.after(change, [*newest.segments, segment]))


def _joined(newest: Version, part: PartSchema) -> PartSchema:
    """The schema of a version to which a part is appended; raises what `merged` raises."""
    there = PartSchema("the dataset", newest.fields, newest.labels, newest.classes, newest.records)
    return merged([there, replace(part, name="what is appended")])


def by_segment(
    place: Workplace, version: Version, rows: npt.NDArray[np.int64]
) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """The segments that have some of these rows of a version, ascending, and which rows of the segment these are."""
    place.bring(version.columns)
    start = 0
    for segment in version.segments:
        first, last = np.searchsorted(rows, (start, start + segment.rows))
        if first < last:
            inner = rows[first:last] - start
            yield segment.name, inner if segment.dropped is None else KeptRows(place.folder, segment)[inner]
        start += segment.rows


def without_rows(
    place: Workplace, chosen: dict[str, npt.NDArray[np.int64]], change: Change, newest: Version
) -> Version:
    """The version that follows `newest`, without these rows of its segments."""
    require_segments(place, chosen, newest)
    place.bring(newest.columns)
    segments = [
        _without(place.folder, segment, chosen[segment.name]) if segment.name in chosen else segment
        for segment in newest.segments
    ]
    # A segment that goes as a whole may take fields and class names with it.
    return next_version(place, [segment for segment in segments if segment is not None], change, newest)


def _without(folder: Path, segment: Segment, rows: npt.NDArray[np.int64]) -> Segment | None:
    """A segment without these rows and those that were dropped before; None if it has no others."""
    if segment.dropped is not None:
        rows = np.union1d(rows, dropped_rows(folder, segment.dropped, segment.records))
    if len(rows) == segment.records:
        return None
    column = write_column(folder, DROPPED, rows.astype("<i8"))
    return replace(segment, dropped=DroppedRows(column.name, column.bytes, column.crc32c, len(rows)))


def require_own_shards(place: Workplace, segments: Sequence[Segment]) -> None:
    """Refuses to copy records of an index.

    Raises:
        UsageError: The shards of one of these segments lie elsewhere.
    """
    if any(segment_manifest(place.folder, segment).base is not None for segment in segments):
        copy = f"packtrain stage {shlex.quote(str(place.address))} --to DIR"
        raise UsageError(
            f"{place.address} holds an index of shards that lie elsewhere, which stay as they are: `packtrain "
            f"drop-rows` leaves rows out. For a dataset with records of its own, copy it (`{copy}`), and pack the copy "
            "(`packtrain pack COPY OUT`)"
        )


def options_like(place: Workplace, version: Version) -> PackOptions:
    """Options by which more samples are stored as the first ones of a version are."""
    first = version.segments[0]
    place.bring([f"{segment_place(first.name)}{PLAN}"])
    schema, columns = version.schema, None
    folder = first.folder(place.folder)
    try:
        with reading(folder / PLAN):
            plan = Plan.load(folder)
    except OutputConflict as error:
        how = (
            "index all shards into another folder"
            if has_versions(place.folder)
            else "`packtrain index --update` adds some"
        )
        raise UsageError(f"{place.address} holds an index of shards that lie elsewhere: {how}") from error
    if plan.columns is not None:
        named = {column.field: column for column in plan.columns}
        fields = [field for field in schema.others if field.name in named]
        columns = Columns(
            named[IMAGE].column if IMAGE in named else None,
            named[LABEL].column if LABEL in named else None,
            tuple(
                FieldColumn(
                    field.name,
                    field.kind,
                    named[field.name].column,
                    named[field.name].by_path,
                    field.optional,
                    field.encoding or "png",
                    field.dtype,
                    field.shape,
                    field.classes,
                )
                for field in fields
            ),
        )
    image = schema.image
    return PackOptions(
        plan.format,
        None if image is None else image.store,
        schema.labels,
        columns=columns,
        classes=schema.classes,
        shard_size=plan.shard_bytes,
        seed=plan.seed,
    )
