"""The list of images: a file with `path label` on each line, or a folder of class folders."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.options import LabelSpec
from packtrain._core.paths import is_url
from packtrain._core.schema import Field

from ..encoding import Files
from ..listing import ListedSample, Reject, dataset_name
from ..options import Columns
from .delimited import BadRecord, read_heads, read_record
from .labels import BadLine, is_number, stored_labels
from .lines import LineParser, find_lines, suggest_labels
from .suggested_columns import are_values, command_line

_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


class ImageList:
    """A parsed list. It holds the text and a few bytes per line, not an object per line.

    The lines that could be parsed are the *entries* of the list. Their ordinals count them from 0, in list order.

    Args:
        text: Content of the list.
        labels: Type of the labels on each line.
        name: Name of the list; becomes the prefix of the shard names.
        root: Folder that relative paths start from.
        classes: Class names by label, or None.
        by_name: True if each label is the name of a class; without `classes`, the names are numbered in sorted order.
        spans: Number, start and end of each line; None to find the lines, how they are separated, and a header.
        source: Path of the list, for messages; None if it has none.

    Attributes:
        labels: Type of the labels.
        columns: None: a list of paths and labels has no other columns.
        fields: None: the options say how images are stored.
        name: Prefix of the shard names: `name` with only ASCII letters, digits, ``-`` and ``_``.
        root: Folder that relative paths start from.
        classes: Class names by label, or None.
        rejects: The lines that could not be parsed.
        lines: Number of lines that are neither blank nor a header.
        duplicates: Number of lines that repeat an earlier line exactly.
        sha256: SHA-256 of the text, in hexadecimal digits.
        advice: What to type instead, if the lines look as if `labels` were wrong; else empty.

    Raises:
        ListError: No line could be parsed.
    """

    def __init__(
        self,
        text: bytes,
        labels: LabelSpec,
        *,
        name: str,
        root: Path,
        classes: tuple[str, ...] | None = None,
        by_name: bool = False,
        spans: Iterable[tuple[int, int, int]] | None = None,
        source: Path | None = None,
    ) -> None:
        self.labels = labels
        self.columns: Columns | None = None
        self.fields: tuple[Field, ...] | None = None
        self.name = dataset_name(name)
        self.root = root
        self.classes = classes
        self.rejects: list[Reject] = []
        self.sha256 = hashlib.sha256(text).hexdigest()
        parser = LineParser(labels, classes, by_name=by_name, source=source or Path(name))
        has_header = spans is None and parser.adapt(text[start:end] for _, start, end in find_lines(text))
        self.advice = self._advise(text, by_name, has_header, source) if spans is None else ""
        self._values = self._parse(text, parser, find_lines(text) if spans is None else spans, has_header)
        if by_name and classes is None:
            self.classes, numbers = parser.label_parser.sort_classes()
            self._values = numbers[self._values]
        if not len(self):
            raise ListError(f"{name}: {self._why_nothing_is_left(text)}")

    def _parse(
        self, text: bytes, parser: LineParser, spans: Iterable[tuple[int, int, int]], has_header: bool
    ) -> npt.NDArray[Any]:
        """Reads all lines. Returns the values of their labels."""
        starts, ends, numbers, hashes = array("q"), array("q"), array("q"), array("q")
        values: array[Any] = array("d" if self.labels.kind == "float" else "q")
        # Paths that had to be unquoted, so that they are no piece of the text.
        unquoted = bytearray()
        lines = iter(spans)
        if has_header:
            next(lines)
        for number, start, end in lines:
            line = text[start:end]
            hashes.append(hash(line))
            try:
                path, label = parser.parse(line)
            except BadLine as error:
                self.rejects.append(Reject(number, os.fsdecode(line), str(error)))
                continue
            offset = line.find(path)
            if offset < 0:
                start, offset = len(text), len(unquoted)
                unquoted += path
            starts.append(start + offset)
            ends.append(start + offset + len(path))
            numbers.append(number)
            values.extend(label)
        self.lines = len(hashes)
        self.duplicates = self.lines - len(np.unique(np.asarray(hashes)))
        self._text = text + unquoted if unquoted else text
        self._starts, self._ends, self._numbers = np.asarray(starts), np.asarray(ends), np.asarray(numbers)
        return np.asarray(values)

    def _advise(self, text: bytes, by_name: bool, has_header: bool, source: Path | None) -> str:
        if b"\r" in text.rstrip() and b"\n" not in text:
            return "Its lines end in CR alone: convert them with tr '\\r' '\\n'"
        lines = (text[start:end] for _, start, end in find_lines(text))
        line = next(islice(lines, int(has_header), None), b"")
        if is_url(os.fsdecode(line)):
            return "The paths are URLs, but packtrain reads only files of this machine: copy them to a disk"
        if not has_header and source is not None and source.suffix.lower() in (".csv", ".tsv"):
            return _advise_columns(text, source)
        suggested = suggest_labels(line)
        if suggested in (None, "class" if by_name else str(self.labels)):
            return ""
        return f"The lines look like --labels {suggested}"

    def _why_nothing_is_left(self, text: bytes) -> str:
        if not self.lines:
            return "the list is empty. Write one image per line: its path, a blank, and its label"
        if text.startswith(_UTF_16):
            return "the list is encoded in UTF-16. Convert it to UTF-8: iconv -f UTF-16 -t UTF-8"
        first = self.rejects[0]
        reason = f"none of {self.lines} lines can be used: line {first.line}: {first.reason}"
        return f"{reason}. {self.advice}" if self.advice else reason

    def __len__(self) -> int:
        """Number of entries: lines that are neither blank nor refused."""
        return len(self._starts)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the entries with these ordinals."""
        places = zip(*(column[ordinals].tolist() for column in (self._numbers, self._starts, self._ends)), strict=True)
        labels = stored_labels(self.labels, self._values, ordinals)
        return tuple(
            ListedSample(number, os.fsdecode(self._text[start:end]), label)
            for (number, start, end), label in zip(places, labels, strict=True)
        )

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the line numbers, int64 [n], of the entries with these ordinals [n]."""
        numbers: npt.NDArray[np.int64] = self._numbers[ordinals]
        return numbers

    def paths(self, lines: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """Yields the paths on these lines as the list gives them. The lines must ascend, and each must be an entry."""
        for ordinal in np.searchsorted(self._numbers, lines).tolist():
            yield self._text[self._starts[ordinal] : self._ends[ordinal]]

    @property
    def source(self) -> Files:
        """The files that it names."""
        return Files(os.fspath(self.root))

    def resolve(self, path: str) -> str:
        """Returns the path under which the file of an entry is found."""
        return self.source.resolve(path)


def _advise_columns(text: bytes, source: Path) -> str:
    """The line to type if the first line of a file, which is no list of paths and labels, names columns."""
    try:
        heads, delimiter, end = read_heads(text, source.name)
        first = read_record(text, end, delimiter).cells
    except (ListError, BadRecord):
        return ""
    if (
        len(heads) < 2
        or len(first) != len(heads)
        or any(is_number(head.encode("utf-8", "surrogateescape")) for head in heads)
        or are_values(heads)
    ):
        return ""
    command = command_line(source, heads, [os.fsdecode(cell) for cell in first])
    return f"If its first line names the columns, say which to pack, for example: {command}"
