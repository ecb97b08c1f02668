"""Rows of tables of every form, read once in order, and again where they lie."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from packtrain._core.errors import ListError, UsageError
from packtrain._core.suggestions import did_you_mean

from .suggestions import are_values

_SHOWN = 500


class Row(NamedTuple):
    """A row that could be read.

    Attributes:
        line: Its number, see `packtrain._packer.listing.Listing`.
        place: Where it lies, for `Rows.values`.
        values: Its value in each wanted column: the bytes of a cell, an object as JSON has them, a
            `packtrain._packer.listing.Cell` that needs nothing more, or None if it is missing.
    """

    line: int
    place: int
    values: Sequence[Any]


class ColumnPlace(NamedTuple):
    """Place of a column in a list of lines.

    Attributes:
        separator: What separates the columns; None for blanks.
        column: Number of the column.
        header: True if the first line names the columns.
    """

    separator: bytes | None
    column: int
    header: bool


class BadRow(NamedTuple):
    """A row that could not be read: its number, the beginning of its text, and why."""

    line: int
    text: str
    reason: str


class Rows(Protocol):
    """The rows of a table, of which only the wanted columns are looked at.

    Attributes:
        sha256: SHA-256 of all that decides the rows, in hexadecimal digits.
    """

    sha256: str

    def __iter__(self) -> Iterator[Row | BadRow]:
        """Yields all rows that are not blank, in order."""

    def values(self, place: int) -> Sequence[Any]:
        """Returns the values of the row at this place."""

    def place_of_column(self, wanted: int) -> ColumnPlace | None:
        """Returns the place of a wanted column on each line; None if that is not the same on all."""


def columns_of(heads: Sequence[str], wanted: Sequence[str], name: str) -> list[int]:
    """Returns the number of each wanted column of the list called `name`.

    Raises:
        UsageError: There is no such column, or there are two.
    """
    for column in wanted:
        if column not in heads:
            header = ". Its first line must name the columns" if are_values(heads) else did_you_mean(column, heads)
            raise UsageError(f"{name} has no column {column!r}, but {', '.join(heads)}{header}")
        if heads.count(column) > 1:
            raise UsageError(f"{name} has {heads.count(column)} columns {column!r}: give each a name of its own")
    return [heads.index(column) for column in wanted]


def start_of_text(text: bytes, name: str) -> int:
    """Returns where a text begins, behind a byte order mark.

    Raises:
        ListError: It holds nothing.
    """
    if not text.removeprefix(BOM_UTF8).strip():
        raise ListError(f"{name} is empty")
    return len(BOM_UTF8) if text.startswith(BOM_UTF8) else 0


def shown(text: bytes) -> str:
    """The beginning of a row, for the list of rejects; bytes that are not UTF-8 are surrogate escapes."""
    start = text[:_SHOWN].decode("utf-8", "surrogateescape")
    return f"{start}..." if len(text) > _SHOWN else start
