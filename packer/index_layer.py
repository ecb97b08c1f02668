"""Layers without shards, of labels or of fields that lie in the index: what they hold, and how they are written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.files import remove_temporaries
from packtrain._core.index import ROW_COLUMNS, Index
from packtrain._core.manifest import INDEX, Manifest
from packtrain._core.options import LabelSpec
from packtrain._core.schema import LABEL, Field, Schema
from packtrain._core.versions import Layer, Segment, segment_manifest

from .columns import PATH, ShardColumns, ValueColumn
from .encoding import encode
from .layers import layer_digest, layer_of
from .listing import Listing, all_entries
from .matching import MISSING
from .options import Columns, FieldColumn
from .output import Output
from .pack_run import PackProgress
from .plan import Plan
from .planning import planned_columns, written_by
from .publishing import NO_GAPS, collecting, write_dataset
from .sources import Refused

Ints = npt.NDArray[np.int64]


def listed_values(
    table: Listing, columns: Sequence[FieldColumn], fields: Sequence[Field], first: int, listed: Path
) -> ShardColumns:
    """Reads columns of a list whose fields lie in the index. After the rows of the list comes one that has no value.

    Args:
        table: The list.
        columns: The columns.
        fields: Their fields.
        first: Which of the cells of a row is the first of them.
        listed: Path of the list, for messages.

    Raises:
        ListError: A field has no room for a value; the message names the line.
    """
    collected = [ValueColumn(field) for field in fields]
    for entry in all_entries(table) if columns else ():
        for column, field, each, cell in zip(columns, fields, collected, entry.cells[first:], strict=False):
            try:
                each.add(None if cell is None else encode(field, cell.content).payload)
            except Refused as refusal:
                raise ListError(f"{listed}: line {entry.line}: column {column.column!r}: {refusal}") from None
    values = ShardColumns({}, {})
    for each in collected:
        each.add(None)
        each.put_into(values)
    return values


@dataclass(frozen=True)
class IndexLayer:
    """A layer without shards, before it is written.

    Attributes:
        segment: The segment that it belongs to.
        plan: The plan that names it.
        values: Columns that have what it is to hold.
        rows: Which row of these each row of the segment has.
    """

    segment: Segment
    plan: Plan
    values: ShardColumns
    rows: Ints

    bytes: ClassVar[int] = 0

    @classmethod
    def of(
        cls,
        folder: Path,
        segment: Segment,
        table: Listing,
        columns: Sequence[FieldColumn],
        fields: Sequence[Field],
        values: ShardColumns,
        matches: Ints,
        key: str,
    ) -> Self:
        """Plans the fields of a segment of the dataset in `folder`, of what `listed_values` gives of a list.

        Args:
            folder: The dataset.
            segment: The segment.
            table: The list.
            columns: Its columns.
            fields: Their fields.
            values: Their values.
            matches: Ordinal of the list's row for each row of the segment, -1 where there is none.
            key: Name of the column of the keys.
        """
        plan = _plan(table.name, segment_manifest(folder, segment), f"{table.sha256} {layer_digest(segment, key)}")
        plan = replace(plan, fields=tuple(fields), columns=planned_columns(Columns(fields=tuple(columns))))
        return cls(segment, plan, values, np.where(matches == MISSING, len(table), matches))

    @classmethod
    def of_labels(
        cls, folder: Path, segment: Segment, labels: npt.NDArray[Any], classes: tuple[str, ...] | None
    ) -> Self:
        """Plans other labels, [rows] or [rows, K], of a segment of the dataset in `folder`."""
        manifest = segment_manifest(folder, segment)
        plan = _plan(manifest.name, manifest, f"{hashlib.sha256(labels.tobytes()).hexdigest()} {layer_digest(segment)}")
        plan = replace(plan, labels=manifest.labels, classes=classes)
        return cls(segment, plan, ShardColumns({LABEL: labels}, {}), np.arange(len(labels)))

    def packed(
        self,
        folder: Path,
        output: Output,
        workers: int = 1,
        on_progress: Callable[[PackProgress], None] | None = None,
    ) -> Layer:
        """Writes it beside its segment, in the order of that. Writing it again gives the same bytes."""
        output.offer_plan(self.plan.dump())
        index = Index.of(self.segment.folder(folder), segment_manifest(folder, self.segment))
        self._write(output.folder, index["by_place"])
        output.finish()
        return layer_of(output.folder)

    def _write(self, folder: Path, by_place: Ints) -> None:
        plan, rows = self.plan, len(self.rows)
        found = self.values.rows(self.rows[by_place])
        fields = []
        for field in plan.fields:
            whole = found.arrays[f"{field.prefix}valid"].all()
            fields.append(field if whole else replace(field, optional=True))
        schema = Schema(tuple(fields), plan.labels, plan.classes)
        arrays = {"line": by_place, "shard": np.zeros(rows, ROW_COLUMNS["shard"]), **found.arrays}
        no_paths = np.zeros(rows + 1, "<i8"), np.empty(0, np.uint8)
        with collecting(folder, schema, rows) as columns:
            columns.add(by_place, arrays, {PATH: no_paths, **found.texts})
            described = partial(
                Manifest,
                name=plan.name,
                format=plan.format,
                lines=rows,
                duplicates=0,
                plan_sha256=plan.sha256,
                written_by=plan.written_by,
                shards=(),
            )
            write_dataset(folder, schema, columns, NO_GAPS, [], described)
        # Nobody else writes here. What is left is of a run that was killed.
        for each in (folder, folder / INDEX):
            remove_temporaries(each)


def _plan(name: str, segment: Manifest, content: str) -> Plan:
    """The plan of a layer of a segment, without a field yet, that has what `content` names."""
    return Plan(
        name=name,
        format=segment.format,
        fields=(),
        labels=LabelSpec("none"),
        classes=None,
        columns=None,
        list_sha256=hashlib.sha256(content.encode()).hexdigest(),
        lines=segment.records,
        entries=segment.records,
        seed=None,
        shard_bytes=0,
        encoder=None,
        written_by=written_by(),
        shards=(),
    )
