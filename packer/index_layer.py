"""Layers of fields that lie in the index: what a list says of them, and how they are written. They have no shards."""

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

from .listing import Cell, Listing
from .options import Columns, FieldColumn
from .plan import Plan
from .planning import planned_columns, written_by
from .rejects import write_rejects
from .reordering import picked_texts

_AT_ONCE: Final = 1 << 14
_EXACT: Final = 1 << 53
"""Up to here, float64 has every whole number."""
_MISSING, _BOOL, _INT, _FLOAT = range(4)
_WORDS: Final = {_BOOL: "true or false", _INT: "a whole number", _FLOAT: "a fraction"}
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


def listed_values(table: Listing, columns: Sequence[FieldColumn], first: int, listed: Path) -> list[ListedValues]:
    """Reads columns of a list whose fields lie in the index.

    Args:
        table: The list.
        columns: The columns.
        first: Which of the cells of a row is the first of them.
        listed: Path of the list, for messages.

    Raises:
        ListError: The numbers of a column are of types that do not fit together, or there are none; the message names
            the line.
    """
    readers = [_Numbers() if column.kind == "number" else _Strings() for column in columns]
    for start in range(0, len(table), _AT_ONCE):
        for entry in table.entries(np.arange(start, min(start + _AT_ONCE, len(table)))):
            for reader, cell in zip(readers, entry.cells[first:], strict=False):
                reader.add(cell)

    def line(ordinal: int) -> int:
        return int(table.line_numbers(np.array([ordinal]))[0])

    found = []
    for reader, column in zip(readers, columns, strict=True):
        try:
            found.append(reader.values(column))
        except _Unfit as unfit:
            where = "" if unfit.ordinal is None else f"line {line(unfit.ordinal)}: "
            raise ListError(f"{listed}: {where}column {column.column!r}: {unfit}") from None
    return found


class _Unfit(ValueError):
    """Numbers that do not fit together, and the ordinal of the row that shows it."""

    def __init__(self, reason: str, ordinal: int | None = None) -> None:
        super().__init__(reason)
        self.ordinal = ordinal


class _Strings:
    """Collects texts."""

    def __init__(self) -> None:
        self._valid, self._ends, self._texts = bytearray(), array("q", [0]), bytearray()

    def add(self, cell: Cell | None) -> None:
        self._valid.append(cell is not None)
        if cell is not None:
            self._texts += cell.content
        self._ends.append(len(self._texts))

    def values(self, column: FieldColumn) -> ListedValues:
        field = Field(column.name, column.kind, column.optional)
        valid, texts = np.frombuffer(self._valid, bool), np.frombuffer(self._texts, np.uint8)
        return ListedValues(field, valid, texts, np.asarray(self._ends))


class _Numbers:
    """Collects numbers, and finds a type for them."""

    def __init__(self) -> None:
        self._types, self._whole, self._real = bytearray(), array("q"), array("d")

    def add(self, cell: Cell | None) -> None:
        type_, whole, real = _MISSING, 0, 0.0
        if cell is not None:
            content = cell.content
            if content in (b"true", b"false"):
                type_, whole = _BOOL, content == b"true"
            elif content.lstrip(b"-").isdigit():
                type_, whole = _INT, int(content)
                real = float(whole)
            else:
                type_, real = _FLOAT, float(content)
        self._types.append(type_)
        self._whole.append(whole)
        self._real.append(real)

    def values(self, column: FieldColumn) -> ListedValues:
        types = np.frombuffer(self._types, np.uint8)
        there = set(np.unique(types).tolist()) - {_MISSING}
        if not there and column.dtype is None:
            raise _Unfit(
                f"no row has a number, so its type is unknown: say what it is, as in --dtype {column.name}=int64"
            )
        dtype = column.dtype or ("|b1" if _BOOL in there else "<f8" if _FLOAT in there else "<i8")
        allowed = {"|b1": {_BOOL}, "<i8": {_INT}, "<f8": {_INT, _FLOAT}}[dtype]
        if wrong := there - allowed:
            # Of a true and a number, whichever comes later.
            first = self._first(types, there & allowed) if column.dtype is None else 0
            ordinal = max(first, min(self._first(types, {each}) for each in wrong))
            found = _WORDS[int(types[ordinal])]
            others = " or ".join(_WORDS[each] for each in sorted(allowed))
            if int(types[ordinal]) in allowed:
                found, others = others, _WORDS[min(wrong)]
            raise _Unfit(f"it holds {found}, and other rows {others}: make them alike", ordinal)
        whole, real = np.asarray(self._whole), np.asarray(self._real)
        if dtype == "<f8":
            for ordinal in np.flatnonzero((types == _INT) & ((whole > _EXACT) | (whole < -_EXACT))).tolist():
                if int(self._real[ordinal]) != self._whole[ordinal]:
                    raise _Unfit(f"float64 would round {self._whole[ordinal]}: write it as a fraction", ordinal)
        field = Field(column.name, column.kind, column.optional, dtype=dtype)
        return ListedValues(field, types != _MISSING, real if dtype == "<f8" else whole.astype(dtype))

    def _first(self, types: npt.NDArray[np.uint8], wanted: set[int]) -> int:
        return int(np.isin(types, list(wanted)).argmax()) if wanted else 0


@dataclass(frozen=True)
class IndexLayer:
    """A layer without shards, before it is written.

    Attributes:
        plan: The plan that names it.
        matches: Ordinal of the list's row for each row of the segment, -1 where there is none.
        values: What the list says.
    """

    plan: Plan
    matches: Ints
    values: tuple[ListedValues, ...]

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
        plan = Plan(
            name=table.name,
            format=format,
            fields=tuple(each.field for each in values),
            labels=LabelSpec("none"),
            classes=None,
            columns=planned_columns(Columns(fields=tuple(columns))),
            list_sha256=hashlib.sha256(f"{table.sha256} {digest}".encode()).hexdigest(),
            lines=len(matches),
            entries=len(matches),
            seed=None,
            shard_bytes=0,
            encoder=None,
            written_by=written_by(),
            shards=(),
        )
        return cls(plan, matches, tuple(values))

    def write(self, folder: Path, segment: Index) -> None:
        """Writes it, with the order of the segment that has this index. Writing it again gives the same bytes."""
        rows = len(self.matches)
        make_folder(folder / INDEX)
        write_file(folder / PLAN, [self.plan.dump()])
        rejects = write_rejects(folder, [])
        writer = IndexWriter(folder / INDEX, rows)
        writer.add("line", np.arange(rows, dtype=ROW_COLUMNS["line"]))
        writer.add("shard", np.zeros(rows, ROW_COLUMNS["shard"]))
        writer.add("by_place", segment["by_place"])
        writer.add_text("path", np.zeros(rows + 1, "<i8"), np.empty(0, np.uint8))
        fields = tuple(each.write(writer, self.matches) for each in self.values)
        plan = self.plan
        manifest = Manifest(
            name=plan.name,
            format=plan.format,
            fields=fields,
            labels=plan.labels,
            classes=None,
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
