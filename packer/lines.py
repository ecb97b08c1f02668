"""The lines of a list: a path, and the values of its label, cut from the right.

Blanks separate them, or tabs, commas or semicolons as in CSV files, with their quotes. Which of these a list has shows
in its first lines.
"""

from __future__ import annotations

import csv
import math
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from packtrain._core.errors import ListError
from packtrain._core.options import LabelSpec

from .folder import IMAGE_SUFFIXES

_BOM: Final = b"\xef\xbb\xbf"
_LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)
_SAMPLED_LINES: Final = 100
_LONGEST_LINE: Final = 1 << 16
"""A longer line is not looked at closely."""
_SUFFIXES: Final = tuple(suffix.encode() for suffix in IMAGE_SUFFIXES)
_PATH_HEADS: Final = frozenset(
    f"{what}{end}" for what in ("", "file", "image", "img") for end in ("path", "_path", "name", "_name", "file", "")
) - {""}
"""What people call the column of paths."""
# A path with a suffix of images, then everything behind it.
_AFTER_PATH: Final = re.compile(
    rb'(?s).*(?:%s)"?(?:([\s,;])[\s,;]*(.*))?' % b"|".join(map(re.escape, _SUFFIXES)), re.IGNORECASE
)


class BadLine(ValueError):
    """A line does not have the form `path label`; the message says why."""


@dataclass(frozen=True)
class Separator:
    """How the columns of a list are separated.

    Attributes:
        byte: Tab, comma or semicolon; None for blanks of any kind and number.
        skipped: Number of columns before the path; 1 for the index that pandas writes.
    """

    byte: bytes | None = None
    skipped: int = 0

    def split(self, line: bytes, values: int) -> list[bytes]:
        """Returns the path and the last `values` columns.

        Raises:
            BadLine: There are fewer columns.
        """
        if self.byte is None:
            fields = line.rsplit(None, values) if values else [line]
        elif b'"' in line or self.skipped:
            columns = self.columns(line)[self.skipped :]
            cut = len(columns) - values
            fields = [self.byte.join(columns[:cut]), *columns[cut:]] if cut > 0 else columns
        else:
            fields = line.rsplit(self.byte, values) if values else [line]
        if len(fields) <= values:
            raise BadLine(f"expected a path and {values} label value(s), separated by {_NAMES[self.byte]}")
        if self.byte is not None:
            fields = [fields[0].rstrip(), *map(bytes.strip, fields[1:])]
        return fields

    def columns(self, line: bytes) -> list[bytes]:
        """Returns all columns, without their quotes.

        Raises:
            BadLine: Quotes do not match.
        """
        if self.byte is None:
            return line.split()
        try:
            (columns,) = csv.reader([os.fsdecode(line)], delimiter=self.byte.decode(), strict=True)
        except (csv.Error, ValueError) as error:
            raise BadLine(f"cannot be read as columns separated by {_NAMES[self.byte]}: {error}") from error
        return [os.fsencode(column) for column in columns]


_NAMES: Final = {None: "blanks", b"\t": "tabs", b",": "commas", b";": "semicolons"}
_SEPARATORS: Final = tuple(Separator(byte) for byte in _NAMES)


