"""Values that lie in the index: the types of numbers, which all rows decide, and the bytes of a value in its column."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from packtrain._core.errors import ListError
from packtrain._core.schema import MOST_STRING_BYTES, Field

from .facts import in_words
from .listing import Encoded, Listing, all_entries
from .options import FieldColumn
from .sources import Refused

Number = bool | int | float

_WORDS: Final[dict[type, str]] = {bool: "true or false", int: "a whole number", float: "a fraction"}
_ALLOWED: Final[dict[str, tuple[type, ...]]] = {"|b1": (bool,), "<i8": (int,), "<f8": (int, float)}
_FORMS: Final = {"|b1": struct.Struct("?"), "<i8": struct.Struct("<q"), "<f8": struct.Struct("<d")}


class Unfit(ValueError):
    """Numbers of which no type has room for all, and where that shows; None if there are none."""

    def __init__(self, reason: str, where: int | None = None) -> None:
        super().__init__(reason)
        self.where = where


class NumberType:
    """Finds the type that has room for all numbers of a field."""

    def __init__(self) -> None:
        self._first: dict[type, int] = {}

    def add(self, where: int, value: Number) -> None:
        """Takes a number in, with the line or the sample that it comes from, which ascend."""
        self._first.setdefault(type(value), where)

    def found(self, name: str) -> str:
        """The type, as numpy writes it, of the field called `name`.

        Raises:
            Unfit: There is no number, or there are true or false as well as others.
        """
        if not self._first:
            raise Unfit(f"no row has a number, so its type is unknown: say what it is, as in --dtype {name}=int64")
        if bool not in self._first:
            return "<f8" if float in self._first else "<i8"
        if len(self._first) == 1:
            return "|b1"
        first = self._first.pop(bool)
        other = min(self._first, key=self._first.__getitem__)
        kinds = (other, bool) if self._first[other] > first else (bool, other)
        found, others = (_WORDS[kind] for kind in kinds)
        raise Unfit(f"it holds {found}, and other rows {others}: make them alike", max(first, self._first[other]))


def number_types(images: Listing, columns: dict[int, FieldColumn]) -> dict[str, str]:
    """Finds the types of the numbers in a list. Reads all of its rows, once.

    Args:
        images: The list.
        columns: The columns of numbers, by the number of their cells.

    Returns:
        numpy type strings by the names of the fields.

    Raises:
        ListError: No type has room for the numbers of a column; the message names column and line.
    """
    types = {number: NumberType() for number in columns}
    for entry in all_entries(images) if columns else ():
        for number, numbers in types.items():
            if (cell := entry.cells[number]) is not None:
                numbers.add(entry.line, number_in(cell.content))
    found = {}
    for number, column in columns.items():
        try:
            found[column.name] = types[number].found(column.name)
        except Unfit as unfit:
            line = "" if unfit.where is None else f"line {unfit.where}: "
            raise ListError(f"{line}column {column.column!r}: {unfit}") from None
    return found


def number_in(cell: bytes) -> Number:
    """The number in a cell of a list, as JSON with NaN writes it."""
    value: Number = json.loads(cell)
    return value


def number_of(value: Any) -> Number:
    """The number that a sample from Python code has.

    Raises:
        Refused: It is something else.
    """
    if hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except Exception as error:
            # The code of other libraries, which raises anything; torch for a tensor on the GPU.
            raise Refused(f"it cannot become a number: {type(error).__name__}: {error}") from error
        if array.ndim or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise Refused(f"it is {in_words(array.dtype, array.shape)}, not a single number")
        value = array.item()
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise Refused(f"it is an object of type {type(value).__name__}, not a number")


def encoded_value(field: Field, value: Number | str) -> Encoded:
    """The bytes of a value in the column of its field.

    Raises:
        Refused: The field has no room for it.
    """
    if isinstance(value, str):
        try:
            text = value.encode()
        except UnicodeEncodeError as error:
            raise Refused(f"it cannot be written in UTF-8 ({error.reason} at character {error.start})") from error
        if len(text) > MOST_STRING_BYTES:
            raise Refused(f"the text has {len(text):,} bytes, and a string at most {MOST_STRING_BYTES:,}: take a text")
        return Encoded(text, "")
    dtype = field.dtype or ""
    if type(value) not in _ALLOWED[dtype]:
        raise Refused(f"it holds {_WORDS[type(value)]}, and the field is {np.dtype(dtype).name}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise Refused(f"{value} is beyond the whole numbers of 64 bits: write it as a fraction")
    if dtype == "<f8" and isinstance(value, int) and int(float(value)) != value:
        raise Refused(f"float64 would round {value}: write it as a fraction")
    return Encoded(_FORMS[dtype].pack(value), "")


def sampled_type(name: str, values: Sequence[Any]) -> str:
    """The type of numbers that the first samples from Python code have.

    Raises:
        Refused: One is no number, or no type has room for all.
    """
    numbers = NumberType()
    for place, value in enumerate(values):
        numbers.add(place, number_of(value))
    try:
        return numbers.found(name)
    except Unfit as unfit:
        raise Refused(str(unfit)) from unfit
