"""Parquet files as `datasets` of Hugging Face reads and writes them, with the types of its features in the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from packtrain._codec.values import parse_npy
from packtrain._core.files import MiB, fsync_file, publish, temporary_path
from packtrain._core.overriding import override
from packtrain._core.schema import LABEL, Field

from ..lists.parquet import require_pyarrow
from .contents import FieldFile, value_in
from .target import ExportTask, PartProgress, Sample, Target

_GROUP_BYTES: Final = 32 * MiB
"""The bytes after which a row group ends: all of a group is in memory while it is read, or written."""
_COMPLEX: Final = "c"


@dataclass(frozen=True)
class ParquetTarget(Target):
    """A folder of Parquet files."""

    by_name: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # Before anything is written.
        require_pyarrow()

    @override
    def part_path(self, number: int) -> Path:
        return self.out / f"{self.name}-{number:05d}-of-{self.parts:05d}.parquet"

    @override
    def write(self, task: ExportTask, report: Callable[[PartProgress], None]) -> None:
        pa, parquet = require_pyarrow()
        final, schema = self.part_path(task.number), self._schema(pa)
        temporary = temporary_path(final)
        try:
            with parquet.ParquetWriter(temporary, schema, use_dictionary=False, write_statistics=False) as writer:
                rows, size = list[dict[str, Any]](), 0
                for sample in task.samples(report):
                    rows.append(self._row(sample))
                    size += sum(len(file.data) for file in sample.files if file is not None)
                    if size >= _GROUP_BYTES:
                        writer.write_table(pa.Table.from_pylist(rows, schema))
                        rows, size = [], 0
                if rows:
                    writer.write_table(pa.Table.from_pylist(rows, schema))
            fsync_file(temporary)
            publish(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)

    def _row(self, sample: Sample) -> dict[str, Any]:
        name = sample.name.rpartition("/")[2].encode("utf-8", "surrogateescape").decode(errors="backslashreplace")
        row: dict[str, Any] = {} if sample.label is None else {LABEL: sample.label}
        for field, file in zip(self.schema.fields, sample.files, strict=True):
            row[field.name] = None if file is None else _cell(field, file, name)
        return row

    def _schema(self, pa: Any) -> Any:
        columns = {field.name: _column(pa, field) for field in self.schema.fields}
        labels = self.schema.labels
        if labels.kind != "none":
            dtype, feature = pa.from_numpy_dtype(labels.dtype), _value("int64" if labels.kind == "int" else "float32")
            if self.schema.classes is not None:
                feature = {"names": list(self.schema.classes), "_type": "ClassLabel"}
            columns[LABEL] = (dtype, feature) if labels.count is None else _nested(pa, dtype, feature)
        features = {name: feature for name, (_, feature) in columns.items()}
        about = {"huggingface": json.dumps({"info": {"features": features}})}
        return pa.schema([(name, dtype) for name, (dtype, _) in columns.items()], metadata=about)

    @override
    def again(self) -> str:
        return f'datasets.load_dataset("parquet", data_files={str(self.out / f"{self.name}-*.parquet")!r})'


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


def _nested(pa: Any, dtype: Any, feature: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A list of what has this type and feature."""
    return pa.list_(dtype), {"feature": feature, "_type": "Sequence"}


def _column(pa: Any, field: Field) -> tuple[Any, dict[str, Any]]:
    """The type of a field's column, and the same in the words of `datasets`."""
    match field.kind:
        case "image" | "mask":
            return pa.struct({"bytes": pa.binary(), "path": pa.string()}), {"_type": "Image"}
        case "text" | "json" | "string":
            return pa.string(), _value("string")
        case "number" | "array" if not _is_complex(field):
            column = pa.from_numpy_dtype(field.dtype), _value(np.dtype(field.dtype).name)
            for _ in field.shape or ():
                column = _nested(pa, *column)
            return column
    return pa.binary(), _value("binary")


def _cell(field: Field, file: FieldFile, name: str) -> Any:
    match field.kind:
        case "image" | "mask":
            return {"bytes": bytes(file.data), "path": f"{name}.{file.extension}"}
        case "text" | "json":
            return str(file.data, "utf-8")
        case "number" | "string":
            return value_in(field, file)
        case "array" if not _is_complex(field):
            dtype, shape, start = parse_npy(memoryview(file.data), len(file.data))
            values = np.frombuffer(file.data, dtype, offset=start).reshape(shape)
            return values.tolist() if values.dtype != np.float16 else _halves(values)
    return bytes(file.data)


def _halves(values: Any) -> Any:
    """The numbers of an array as nested lists of numpy's own, which pyarrow wants for float16."""
    return [_halves(each) for each in values] if values.ndim else values[()]


def _is_complex(field: Field) -> bool:
    """True for numbers that Parquet has no type for: such arrays are ``.npy`` files there."""
    return np.dtype(field.dtype).kind == _COMPLEX
