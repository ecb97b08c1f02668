"""Text in columns, as Python's `csv` reads and writes it; the first record names the columns.

Cells are separated by commas, semicolons or tabs. A cell that begins with a double quote ends with one, and holds line
breaks, separators and doubled quotes in between. Records are read where they lie in the text, so that a table keeps no
more than where each of them begins.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from packtrain._core.errors import ListError

from .rows import BadRow, ColumnPlace, Row, columns_of, shown, start_of_text

DELIMITERS: Final = (b",", b";", b"\t")
_INSIDE: Final = rb'(?:[^"]++|"")*+'
_CELLS: Final = {
    delimiter: re.compile(
        rb'(?:"(%(inside)s)"|(?!")([^\r\n%(end)s]*+))(?:(?=%(end)s)|\r?(?=\n|\Z))'
        % {b"inside": _INSIDE, b"end": delimiter}
    )
    for delimiter in DELIMITERS
}
"""A cell up to the delimiter behind it, or with the CR of its line end."""


class BadRecord(ValueError):
    """A record that cannot be cut into cells.

    Attributes:
        column: Number of the cell that is at fault.
        opened: Position of the quote that opens the cell, or of the cell.
        problem: What is wrong with it.
    """

    def __init__(self, column: int, opened: int, problem: str) -> None:
        super().__init__(column, opened, problem)
        self.column, self.opened, self.problem = column, opened, problem


class UnclosedQuote(BadRecord):
    """A quote that opens a cell is not closed up to the end of the text."""


class Record(NamedTuple):
    """The cells of a record, and where the next record begins."""

    cells: list[bytes]
    end: int


def read_record(text: bytes, start: int, delimiter: bytes) -> Record:
    """Reads the record that begins at `start`. Its line end, LF or CRLF, is left out.

    Raises:
        UnclosedQuote: A quote is not closed.
        BadRecord: More text follows a closing quote, or a CR stands alone outside quotes.
    """
    stop = text.find(b"\n", start)
    stop = len(text) if stop < 0 else stop
    line = text[start:stop].removesuffix(b"\r")
    if b'"' not in line and b"\r" not in line:
        return Record(line.split(delimiter), stop + 1)
    cells: list[bytes] = []
    position = start
    while found := _CELLS[delimiter].match(text, position):
        quoted, plain = found.groups()
        cells.append(plain if quoted is None else quoted.replace(b'""', b'"'))
        position = found.end()
        if not text.startswith(delimiter, position):
            return Record(cells, position + 1)
        position += 1
    raise _bad_cell(text, position, len(cells))


def _bad_cell(text: bytes, start: int, column: int) -> BadRecord:
    """The error for a cell that cannot be read."""
    if not text.startswith(b'"', start):
        return BadRecord(column, start, "a CR stands outside quotes; lines end in LF or CRLF")
    found = re.compile(_INSIDE).match(text, start + 1)
    closed = len(text) if found is None else found.end()
    if closed == len(text):
        return UnclosedQuote(column, start, "the quote is never closed")
    lines = text.count(b"\n", start, closed)
    where = f" {lines} line(s) below" if lines else ""
    return BadRecord(column, start, f"more text follows the closing quote{where}; quotes in a cell are doubled")


class Heads(NamedTuple):
    """The names of the columns, what separates them, and where the first row begins."""

    names: list[str]
    delimiter: bytes
    end: int


def read_heads(text: bytes, name: str, wanted: Sequence[str] = ()) -> Heads:
    """Reads the first record that is not blank.

    The columns are separated by that of the delimiters which gives the most of the wanted columns, then the most
    columns.

    Args:
        text: Content of the list.
        name: Name of the list, for messages.
        wanted: Names of columns that it should have.

    Raises:
        ListError: The text is empty, or the record cannot be read.
    """
    start = start_of_text(text, name)
    while text.startswith((b"\n", b"\r\n"), start):
        start = text.index(b"\n", start) + 1
    found, failure = [], None
    for delimiter in DELIMITERS:
        try:
            cells, end = read_record(text, start, delimiter)
        except BadRecord as error:
            failure = error
        else:
            found.append(Heads([cell.decode("utf-8", "surrogateescape").strip() for cell in cells], delimiter, end))
    best = max(found, key=lambda heads: (len(set(wanted).intersection(heads.names)), len(heads.names)), default=None)
    if failure is not None and (best is None or not set(wanted).intersection(best.names)):
        raise ListError(f"{name}: the first line, which names the columns, cannot be read: {failure.problem}")
    assert best is not None
    return best


class DelimitedRows:
    """The rows of such a text.

    Args:
        text: Content of the list, in UTF-8; the bytes of paths may be any.
        name: Name of the list, for messages.
        wanted: Names of the columns to read.

    Attributes:
        sha256: SHA-256 of the text, in hexadecimal digits.

    Raises:
        ListError: The text is empty, or its first record cannot be read.
        UsageError: The table has no such column, or two of them.
    """

    def __init__(self, text: bytes, name: str, wanted: Sequence[str]) -> None:
        self.sha256 = hashlib.sha256(text).hexdigest()
        self._text = text
        self._name = name
        self._heads, self._delimiter, self._first = read_heads(text, name, wanted)
        self._picked = columns_of(self._heads, wanted, name)

    def __iter__(self) -> Iterator[Row | BadRow]:
        text, place, line, width = self._text, self._first, 0, len(self._heads)
        while place < len(text):
            try:
                cells, end = read_record(text, place, self._delimiter)
            except UnclosedQuote as error:
                opened = line + text.count(b"\n", place, error.opened)
                raise ListError(
                    f"{self._name}: the quote that opens in line {opened}, column {self._head(error.column)}, is never "
                    "closed. Close it, and double the quotes that are part of a cell"
                ) from None
            except BadRecord as error:
                # What was meant cannot be known. Reading goes on behind the first line, so that a forgotten quote
                # swallows no other row.
                end = text.find(b"\n", place) + 1 or len(text)
                yield BadRow(
                    line, shown(text[place:end].rstrip(b"\r\n")), f"column {self._head(error.column)}: {error.problem}"
                )
            else:
                if cells == [b""] and not text.startswith(b'"', place):
                    pass  # a blank line; an empty cell that is the only one of its row has quotes
                elif len(cells) == width:
                    yield Row(line, place, [cells[column] for column in self._picked])
                else:
                    yield BadRow(line, shown(text[place:end].rstrip(b"\r\n")), self._count(cells))
            line += text.count(b"\n", place, end)
            place = end

    def values(self, place: int) -> list[bytes]:
        """Returns the cells of the wanted columns of the sound record at `place`."""
        cells = read_record(self._text, place, self._delimiter).cells
        return [cells[column] for column in self._picked]

    def place_of_column(self, wanted: int) -> ColumnPlace:
        """Returns the place of a wanted column on each line."""
        return ColumnPlace(self._delimiter, self._picked[wanted], header=True)

    def _count(self, cells: list[bytes]) -> str:
        width = len(self._heads)
        if len(cells) < width:
            return f"expected {width} cells, found {len(cells)}: column {self._head(len(cells))} is not there"
        return f"expected {width} cells, found {len(cells)}: there are more behind column {self._head(width - 1)}"

    def _head(self, column: int) -> str:
        return repr(self._heads[column]) if column < len(self._heads) else str(column + 1)
