"""Adds fields to a dataset: packs what a list says of its samples into a layer beside each segment."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, flag, function, instance, path_of, whole
from packtrain._core.errors import UsageError
from packtrain._core.index import Index
from packtrain._core.kinds import ADDABLE, KINDS
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field
from packtrain._core.version_files import LAYERS
from packtrain._core.versions import Change, Layer, Segment, Version, segment_manifest
from packtrain._storage.remote.urls import place_of

from .changing import ChangeReport, would_be
from .index_layer import IndexLayer, listed_values
from .layers import layer_digest, layer_of, with_layers
from .listing import ListedSample, Listing, Reject, Source
from .lists.reader import read_list
from .matching import MISSING, matched, require_sound
from .object_workplace import workplace_at
from .options import Columns, FieldColumn, PackOptions
from .output import Output
from .pack import pack_listing
from .pack_run import PackProgress
from .plan import Plan
from .planning import outline_plan, plan_shards, record_bytes, settled_fields
from .workplace import Workplace


@checks_names()
def add_field(
    dataset: str | os.PathLike[str],
    source: str | os.PathLike[str],
    fields: Sequence[FieldColumn],
    *,
    key: str = "path",
    root: str | os.PathLike[str] | None = None,
    replace_existing: bool = False,
    num_workers: int = 1,
    dry_run: bool = False,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> ChangeReport:
    """Adds fields to the samples of a dataset, as a new version. Nothing that is there is written again.

    A row of the list belongs to the sample whose path, byte for byte, is the value of the key column in UTF-8. If a run
    stops for any reason, the same call continues where it stopped.

    Args:
        dataset: The folder of the dataset, or its address in an object store.
        source: A list with named columns: CSV, TSV, JSON lines or Parquet.
        fields: The columns that hold the fields: texts, JSON, arrays, bytes, numbers or strings. One that is `optional`
            may be missing.
        key: Name of the column of the list that holds the paths.
        root: Folder that relative paths of values start from; None for the folder of the list.
        replace_existing: True to put fields in the place of those of the same name.
        num_workers: Number of worker processes, as in `packtrain.pack`.
        dry_run: True to write nothing, and report what would be written.
        on_progress: Called as by `packtrain.pack`, for each segment.

    Returns:
        The new version.

    Raises:
        ListError: The list cannot be read; or a key is there twice, in the list or in the dataset, names no sample, or
            is missing for a sample although the field is not optional.
        UsageError: A field cannot be added, or is there already.
        OutputConflict: Another process adds the same, or has replaced a segment meanwhile.
        PacktrainError: What `packtrain.pack` raises.
    """
    listed = path_of("source", source)
    function("on_progress", on_progress)
    workers = whole("num_workers", num_workers, 1)
    columns = tuple(instance("fields", field, FieldColumn) for field in fields)
    flag("dry_run", dry_run)
    flag("replace_existing", replace_existing)
    with workplace_at(place_of("dataset", dataset)) as place, place.held() as newest:
        _require_addable(columns, newest, replaced=replace_existing)
        planned = _planned(place, newest, listed, columns, key, None if root is None else path_of("root", root))
        if dry_run:
            size = sum(layer.bytes for layer in planned)
            names = (f"{LAYERS}/{place.expected_name(layer.plan)}" for layer in planned)
            return would_be(place, newest, newest.records, *names, bytes=size)
        change = Change("add-field", f"added {', '.join(column.name for column in columns)} from {listed.name}")
        place.begin()
        with ExitStack() as stack:
            # Of a packed dataset, nothing could be held before.
            stack.enter_context(place.held())
            layers: dict[str, list[Layer]] = {each.name: [] for each in newest.segments}
            for layer in planned:
                # They belong to this process until the version names them.
                output = stack.enter_context(place.writing(f"{LAYERS}/{place.name_of(layer.plan)}"))
                layers[layer.segment.name].append(layer.packed(place.folder, output, workers, on_progress))

            def with_fields(newest: Version) -> Version:
                # Somebody else may have added the same meanwhile.
                _require_addable(columns, newest, replaced=replace_existing)
                return with_layers(place, layers, change, newest)

            version = place.publish(with_fields)
    return ChangeReport(place.address, version.number, version.records)


def _planned(
    place: Workplace, newest: Version, listed: Path, columns: Sequence[FieldColumn], key: str, root: Path | None
) -> list[_PlannedLayer | IndexLayer]:
    """The layers of each segment, with records and without; raises what `add_field` raises."""
    stored = tuple(column for column in columns if not KINDS[column.kind].indexed)
    indexed = tuple(column for column in columns if column not in stored)
    table = read_list(
        listed,
        LabelSpec("none"),
        columns=Columns(image=key, fields=(*stored, *indexed)),
        root=root,
    )
    require_sound(table, listed)
    settled = settled_fields(table, PackOptions(columns=Columns(fields=(*stored, *indexed))))
    fields = settled[len(stored) :]
    values = listed_values(table, indexed, fields, len(stored), listed)
    place.bring_indexes(newest)
    folder = place.folder
    matches = matched(folder, newest, table, listed, optional=all(column.optional for column in columns))
    planned: list[_PlannedLayer | IndexLayer] = []
    if stored:
        # With the types and shapes that fit all segments.
        alike = (replace(each, dtype=one.dtype, shape=one.shape) for each, one in zip(stored, settled, strict=False))
        options = PackOptions(columns=Columns(fields=tuple(alike)), seed=None)
        planned += [_PlannedLayer.of(folder, each, table, matches[each.name], options, key) for each in newest.segments]
    if indexed:
        planned += [
            IndexLayer.of(folder, each, table, indexed, fields, values, matches[each.name], key)
            for each in newest.segments
        ]
    return planned


def _require_addable(columns: Sequence[FieldColumn], version: Version, *, replaced: bool) -> None:
    if not columns:
        raise UsageError("no field is named that is to be added")
    for column in columns:
        if KINDS.get(column.kind) not in ADDABLE:
            raise UsageError(
                f"{column.name}: a {column.kind} cannot be added, because it has to fit the stored image: pack again"
            )
        if column.name in version.schema.names and not replaced:
            raise UsageError(
                f"version {version.number} has a field {column.name} already: give another name, or add --replace"
            )


class LayerRows:
    """The samples that a list has for the rows of a segment, as a `Listing`. Its lines are the rows.

    Args:
        table: The list, whose first fields are those of the options.
        matches: Ordinal of the list's row for each row of the segment, -1 where there is none.
        options: Options with the fields.
        digest: Names the segment and the column of the keys, for the plan.
    """

    def __init__(self, table: Listing, matches: npt.NDArray[np.int64], options: PackOptions, digest: str) -> None:
        self.labels = LabelSpec("none")
        assert options.columns is not None, "a layer has fields"
        self.fields: tuple[Field, ...] | None = None
        self.name = table.name
        self.classes: tuple[str, ...] | None = None
        self.rejects: list[Reject] = []
        self.lines, self.duplicates = len(matches), 0
        self.sha256 = hashlib.sha256(f"{table.sha256} {digest}".encode()).hexdigest()
        self.advice = ""
        self._table, self._matches = table, matches
        self._nothing = (None,) * len(options.columns.fields)

    @property
    def source(self) -> Source:
        """The source of the list's values."""
        return self._table.source

    def __len__(self) -> int:
        """Number of rows of the segment."""
        return len(self._matches)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """The samples that the list has for these rows."""
        wanted = self._matches[ordinals]
        found = iter(self._table.entries(wanted[wanted != MISSING]))
        count = len(self._nothing)
        return tuple(
            ListedSample(row, "", None, self._nothing if match == MISSING else next(found).cells[:count])
            for row, match in zip(ordinals.tolist(), wanted.tolist(), strict=True)
        )

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the rows themselves."""
        return ordinals


@dataclass(frozen=True)
class _PlannedLayer:
    """The layer of a segment, before it is packed.

    Attributes:
        segment: The segment.
        rows: What it is to hold.
        options: How.
        plan: The plan that names it.
    """

    segment: Segment
    rows: LayerRows
    options: PackOptions
    plan: Plan

    @classmethod
    def of(
        cls,
        folder: Path,
        segment: Segment,
        table: Listing,
        matches: npt.NDArray[np.int64],
        options: PackOptions,
        key: str,
    ) -> Self:
        """Returns that of a segment of the dataset in `folder`; raises what `pack_listing` raises."""
        assert options.columns is not None, "a layer has fields"
        if (matches == MISSING).any():
            optional = tuple(replace(column, optional=True) for column in options.columns.fields)
            options = replace(options, columns=Columns(fields=optional))
        options = replace(options, format=segment_manifest(folder, segment).format)
        rows = LayerRows(table, matches, options, layer_digest(segment, key))
        return cls(segment, rows, options, plan_shards(outline_plan(rows, options), rows))

    @property
    def bytes(self) -> int:
        """About how many bytes its records take."""
        return record_bytes(self.rows, self.plan.schema) * len(self.rows)

    def packed(
        self, folder: Path, output: Output, workers: int, on_progress: Callable[[PackProgress], None] | None
    ) -> Layer:
        """Packs it, its records in the order of the segment's."""
        order = Index.of(self.segment.folder(folder), segment_manifest(folder, self.segment))["by_place"]
        pack_listing(
            self.rows,
            output,
            self.options,
            num_workers=workers,
            max_rejects=0,
            order=order,
            on_progress=on_progress,
        )
        return layer_of(output.folder)
