"""Lists that are Parquet files. pyarrow is imported only here."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError, MissingDependency, UsageError
from packtrain._core.installing import extra_command
from packtrain._core.kinds import KINDS
from packtrain._core.npy import npy_header
from packtrain._core.opening import open_regular

from ..listing import Cell
from ..options import Columns
from .labels import BadLine
from .rows import BadRow, Row, columns_of

_BATCH: Final = 1 << 14
_EITHER: Final = tuple(name for name, kind in KINDS.items() if kind.by_path and kind.columns)
"""Kinds whose columns hold values or paths."""
_WANTED: Final[Mapping[str, tuple[str, ...]]] = {
    "path": ("paths (strings)",),
    "label": ("strings", "numbers"),
    **{name: ("paths (strings)",) * kind.by_path + kind.columns for name, kind in KINDS.items()},
}


class ParquetRows:
    """The rows of such a file; the wanted columns are held in memory, in the form that Arrow gives them.

    Strings and binary values are bytes, as the cells of a text are. An array is the content of an ``.npy`` file, with
    the type that its column has. What else there is becomes an object, as JSON has them.

    Args:
        source: The file.
        columns: Which columns hold what.

    Attributes:
        sha256: SHA-256 of the file, in hexadecimal digits.

    Raises:
        MissingDependency: pyarrow is not installed.
        ListError: The file is no Parquet file, or damaged.
        UsageError: It has no such column, or one whose type does not fit.
        OSError: It cannot be read.
    """

    def __init__(self, source: Path, columns: Columns) -> None:
        pa, _ = require_pyarrow()
        with os.fdopen(open_regular(source), "rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            opened = open_parquet(file, source.name)
            columns_of(opened.schema_arrow.names, columns.names, source.name)
            self._names, self._kinds = columns.names, _kinds(columns)
            for column, kind in zip(columns.names, self._kinds, strict=True):
                _require_fitting(opened.schema_arrow.field(column).type, column, kind)
            try:
                wanted = list(dict.fromkeys(columns.names))
                batches = opened.iter_batches(_BATCH, columns=wanted, use_threads=False)
                self._batches = [[_plain(batch.column(name)) for name in columns.names] for batch in batches]
            except (pa.ArrowException, OSError) as error:
                raise ListError(f"{source} is damaged: {error}") from error
        self._starts = np.cumsum([0, *(len(batch[0]) for batch in self._batches)]).tolist()

    def __iter__(self) -> Iterator[Row | BadRow]:
        for place in range(self._starts[-1]):
            try:
                values = self.values(place)
            except BadLine as error:
                yield BadRow(place, "", str(error))
            else:
                yield Row(place, place, values)

    def place_of_column(self, wanted: int) -> None:
        """Returns None: there are no lines."""

    def values(self, place: int) -> Sequence[Any]:
        """Returns the values of this row.

        Raises:
            BadLine: The items of a list are not of one shape.
        """
        number = bisect_right(self._starts, place) - 1
        index = place - self._starts[number]
        values = []
        for name, column, kind in zip(self._names, self._batches[number], self._kinds, strict=True):
            try:
                values.append(_value(column[index], kind))
            except BadLine as error:
                raise BadLine(f"column {name!r}: {error}") from None
        return values


def heads_of(source: Path) -> tuple[list[str], list[str]]:
    """Returns the names of the columns, and the values of the first row as texts, for a suggestion.

    Raises:
        MissingDependency: pyarrow is not installed.
        ListError: The file is no Parquet file, or damaged.
    """
    pa, _ = require_pyarrow()
    with os.fdopen(open_regular(source), "rb") as file:
        opened = open_parquet(file, source.name)
        names = [str(name) for name in opened.schema_arrow.names]
        try:
            first = next(iter(opened.iter_batches(1, use_threads=False)), None)
        except (pa.ArrowException, OSError) as error:
            raise ListError(f"{source} is damaged: {error}") from error
        if first is None or not first.num_rows:
            return names, [""] * len(names)
        return names, [_shown(column[0]) for column in first.columns]


def _shown(scalar: Any) -> str:
    """A value as a text; empty if it is none of Python's, as a struct with two fields of one name."""
    try:
        return str(scalar.as_py())
    except (ValueError, ArithmeticError):
        return ""


