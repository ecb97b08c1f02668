"""The list of images: a file with `path label` on each line, or a folder of class folders."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.options import LabelSpec
from packtrain._core.paths import is_url
from packtrain._core.schema import Field
from packtrain._readers.formats import StoredLabel
from packtrain._remote.urls import SCHEMES, Url, is_address

from ..encoding import Files
from ..listing import ListedSample, Reject, dataset_name
from ..options import Columns
from .blocks import Block, KeptLines, Text, blocks_between, blocks_of, distinct, line_hashes, plain_lines
from .delimited import BadRecord, read_heads, read_record
from .labels import BadLine, is_number
from .lines import LineParser, find_lines, suggest_labels
from .suggested_columns import are_values, command_line

_HEAD: Final = 16 << 20
"""As much of a text as shows how it is written."""
_AT_ONCE: Final = 4096
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


class ImageList:
    """A parsed list. It holds the text, unless that is large, and a few bytes per line, not an object per line.

    The lines that could be parsed are the *entries* of the list. Their ordinals count them from 0, in list order.

    Args:
        text: Content of the list.
        labels: Type of the labels on each line.
        name: Name of the list; becomes the prefix of the shard names.
        root: Folder that relative paths start from, or the address of one in an object store.
        classes: Class names by label, or None.
        by_name: True if each label is the name of a class; without `classes`, the names are numbered in sorted order.
        spans: Number, start and end of each line; None to find the lines, how they are separated, and a header.
        source: Path of the list, for messages; None if it has none.

    Attributes:
        labels: Type of the labels.
        columns: None: a list of paths and labels has no other columns.
        fields: None: the options say how images are stored.
        name: Prefix of the shard names: `name` with only ASCII letters, digits, ``-`` and ``_``.
        root: Folder that relative paths start from, or the address of one in an object store.
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
        text: Text,
        labels: LabelSpec,
        *,
        name: str,
        root: Path | Url,
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
        self.sha256 = hashlib.sha256(text).hexdigest() if isinstance(text, bytes) else text.sha256()
        self._class_numbers: npt.NDArray[np.int64] | None = None
        parser = LineParser(labels, classes, by_name=by_name, source=source or Path(name))
        head = text[:_HEAD]
        has_header = spans is None and parser.adapt(head[start:end] for _, start, end in find_lines(head))
        self.advice = self._advise(head, by_name, has_header, source) if spans is None else ""
        self._text, self._lines = text, KeptLines()
        self._parse(text, parser, blocks_of(text) if spans is None else blocks_between(text, spans), has_header)
        if by_name and classes is None:
            self.classes, self._class_numbers = parser.label_parser.sort_classes()
        if not len(self):
            raise ListError(f"{source or name}: {self._why_nothing_is_left(head)}")

    def _parse(self, text: Text, parser: LineParser, blocks: Iterator[Block], has_header: bool) -> None:
        """Reads all lines."""
        # A single one, which grows in place: many pieces would leave holes in memory.
        hashes = array("Q")
        classes = None if self.classes is None else len(self.classes)
        for block in blocks:
            if has_header:
                block, has_header = block.but_first(), False
            hashes.frombytes(line_hashes(block).tobytes())
            sound = plain_lines(block, parser.separator, self.labels, classes)
            if parser.by_name:
                sound[:] = False
            for index in np.flatnonzero(~sound).tolist():
                line = block.line(index)
                try:
                    parser.parse(line)
                    sound[index] = True
                except BadLine as error:
                    self.rejects.append(Reject(int(block.numbers[index]), os.fsdecode(line), str(error)))
            self._lines.add(block, sound)
        self.lines = len(hashes)
        self.duplicates = self.lines - distinct(hashes)
        self._parser = parser

    def _advise(self, text: bytes, by_name: bool, has_header: bool, source: Path | None) -> str:
        if b"\r" in text.rstrip() and b"\n" not in text:
            return "Its lines end in CR alone: convert them with tr '\\r' '\\n'"
        lines = (text[start:end] for _, start, end in find_lines(text))
        line = next(islice(lines, int(has_header), None), b"")
        if is_url(os.fsdecode(line)) and not is_address(os.fsdecode(line)):
            return f"The paths are URLs, of which packtrain reads {', '.join(SCHEMES)}: copy the others to a disk"
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
        return len(self._lines)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedSample, ...]:
        """Returns the entries with these ordinals."""
        numbers, starts, ends = self._lines.at(ordinals)
        found = []
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True):
            path, values = self._parser.parse(self._text[start:end])
            found.append(ListedSample(number, os.fsdecode(path), self._label(values)))
        return tuple(found)

    def _label(self, values: tuple[int, ...] | tuple[float, ...]) -> StoredLabel:
        if self.labels.kind == "none":
            return None
        if self.labels.count is not None:
            return values
        return values[0] if self._class_numbers is None else int(self._class_numbers[int(values[0])])

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the line numbers, int64 [n], of the entries with these ordinals [n]."""
        return self._lines.at(ordinals)[0]

    def paths(self, lines: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """Yields the paths on these lines as the list gives them. The lines must ascend, and each must be an entry."""
        for first in range(0, len(lines), _AT_ONCE):
            ordinals = self._lines.ordinals(lines[first : first + _AT_ONCE])
            _, starts, ends = self._lines.at(ordinals)
            base = int(starts[0])
            text = self._text[base : int(ends[-1])]
            for start, end in zip((starts - base).tolist(), (ends - base).tolist(), strict=True):
                yield self._parser.parse(text[start:end])[0]

    @property
    def source(self) -> Files:
        """The files that it names."""
        return Files(str(self.root))

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
