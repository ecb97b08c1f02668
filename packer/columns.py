"""The columns that a shard contributes to the index: packed ones by way of a note, foreign ones from a scan."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.index import ROW_COLUMNS, Index, text_column
from packtrain._core.schema import Field, Schema
from packtrain._formats.writing import NewSample, ShardWriter, WrittenShard

from .reordering import ColumnType, Texts, picked_texts

PATH: Final = "path"
"""The column of the paths, a text column."""
MISSING: Final = -1
"""Length of a record that a sample is without; its other values are 0."""

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ShardColumns:
    """The columns of some samples.

    Attributes:
        arrays: Arrays [samples, ...] by the name of their column: ``line``, those of the fields, and ``label`` if the
            dataset has labels.
        texts: The text columns by their names: the path of each sample, and the values of strings.
    """

    arrays: dict[str, Array]
    texts: dict[str, Texts]

    @classmethod
    def of(
        cls,
        schema: Schema,
        lines: Sequence[int],
        labels: Sequence[Any],
        records: Sequence[Sequence[tuple[int, ...] | None]],
        paths: Iterable[bytes],
    ) -> Self:
        """Makes columns of samples that come one by one.

        Args:
            schema: What samples consist of, without fields that lie in the index.
            lines: Line of each sample.
            labels: Label of each sample; ignored if the dataset has no labels.
            records: For each sample and field: the values of the field's columns; None where it is missing.
            paths: Path of each sample.
        """
        arrays: dict[str, Array] = {"line": np.array(lines, ROW_COLUMNS["line"])}
        for number, field in enumerate(schema.fields):
            columns = missing_columns(field, len(lines))
            found = {row: values for row, sample in enumerate(records) if (values := sample[number]) is not None}
            if found:
                for column, values in zip(columns.values(), zip(*found.values(), strict=True), strict=True):
                    column[list(found)] = values
            arrays |= columns
        if schema.labels.kind != "none":
            arrays["label"] = np.array(labels, schema.labels.dtype).reshape(schema.labels.shape(len(lines)))
        return cls(arrays, {PATH: text_column(paths, len(lines))})

    @classmethod
    def from_index(cls, index: Index, schema: Schema) -> Self:
        """The columns of all rows of a finished dataset, checked.

        Raises:
            CorruptFile: The index is damaged, or was never sound.
        """
        index.check_content()
        arrays = {name: index[name] for name in ("line", "label") if name == "line" or schema.labels.kind != "none"}
        texts = {PATH: (index["path_offsets"], index["path_bytes"])}
        for field in schema.fields:
            columns = index.field(field.name)
            arrays |= {name: columns[name.removeprefix(field.prefix)] for name in field.columns()}
            if field.text_column is not None:
                texts[field.text_column] = columns["value_offsets"], columns["value_bytes"]
        return cls(arrays, texts)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.texts[PATH][0]) - 1

    def fits(self, schema: Schema, records: int) -> bool:
        """True if these can be the columns of this number of samples."""
        forms = {name: ColumnType(values.dtype.str, values.shape[1:]) for name, values in self.arrays.items()}
        return (
            forms == column_forms(schema)
            and all([values.dtype.str for values in each] == ["<i8", "|u1"] for each in self.texts.values())
            and {len(offsets) - 1 for offsets, _ in self.texts.values()} == {records}
            and {*map(len, self.arrays.values())} == {records}
        )

    def rows(self, rows: Ints) -> ShardColumns:
        """The columns of these of the samples, in this order."""
        arrays = {name: values[rows] for name, values in self.arrays.items()}
        return ShardColumns(arrays, {name: _some(each, rows) for name, each in self.texts.items()})


class ValueColumn:
    """Collects the values of a field that lies in the index."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._nothing = bytes(np.dtype(field.dtype).itemsize) if field.text_column is None else b""
        self._valid, self._data, self._ends = bytearray(), bytearray(), array("q", [0])

    def add(self, value: bytes | memoryview | None) -> None:
        """Takes the bytes of the next value; None where it is missing."""
        self._valid.append(value is not None)
        self._data += self._nothing if value is None else value
        if self._field.text_column is not None:
            self._ends.append(len(self._data))

    def put_into(self, columns: ShardColumns) -> None:
        """Adds the columns of the field to others."""
        name, text = self._field.prefix, self._field.text_column
        columns.arrays[f"{name}valid"] = np.frombuffer(self._valid, "|u1")
        if text is None:
            columns.arrays[f"{name}value"] = np.frombuffer(self._data, self._field.dtype)
        else:
            columns.texts[text] = np.asarray(self._ends), np.frombuffer(self._data, np.uint8)


class RowWriter:
    """Writes samples with a writer of shards, and collects the columns of what was written.

    Args:
        writer: The writer of the shard, for the fields that have records.
        schema: What samples consist of.
    """

    def __init__(self, writer: ShardWriter, schema: Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._lines: list[int] = []
        self._labels: list[Any] = []
        self._paths: list[bytes] = []
        self._values: list[tuple[tuple[int, ...] | None, ...]] = []
        self._indexed = [ValueColumn(field) for field in schema.indexed]

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._lines)

    def add(self, sample: NewSample, path: bytes = b"", values: Sequence[bytes | None] = ()) -> None:
        """Writes a sample.

        Args:
            sample: The sample, with the records that it has.
            path: Its path in the list.
            values: The bytes of its values that lie in the index, in the order of the schema; None where missing.
        """
        self._writer.add(sample)
        self._lines.append(sample.line)
        self._labels.append(sample.label)
        self._paths.append(path)
        self._values.append(
            tuple(None if record is None else (record.size, record.crc32c, *record.frame) for record in sample.records)
        )
        for found, value in zip(self._indexed, values, strict=True):
            found.add(value)

    def finish(self) -> tuple[WrittenShard, ShardColumns]:
        """Completes and closes the file, which the caller fsyncs, and returns the columns of its samples."""
        written = self._writer.finish()
        records = [
            [None if values is None else (offset, *values) for offset, values in zip(*sample, strict=True)]
            for sample in zip(written.offsets, self._values, strict=True)
        ]
        columns = ShardColumns.of(self._schema.in_shards, self._lines, self._labels, records, self._paths)
        for found in self._indexed:
            found.put_into(columns)
        return written, columns

    def close(self) -> None:
        """Closes the file, whether it is complete or not."""
        self._writer.close()


def column_forms(schema: Schema) -> dict[str, ColumnType]:
    """Type and shape of the columns that every shard of a dataset contributes."""
    forms = {"line": ColumnType(ROW_COLUMNS["line"])} | {
        name: ColumnType(dtype) for name, dtype in schema.columns().items()
    }
    if schema.labels.kind != "none":
        forms["label"] = ColumnType(schema.labels.dtype, schema.labels.shape(0)[1:])
    return forms


def text_columns(schema: Schema) -> tuple[str, ...]:
    """Names of the text columns that every shard of a dataset contributes."""
    return PATH, *(field.text_column for field in schema.fields if field.text_column is not None)


def missing_columns(field: Field, count: int) -> dict[str, Array]:
    """The columns of a field that none of `count` samples has."""
    return {
        name: np.full(count, MISSING if name == f"{field.prefix}length" else 0, dtype)
        for name, dtype in field.columns().items()
    }


def _some(column: Texts, rows: Ints) -> Texts:
    """The texts of these rows, in this order."""
    offsets, texts = column
    sizes = offsets[rows + 1] - offsets[rows]
    ends = np.concatenate([np.zeros(1, "<i8"), np.cumsum(sizes)])
    return ends, picked_texts(texts, offsets[rows], sizes)
