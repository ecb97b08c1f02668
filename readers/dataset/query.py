"""Finds the rows that a filter takes, in the index, without a shard. polars compares; it is imported when it is needed.

Does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import instance
from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.installing import extra_command
from packtrain._core.schema import IMAGE, LABEL, Field
from packtrain._core.versions import SPLIT

from .expression import checked, wrong
from .store import Store

if TYPE_CHECKING:
    import polars

Rows = npt.NDArray[np.int64]
ROWS_AT_ONCE: Final = 1 << 20
"""Memory does not grow with the dataset."""
_PAGE: Final = "docs/querying.md says what an expression may hold"


def pieces(rows: int) -> Iterator[Rows]:
    """The numbers of so many rows, some at a time; at least one array."""
    for start in range(0, max(rows, 1), ROWS_AT_ONCE):
        yield np.arange(start, min(start + ROWS_AT_ONCE, rows))


class Query:
    """A filter for the rows of one packed dataset.

    Args:
        store: The dataset.
        expression: The filter.

    Raises:
        UsageError: The expression cannot be read, or is no condition.
        MissingDependency: polars is not installed.
    """

    def __init__(self, store: Store, expression: str) -> None:
        instance("where", expression, str, "width >= 256")
        self._text, self._store = expression, store
        self._polars = _engine()
        sql, self._names = checked(expression, {name: column.reason for name, column in columns_of(store).items()})
        self._condition = self._tried(lambda: self._polars.sql_expr(sql))
        if self._condition.meta.has_multiple_outputs():
            raise wrong(expression, f"`*` stands where a value should. {_PAGE}")
        nothing = np.empty(0, np.int64)
        kind = self._evaluated(nothing, nothing).dtype
        if kind != self._polars.Boolean:
            raise wrong(expression, f"its value is of type {kind}, not true or false: compare it, as in width >= 256")

    def matches(self, rows: Rows, numbers: Rows) -> npt.NDArray[np.bool_]:
        """Tells for each of some rows whether the filter takes it, bool [n].

        Args:
            rows: The rows, int64 [n].
            numbers: What an expression is to call them, int64 [n].

        Raises:
            UsageError: polars cannot evaluate the expression.
            CorruptFile: The index is damaged.
        """
        found: npt.NDArray[np.bool_] = self._evaluated(rows, numbers).fill_null(False).to_numpy()
        return found

    def _evaluated(self, rows: Rows, numbers: Rows) -> polars.Series:
        columns = columns_of(self._store)
        frame = self._polars.DataFrame(
            {"row": self._polars.Series(numbers)}
            | {name: columns[name].read(rows) for name in self._names if name != "row"}
        )
        # A condition without a column has one value for all rows.
        found: polars.Series = self._tried(lambda: frame.with_columns(self._condition.alias(""))[""])
        return found

    def _tried(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except (self._polars.exceptions.PolarsError, self._polars.exceptions.PanicException) as error:
            said = str(error).partition("\n")[0]
            raise wrong(self._text, f"{said}. {_PAGE}") from None


class Column:
    """A column that an expression can name.

    Attributes:
        read: Gives its values in some rows, int64 [n].
        reason: Why it may only be compared with null, and what to do; "" if it has a value.
    """

    def __init__(self, read: Callable[[Rows], polars.Series], reason: str = "") -> None:
        self.read, self.reason = read, reason


def columns_of(store: Store) -> dict[str, Column]:
    """The columns that an expression can name in a dataset."""
    pl, schema = _engine(), store.schema
    columns = {
        "row": Column(pl.Series),
        "line": Column(lambda rows: pl.Series(store.column("line", rows))),
    }
    if store.has_paths:
        columns["path"] = Column(lambda rows: pl.Series(store.filenames(rows), dtype=pl.String))
    if schema.labels.kind != "none":
        shape = schema.labels.shape(1)[1:]
        reason = f"a label is {shape[0]} numbers: take dataset.subset(dataset.targets[:, 0] == 1)" if shape else ""
        columns["label"] = columns["label_id"] = Column(lambda rows: pl.Series(store.column(LABEL, rows)), reason)
        if schema.classes is not None:
            names = pl.Series([*map(_clean, schema.classes), None], dtype=pl.String)
            columns["label"] = Column(partial(_named_numbers, store, names, LABEL))
    if schema.image is not None:
        of_image = _columns_of_field(store, schema.image)
        columns |= {name.removeprefix(f"{IMAGE}."): column for name, column in of_image.items()}
    # A field that is called width comes before the image's width, which is image.width as well.
    for field in schema.fields:
        columns |= _columns_of_field(store, field)
    if store.side_names:
        sides = pl.Series([*store.side_names, None], dtype=pl.String)
        columns[SPLIT] = Column(partial(_named_numbers, store, sides, SPLIT))
    return columns


def _columns_of_field(store: Store, field: Field) -> dict[str, Column]:
    name = field.name
    if field.indexed:
        return {name: Column(partial(_indexed, store, field))}
    reason = f"the content of {name} is not in the index: ask only `{name} is null` or `{name} is not null`"
    columns = {name: Column(partial(_values, store, field, None), reason)}
    for called, stored in {
        "bytes": "length",
        "width": "width",
        "height": "height",
        "orientation": "orientation",
    }.items():
        if f"{field.prefix}{stored}" in field.columns():
            columns[f"{name}.{called}"] = Column(partial(_values, store, field, stored))
    return columns


def _indexed(store: Store, field: Field, rows: Rows) -> polars.Series:
    """The values of a number or a string, null in rows that are without it."""
    pl = _engine()
    present = store.column("valid", rows, field.name) == 1
    if field.text_column is None:
        series: polars.Series = pl.Series(store.column("value", rows, field.name))
    else:
        series = pl.Series(store.texts(field.name, rows), dtype=pl.String)
    return series if present.all() else series.set(pl.Series(~present), None)


def _values(store: Store, field: Field, column: str | None, rows: Rows) -> polars.Series:
    """A column of a field, null in rows that are without it; None for one that is true."""
    pl = _engine()
    present = store.column("length", rows, field.name) >= 0
    # Not as narrow as it is stored: products of sides are large, and differences may be negative.
    values = present if column is None else store.column(column, rows, field.name).astype(np.int64)
    series: polars.Series = pl.Series(values)
    return series if present.all() else series.set(pl.Series(~present), None)


def _named_numbers(store: Store, names: polars.Series, column: str, rows: Rows) -> polars.Series:
    """The name of each number in a column; null for one that has no name, for which `names` ends with null."""
    numbers = store.column(column, rows)
    known = (numbers >= 0) & (numbers < len(names) - 1)
    return names.gather(np.where(known, numbers, len(names) - 1))


def _clean(name: str) -> str:
    return name.encode(errors="replace").decode()


def _engine() -> Any:
    """polars, in a process that its threads were not forked from."""
    try:
        import polars
    except ImportError as error:
        raise MissingDependency(
            f"`where` needs polars, which cannot be imported ({error}): `{extra_command('query')}`"
        ) from error
    if _first_user() != os.getpid():
        raise UsageError(
            "`where` was used before this process was forked, and polars' threads do not survive that: call it in the "
            "process that was there first, or start processes by spawn"
        )
    return polars


@cache
def _first_user() -> int:
    """The process that first used polars; a forked process inherits the answer."""
    return os.getpid()