class LineParser:
    """Cuts lines into path and label.

    Args:
        labels: Type of the labels.
        names: Class names by label, or None.
        by_name: True if each label is the name of a class. Without `names`, the names are numbered as they come.

    Attributes:
        separator: How the columns are separated.
        found: Number of each class name that was found, if there are no `names`.
    """

    def __init__(self, labels: LabelSpec, names: Sequence[str] | None = None, *, by_name: bool = False) -> None:
        self.separator = Separator()
        self.found: dict[bytes, int] = {}
        self._labels = labels
        self._names = names
        self._by_name = by_name
        self._numbers = None if names is None else {os.fsencode(name): label for label, name in enumerate(names)}

    def parse(self, line: bytes) -> tuple[bytes, tuple[int, ...] | tuple[float, ...]]:
        """Returns the path on a line, and the values of its label.

        Raises:
            BadLine: The line has another form.
        """
        path, *texts = self.separator.split(line, self._labels.fields)
        if not path:
            raise BadLine("there is no path before the label")
        if b"\0" in path:
            raise BadLine("the path holds a NUL byte")
        if self._by_name:
            return path, (self._number(texts[0]),)
        if self._labels.kind == "float":
            return path, tuple(map(_parse_float, texts))
        values = tuple(map(_parse_int, texts))
        if self._names is not None and not 0 <= values[0] < len(self._names):
            count = len(self._names)
            raise BadLine(f"label {values[0]} is outside the {count} class names, whose labels are 0 to {count - 1}")
        return path, values

    def _number(self, name: bytes) -> int:
        if not name:
            raise BadLine("the name of the class is empty")
        if self._numbers is None:
            return self.found.setdefault(name, len(self.found))
        if name not in self._numbers:
            raise BadLine(f"class {reprlib.repr(os.fsdecode(name))} is not among the {len(self._numbers)} class names")
        return self._numbers[name]

    def adapt(self, lines: Iterable[bytes]) -> bool:
        """Finds out how a list is separated, from its lines. Returns True if the first of them is a header.

        Raises:
            ListError: A header names other columns than a path and the values of the label.
        """
        sample = list(islice(lines, _SAMPLED_LINES))
        if not sample:
            return False
        sound = {}
        for self.separator in _SEPARATORS:
            # Of separators with which as many lines are sound, the one is taken that shows in a header, or the first.
            sound[self.separator] = sum(map(self._is_sound, sample)), len(self._heads(sample[0])) > 1
        self.found.clear()
        self.separator = max(sound, key=lambda separator: sound[separator])
        return self._is_header(sample[0], sample[1] if len(sample) > 1 else b"")

    def _is_sound(self, line: bytes) -> bool:
        """Returns True if a line can be parsed, and its path shows no sign of another separator."""
        try:
            path, _ = self.parse(line)
        except BadLine:
            return False
        return path.lower().endswith(_SUFFIXES) if self._by_name else not path.endswith((b",", b";", b'"'))

    def _is_header(self, line: bytes, following: bytes) -> bool:
        """Returns True if a line names the columns. If pandas wrote an index before them, it is skipped from now on."""
        fields, heads = self._labels.fields, self._heads(line)
        if not heads or not fields:
            return False
        skipped = 1 if not heads[0] else 0
        if heads[skipped] not in _PATH_HEADS or len(heads) - skipped != 1 + fields:
            if self.separator.byte is None:
                return False
            raise ListError(
                f"the columns of the list are {', '.join(heads)}, but it must have the path first, then {fields} label "
                f"value(s), and nothing else: {self._how_to_mend(heads[skipped], following)}"
            )
        self.separator = Separator(self.separator.byte, skipped)
        return True

    def _how_to_mend(self, head: str, following: bytes) -> str:
        suggested = suggest_labels(following) if head in _PATH_HEADS else None
        if suggested in (None, "none", "class" if self._by_name else str(self._labels)):
            return "write a list of only these columns, in this order"
        return f"give --labels {suggested}, or write a list of only these columns, in this order"

    def _heads(self, line: bytes) -> list[str]:
        """Returns the names of the columns if a line seems to be a header, else nothing."""
        if len(line) > _LONGEST_LINE:
            return []
        try:
            columns = self.separator.columns(line)
        except BadLine:
            return []
        heads = [os.fsdecode(column).strip().casefold() for column in columns]
        return heads if _PATH_HEADS.intersection(heads) and not any(map(_is_number, columns)) else []


def find_lines(text: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields number, start and end of each line that is not blank. BOM, line end and trailing blanks are left out."""
    start = len(_BOM) if text.startswith(_BOM) else 0
    number = 0
    while start < len(text):
        newline = text.find(b"\n", start)
        stop = len(text) if newline < 0 else newline
        if length := len(text[start:stop].rstrip()):
            yield number, start, start + length
        start = stop + 1
        number += 1


def suggest_labels(line: bytes) -> str | None:
    """What ``--labels`` has to say for a line like this one; None if the line does not show where its path ends."""
    found = _AFTER_PATH.fullmatch(line.rstrip()) if len(line) <= _LONGEST_LINE else None
    if found is None:
        return None
    separator, rest = found.groups()
    if not rest:
        return "none"
    values = [value.strip(b'"') for value in re.split(rb"[\s,;]+", rest)]
    if all(map(_is_number, values)):
        kind = "int" if all(re.fullmatch(rb"[+-]?\d+", value) for value in values) else "float"
        return kind if len(values) == 1 else f"{kind}*{len(values)}"
    one = len(values) == 1 or (separator in b"\t,;" and separator not in rest)
    return "class" if one else None


def _is_number(text: bytes) -> bool:
    try:
        _parse_float(text)
    except BadLine:
        return False
    return True


def _parse_int(text: bytes) -> int:
    if not re.fullmatch(rb"[+-]?\d{1,19}", text) or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise BadLine(f"label {reprlib.repr(os.fsdecode(text))} is not an integer")
    return value


def _parse_float(text: bytes) -> float:
    try:
        value = float(text)
        if b"_" in text or not math.isfinite(value) or abs(value) > _LARGEST_FLOAT32:
            raise ValueError
    except ValueError:
        raise BadLine(f"label {reprlib.repr(os.fsdecode(text))} is not a finite number") from None
    return value
