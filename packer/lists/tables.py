"""Lists with named columns: CSV and TSV, JSON lines, Parquet."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field
from packtrain._storage.remote.urls import Url

from ..encoding import Files
from ..listing import Cell, ListedSample, Reject, dataset_name
from ..options import Columns
from .advice import find_missing
from .cells import cell_in, is_numeric, label_texts, path_in, value_texts
from .labels import BadLine, LabelParser, stored_labels, suggest_values
from .rows import BadRow, Row, Rows
from .suggestions import of_url

_NO_LABEL: Final = ()


class Table:
    """A list with named columns, as a `Listing`.

    It holds the text of the list and a few bytes per row, and reads a row again when its entry is asked for.

    If labels are integers, but no label is a number, each is taken for the name of a class.

    Args:
        rows: The rows, with the values of `columns.names` in this order.
        columns: Which columns hold what.
        labels: Type of the labels; none if no column holds them.
        name: Name of the list; becomes the prefix of the shard names.
        root: Folder that relative paths start from, or the address of one in an object store.
        classes: Class names by label, or None.
        by_name: True if each label is the name of a class, even if it is a number.
        source: Path of the list, for messages; None if it has none.

    Raises:
        ListError: No row could be read.
        UsageError: The table has no such column.
    """

    def __init__(
        self,
        rows: Rows,
        columns: Columns,
        labels: LabelSpec,
        *,
        name: str,
        root: Path | Url,
        classes: tuple[str, ...] | None = None,
        by_name: bool = False,
        source: Path | None = None,
    ) -> None:
        self.labels = labels
        self.columns: Columns | None = columns
        self.fields: tuple[Field, ...] | None = None
        self.name = dataset_name(name)
        self.root, self.source = root, Files(str(root))
        self.classes = classes
        self.rejects: list[Reject] = []
        self.sha256 = rows.sha256
        self._source, self._advice = source, ""
        self._rows = rows
        self._reader = _Reader(columns)
        by_name = by_name or self._names_classes()
        parser = LabelParser(labels, classes, by_name=by_name)
        self._values = self._parse(parser, by_name)
        if by_name and classes is None:
            self.classes, numbers = parser.sort_classes()
            self._values = numbers[self._values]
        parser.require_zero(self._values, source or name)
        if not len(self):
            raise ListError(f"{name}: {self._why_nothing_is_left()}")

    def _names_classes(self) -> bool:
        """True if there are labels that could be class names, and none is a number."""
        if self._reader.label is None or str(self.labels) != "int":
            return False
        found = False
        for row in self._rows:
            if isinstance(row, Row) and (label := self._reader.label_of(row.values)) not in (None, "", b""):
                if not isinstance(label, bytes | str | bool) or is_numeric(label):
                    return False
                found = True
        return found

    def _parse(self, parser: LabelParser, by_name: bool) -> npt.NDArray[Any]:
        """Reads all rows. Returns the values of their labels."""
        places, numbers, hashes = array("q"), array("q"), array("q")
        values: array[Any] = array("d" if self.labels.kind == "float" else "q")
        for row in self._rows:
            if isinstance(row, BadRow):
                self.rejects.append(Reject(*row))
                continue
            try:
                path, cells = self._reader.read(row.values)
                label = self._label(row, parser, by_name)
            except BadLine as error:
                self.rejects.append(Reject(row.line, self._reader.find_path(row.values), str(error)))
                continue
            places.append(row.place)
            numbers.append(row.line)
            hashes.append(hash((path, label, cells)))
            values.extend(label)
        self.lines = len(places) + len(self.rejects)
        self.duplicates = len(hashes) - len(np.unique(np.asarray(hashes)))
        self._places, self._numbers = np.asarray(places), np.asarray(numbers)
        return np.asarray(values)

    def _label(self, row: Row, parser: LabelParser, by_name: bool) -> tuple[int, ...] | tuple[float, ...]:
        if self._reader.label is None:
            return _NO_LABEL
        label = self._reader.label_of(row.values)
        try:
            return parser.parse(label_texts(label, self.labels, by_name))
        except BadLine as error:
            self._advice = self._advice or self._advise(label)
            raise BadLine(f"column {self._reader.label!r}: {error}") from None

    def _advise(self, label: Any) -> str:
        suggested = suggest_values(value_texts(label)) if is_numeric(label) else "class" if label else None
        if suggested in (None, str(self.labels)):
            return ""
        return f"Column {self._reader.label!r} looks like --labels {suggested}"

    @property
    def advice(self) -> str:
        """Advice on a list that cannot be read as it is: the fault, and the words to type; empty if none is found."""
        if self._advice or not len(self):
            return self._advice
        path = self.entries(np.zeros(1, np.int64))[0].path
        place = self._rows.place_of_column(0) if self.columns and self.columns.image is not None else None
        remedy = of_url(path) or find_missing(path, self.root, place)
        return remedy.text(self._source) if remedy else ""

    def _why_nothing_is_left(self) -> str:
        if not self.lines:
            return "the list has columns, but no rows"
        first = self.rejects[0]
        reason = f"none of {self.lines} rows can be used: line {first.line}: {first.reason}"
        return f"{reason}. {self.advice}" if self.advice else reason

    def __len__(self) -> int:
        """Number of entries: rows that are not refused."""
        return len(self._places)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the entries with these ordinals."""
        rows = zip(self._places[ordinals].tolist(), self._numbers[ordinals].tolist(), strict=True)
        samples = []
        for (place, line), label in zip(rows, stored_labels(self.labels, self._values, ordinals), strict=True):
            path, cells = self._reader.read(self._rows.values(place))
            samples.append(ListedSample(line, path, label, cells))
        return tuple(samples)

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the line numbers, int64 [n], of the entries with these ordinals [n]."""
        numbers: npt.NDArray[np.int64] = self._numbers[ordinals]
        return numbers


class _Reader:
    """Reads what the values of a row say: in the order of `Columns.names`, image, label and fields."""

    def __init__(self, columns: Columns) -> None:
        self.label = columns.label
        self._image = columns.image
        self._fields = columns.fields
        self._label_at = 0 if columns.image is None else 1
        self._first = self._label_at + (columns.label is not None)

    def label_of(self, values: Sequence[Any]) -> Any:
        """The value of the label."""
        return values[self._label_at]

    def read(self, values: Sequence[Any]) -> tuple[str, tuple[Cell | None, ...]]:
        """Returns path and cells of a sample.

        Raises:
            BadLine: A value cannot be used, or is missing where it is needed; the message names its column.
        """
        path, cells, column = "", list[Cell | None](), self._image
        try:
            if self._image is not None:
                if (image := path_in(values[0])) is None:
                    raise BadLine("there is no path of an image")
                path = os.fsdecode(image)
            for field, value in zip(self._fields, values[self._first :], strict=True):
                column = field.column
                cell = cell_in(field, value)
                if cell is None and not field.optional:
                    raise BadLine(f"there is no {field.name}; with --optional {field.name} samples may be without it")
                cells.append(cell)
        except BadLine as error:
            raise BadLine(f"column {column!r}: {error}") from None
        if self._image is None:
            path = next((os.fsdecode(cell.content) for cell in cells if cell is not None and cell.by_path), "")
        return path, tuple(cells)

    def find_path(self, values: Sequence[Any]) -> str:
        """The path of a sample, also if other values cannot be used; an empty text if there is none."""
        cells = zip(self._fields, values[self._first :], strict=True)
        paths = [values[0]] if self._image is not None else [value for field, value in cells if field.by_path]
        for value in paths:
            try:
                if path := path_in(value):
                    return os.fsdecode(path)
            except BadLine:
                continue
        return ""
