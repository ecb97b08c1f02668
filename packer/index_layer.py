"""Layers without shards, of labels or of fields that lie in the index: what they hold, and how they are written."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.files import make_folder, write_file
from packtrain._core.index import ROW_COLUMNS, Index, IndexWriter
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, FieldInfo, Manifest
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field

from .encoding import encode
from .listing import Cell, Listing
from .options import Columns, FieldColumn
from .plan import Plan
from .planning import planned_columns, written_by
from .rejects import write_rejects
from .reordering import picked_texts
from .sources import Refused

_AT_ONCE: Final = 1 << 14
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ListedValues:
    """The values that a list has for a field in the index.

    Attributes:
        field: The field.
        valid: Which rows of the list have a value, bool [rows].
        values: The numbers, [rows]; or all texts, uint8.
        offsets: Where the texts begin, and where the last one ends, int64 [rows + 1]; None for numbers.
    """

    field: Field
    valid: npt.NDArray[np.bool_]
    values: npt.NDArray[Any]
    offsets: Ints | None = None

    def write(self, writer: IndexWriter, matches: Ints) -> FieldInfo:
        """Writes the columns of rows that are these rows of the list, or none (-1)."""
        valid = matches >= 0
        valid[valid] = self.valid[matches[valid]]
        there = matches[valid]
        writer.add(f"{self.field.prefix}valid", valid.astype("|u1"))
        if self.offsets is None:
            numbers = np.zeros(len(matches), self.field.dtype)
            numbers[valid] = self.values[there]
            writer.add(f"{self.field.prefix}value", numbers)
        else:
            sizes = np.zeros(len(matches), np.int64)
            sizes[valid] = np.diff(self.offsets)[there]
            texts = picked_texts(self.values, self.offsets[there], sizes[valid])
            writer.add_text(f"{self.field.prefix}value", np.concatenate([[0], np.cumsum(sizes)]).astype("<i8"), texts)
        missing = len(matches) - int(np.count_nonzero(valid))
        return FieldInfo.of(replace(self.field, optional=self.field.optional or missing > 0), missing=missing)


def listed_values(
    table: Listing, columns: Sequence[FieldColumn], fields: Sequence[Field], first: int, listed: Path
) -> list[ListedValues]:
    """Reads columns of a list whose fields lie in the index.

    Args:
        table: The list.
        columns: The columns.
        fields: Their fields.
        first: Which of the cells of a row is the first of them.
        listed: Path of the list, for messages.

    Raises:
        ListError: A field has no room for a value; the message names the line.
    """
    collected = [_Collected(field) for field in fields]
    for start in range(0, len(table), _AT_ONCE):
        for entry in table.entries(np.arange(start, min(start + _AT_ONCE, len(table)))):
            for column, each, cell in zip(columns, collected, entry.cells[first:], strict=False):
                try:
                    each.add(cell)
                except Refused as refusal:
                    raise ListError(f"{listed}: line {entry.line}: column {column.column!r}: {refusal}") from None
    return [each.values() for each in collected]


class _Collected:
    """Collects the values of a field."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._nothing = bytes(np.dtype(field.dtype).itemsize) if field.text_column is None else b""
        self._valid, self._data, self._ends = bytearray(), bytearray(), array("q", [0])

    def add(self, cell: Cell | None) -> None:
        self._valid.append(cell is not None)
        self._data += self._nothing if cell is None else encode(self._field, cell.content).payload
        if self._field.text_column is not None:
            self._ends.append(len(self._data))

    def values(self) -> ListedValues:
        valid = np.frombuffer(self._valid, bool)
        if self._field.text_column is None:
            return ListedValues(self._field, valid, np.frombuffer(self._data, self._field.dtype))
        return ListedValues(self._field, valid, np.frombuffer(self._data, np.uint8), np.asarray(self._ends))


@dataclass(frozen=True)
class IndexLayer:
    """A layer without shards, before it is written.

    Attributes:
        plan: The plan that names it.
        matches: Ordinal of the list's row for each row of the segment, -1 where there is none.
        values: What the list says.
        labels: The labels of the rows of the segment, in place of these; None to leave the segment's.
    """

    plan: Plan
    matches: Ints
    values: tuple[ListedValues, ...] = ()
    labels: npt.NDArray[Any] | None = None

    @classmethod
    def of(
        cls,
        table: Listing,
        columns: Sequence[FieldColumn],
        values: Sequence[ListedValues],
        matches: Ints,
        format: str,
        digest: str,
    ) -> Self:
        """Plans the layer of a segment, which is packed in this format, and which `digest` names."""
        plan = replace(
            _plan(table.name, format, f"{table.sha256} {digest}", len(matches)),
            fields=tuple(each.field for each in values),
            columns=planned_columns(Columns(fields=tuple(columns))),
        )
        return cls(plan, matches, tuple(values))

    @classmethod
    def of_labels(
        cls, labels: npt.NDArray[Any], segment: Manifest, classes: tuple[str, ...] | None, digest: str
    ) -> Self:
        """Plans the layer of other labels, [rows] or [rows, K], for a segment that `digest` names."""
        content = hashlib.sha256(labels.tobytes()).hexdigest()
        plan = _plan(segment.name, segment.format, f"{content} {digest}", len(labels))
        plan = replace(plan, labels=segment.labels, classes=classes)
        return cls(plan, np.full(len(labels), -1), labels=labels)

    def write(self, folder: Path, segment: Index) -> None:
        """Writes it, with the order of the segment that has this index. Writing it again gives the same bytes."""
        rows = len(self.matches)
        make_folder(folder / INDEX)
        write_file(folder / PLAN, [self.plan.dump()])
        rejects = write_rejects(folder, [])
        writer = IndexWriter(folder / INDEX, rows)
        writer.add("line", np.arange(rows, dtype=ROW_COLUMNS["line"]))
        writer.add("shard", np.zeros(rows, ROW_COLUMNS["shard"]))
        if self.labels is not None:
            writer.add("label", self.labels)
        writer.add("by_place", segment["by_place"])
        writer.add_text("path", np.zeros(rows + 1, "<i8"), np.empty(0, np.uint8))
        fields = tuple(each.write(writer, self.matches) for each in self.values)
        plan = self.plan
        manifest = Manifest(
            name=plan.name,
            format=plan.format,
            fields=fields,
            labels=plan.labels,
            classes=plan.classes,
            records=rows,
            lines=rows,
            rejects=0,
            duplicates=0,
            plan_sha256=plan.sha256,
            written_by=plan.written_by,
            rejects_file=rejects,
            columns=writer.finish(),
            shards=(),
        )
        write_file(folder / MANIFEST, [manifest.dump()])


def _plan(name: str, format: str, content: str, rows: int) -> Plan:
    """The plan of a layer of so many rows, without a field yet, that has what `content` names."""
    return Plan(
        name=name,
        format=format,
        fields=(),
        labels=LabelSpec("none"),
        classes=None,
        columns=None,
        list_sha256=hashlib.sha256(content.encode()).hexdigest(),
        lines=rows,
        entries=rows,
        seed=None,
        shard_bytes=0,
        encoder=None,
        written_by=written_by(),
        shards=(),
    )
