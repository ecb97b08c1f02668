"""The lines of a list: a path, and the values of its label, cut from the right.

Blanks separate them, or tabs, commas or semicolons as in CSV files, with their quotes. Which of these a list has shows
in its first lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError
from packtrain._core.options import LabelSpec

from .delimited import BadRecord, read_record
from .folder import IMAGE_SUFFIXES
from .labels import BadLine, LabelParser, is_number, suggest_values
from .suggestions import command_line


@dataclass(frozen=True)
class Separator:
    """The separator of the columns of a list.

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

    def heads(self, line: bytes) -> tuple[list[str], Separator]:
        """Returns the names of the columns in a header, and this separator."""
        return [os.fsdecode(column).strip() for column in self.columns(line)], self

    def columns(self, line: bytes) -> list[bytes]:
        """Returns all columns, without their quotes.

        Raises:
            BadLine: Quotes do not match.
        """
        if self.byte is None:
            return line.split()
        try:
            return read_record(line, 0, self.byte).cells
        except BadRecord as error:
            raise BadLine(f"cannot be read as columns separated by {_NAMES[self.byte]}: {error.problem}") from error


_NAMES: Final = {None: "blanks", b"\t": "tabs", b",": "commas", b";": "semicolons"}
SEPARATORS: Final = tuple(Separator(byte) for byte in _NAMES)


_SAMPLED_LINES: Final = 100
_LONGEST_LINE: Final = 1 << 16
"""A longer line is not looked at closely."""
_SUFFIXES: Final = tuple(suffix.encode() for suffix in IMAGE_SUFFIXES)
_PATH_HEADS: Final = frozenset(
    f"{what}{end}" for what in ("", "file", "image", "img") for end in ("path", "_path", "name", "_name", "file", "")
) - {""}
"""Usual names of the column of paths."""


class LineParser:
    """Cuts lines into path and label.

    Args:
        labels: Type of the labels.
        names: Class names by label, or None.
        by_name: True if each label is the name of a class. Without `names`, the names are numbered as they come.
        source: Path of the list, for messages.

    Attributes:
        separator: How the columns are separated.
        by_name: True if each label is the name of a class.
        label_parser: Makes labels of their texts, and numbers the class names that it finds.
    """

    def __init__(
        self, labels: LabelSpec, names: Sequence[str] | None = None, *, by_name: bool = False, source: Path
    ) -> None:
        self.separator = Separator()
        self._source = source
        self.label_parser = LabelParser(labels, names, by_name=by_name)
        self._labels = labels
        self.by_name = by_name

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
        return path, self.label_parser.parse(texts)

    def adapt(self, lines: Iterable[bytes]) -> bool:
        """Finds out how a list is separated, from its lines. Returns True if the first of them is a header.

        Raises:
            ListError: A header names other columns than a path and the values of the label.
        """
        sample = list(islice(lines, _SAMPLED_LINES))
        if not sample:
            return False
        sound = {}
        for self.separator in SEPARATORS:
            # Of separators with which as many lines are sound, the one is taken that shows in a header, or the first.
            # If none is, the one that all lines have says best what is wrong with them.
            count, byte = sum(map(self._is_sound, sample)), self.separator.byte
            shown = not count and byte is not None and all(byte in line for line in sample)
            sound[self.separator] = count, len(self._heads(sample[0])) > 1, shown
        self.label_parser.found.clear()
        self.separator = max(sound, key=lambda separator: sound[separator])
        return self._is_header(sample[0], sample[1] if len(sample) > 1 else b"")

    def _is_sound(self, line: bytes) -> bool:
        """Returns True if a line can be parsed, and its path shows no sign of another separator."""
        try:
            path, _ = self.parse(line)
        except BadLine:
            return False
        return path.lower().endswith(_SUFFIXES) if self.by_name else not path.endswith((b",", b";", b'"'))

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
                f"value(s), and nothing else: {self._how_to_mend(heads[skipped], line, following)}"
            )
        self.separator = Separator(self.separator.byte, skipped)
        return True

    def _how_to_mend(self, head: str, line: bytes, following: bytes) -> str:
        heads = [os.fsdecode(column).strip() for column in self.separator.columns(line)]
        try:
            first = [os.fsdecode(column) for column in self.separator.columns(following)]
        except BadLine:
            first = []
        first = first if len(first) == len(heads) else [""] * len(heads)
        named = f"say which columns to pack, for example: {command_line(self._source, heads, first)}"
        values = [os.fsencode(value) for value in first[1 + (not heads[0]) :]]
        suggested = suggest_values(values) if head in _PATH_HEADS else None
        if suggested in (None, str(self._labels)):
            return named
        return f"give --labels {suggested}, or {named}"

    def _heads(self, line: bytes) -> list[str]:
        """Returns the names of the columns if a line seems to be a header, else nothing."""
        if len(line) > _LONGEST_LINE:
            return []
        try:
            columns = self.separator.columns(line)
        except BadLine:
            return []
        heads = [os.fsdecode(column).strip().casefold() for column in columns]
        return heads if _PATH_HEADS.intersection(heads) and not any(map(is_number, columns)) else []