def require_pyarrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        MissingDependency: They cannot be imported.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency(
            f"Parquet files take pyarrow, which cannot be imported ({error}): `{extra_command('parquet')}`"
        ) from error
    return pyarrow, pyarrow.parquet


def open_parquet(file: BinaryIO, name: str) -> Any:
    """Opens a Parquet file.

    Raises:
        MissingDependency: pyarrow is not installed.
        ListError: It is no Parquet file.
    """
    pa, parquet = require_pyarrow()
    file.seek(0)
    try:
        return parquet.ParquetFile(file, memory_map=False, pre_buffer=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ListError(f"{name} cannot be read as a Parquet file: {error}") from error


def _kinds(columns: Columns) -> list[str]:
    """Return the content of each wanted column: path, label, or values of a kind of field."""
    kinds = ["path"] if columns.image is not None else []
    kinds += ["label"] if columns.label is not None else []
    kinds += ["path" if field.by_path and field.kind not in _EITHER else field.kind for field in columns.fields]
    return kinds


def _require_fitting(dtype: Any, column: str, kind: str) -> None:
    if is_type(dtype, "dictionary"):
        dtype = dtype.value_type
    wanted = _WANTED[kind]
    if not any(_HOLDS[name](dtype) for name in wanted):
        raise UsageError(f"column {column!r} holds {dtype}, but {' or '.join(wanted)} are needed")


def is_type(dtype: Any, *names: str) -> bool:
    """Check that a type is one of these, in the words of `pyarrow.types`."""
    types = require_pyarrow()[0].types
    return any(getattr(types, f"is_{name}")(dtype) for name in names)


def is_text(dtype: Any) -> bool:
    """True for the types of texts."""
    return is_type(dtype, "string", "large_string")


def _is_list(dtype: Any) -> bool:
    return is_type(dtype, "list", "large_list", "fixed_size_list")


def is_numeric(dtype: Any) -> bool:
    """True for numbers, and for lists of them."""
    return is_type(item_type(dtype), "integer", "floating", "boolean")


def item_type(dtype: Any) -> Any:
    """The type of what lists hold in the end, or the type itself."""
    while _is_list(dtype):
        dtype = dtype.value_type
    return dtype


def is_plain(dtype: Any) -> bool:
    """True for what JSON can hold."""
    if _is_list(dtype):
        return is_plain(dtype.value_type)
    if is_type(dtype, "struct"):
        return all(is_plain(dtype.field(number).type) for number in range(dtype.num_fields))
    return is_text(dtype) or is_numeric(dtype) or is_type(dtype, "null")


_HOLDS: Final = {
    "paths (strings)": is_text,
    "strings": is_text,
    "binary values": lambda dtype: is_type(dtype, "binary", "large_binary"),
    "numbers": is_numeric,
    "single numbers": lambda dtype: is_type(dtype, "integer", "floating", "boolean"),
    "structs": is_plain,
}
"""Checks that a column of a type holds such values, or lists of them; see `Kind.columns`."""


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if is_type(column.type, "dictionary") else column


def _value(scalar: Any, kind: str) -> Any:
    if not scalar.is_valid:
        return None
    value = scalar.as_py() if kind != "array" or is_text(scalar.type) else _array(scalar)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes) and kind in _EITHER:
        return Cell(value, False)
    return value.encode() if isinstance(value, str) else value


def _array(scalar: Any) -> Cell:
    """The content of an .npy file with the values of a number or a list; lists in it must be of one length.

    An empty list of lists, whose type does not say how long these are, is an empty list in JSON.
    """
    if not _is_list(scalar.type):
        return _npy(np.array(scalar.as_py(), scalar.type.to_pandas_dtype()))
    values, shape = scalar.values, [len(scalar.values)]
    while _is_list(values.type):
        fixed = values.type.list_size if is_type(values.type, "fixed_size_list") else 0
        lengths = set(values.value_lengths().to_pylist()) if not fixed else {fixed}
        if values.null_count or len(lengths) > 1:
            raise BadLine("the lists in a list are not of one length, or one is null")
        if not lengths:
            return Cell(b"[]", False)
        shape.append(lengths.pop())
        values = values.flatten()
    if values.null_count:
        raise BadLine("an item of the list is null")
    return _npy(values.to_numpy(zero_copy_only=False).reshape(shape))


def _npy(array: npt.NDArray[Any]) -> Cell:
    return Cell(npy_header(array.dtype.str, array.shape) + array.tobytes(), False)
