"""The list of images: a file with `path label` on each line, or a folder of class folders."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field
from packtrain._formats import StoredLabel
from packtrain._storage.remote.urls import Url

from ..encoding import Files
from ..listing import ListedSample, Reject, all_entries, dataset_name
from .advice import ListedLines, find_missing, named_columns
from .blocks import Block, KeptLines, Text, blocks_between, blocks_of, distinct, line_hashes, lines_of, plain_lines
from .labels import BadLine
from .lines import LineParser
from .rows import ColumnPlace

_HEAD: Final = 16 << 20
"""As much of a text as shows how it is written."""
_SAMPLED_LINES: Final = 100
_LONGEST_LINE: Final = 1 << 16
"""A longer line is not looked at closely."""
_NAMES: Final = "Add the names in the list to the file of --classes, or leave --classes out"
_EXAMPLE: Final = "A line is the path of an image, a blank, and its label, such as `images/1.jpg 3`"


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
        fields: None: the options say how images are stored.
        name: Prefix of the shard names: `name` with only ASCII letters, digits, ``-`` and ``_``.
        root: Folder that relative paths start from, or the address of one in an object store.
        classes: Class names by label, or None.
        rejects: The lines that could not be parsed.
        lines: Number of lines that are neither blank nor a header.
        duplicates: Number of lines that repeat an earlier line exactly.
        sha256: SHA-256 of the text, in hexadecimal digits.

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
        self.fields: tuple[Field, ...] | None = None
        self.name = dataset_name(name)
        self.root, self.source = root, Files(str(root))
        self.classes = classes
        self.rejects: list[Reject] = []
        self.sha256 = hashlib.sha256(text).hexdigest() if isinstance(text, bytes) else text.sha256()
        self._class_numbers: npt.NDArray[np.int64] | None = None
        parser = LineParser(labels, classes, by_name=by_name, source=source or Path(name))
        head = text[:_HEAD]
        has_header = spans is None and parser.adapt(line for _, line in lines_of(head))
        self._with_names = classes is not None
        self._source, self._headed = source, has_header if spans is None else None
        self._text, self._lines = text, KeptLines()
        self._parse(text, parser, blocks_of(text) if spans is None else blocks_between(text, spans), has_header)
        if by_name and classes is None:
            self.classes, self._class_numbers = parser.label_parser.sort_classes()
        parser.label_parser.require_zero((entry.label for entry in all_entries(self)), source or name)
        if not len(self):
            raise ListError(f"{source or name}: {self._why_nothing_is_left()}")

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

    @property
    def advice(self) -> str:
        """Advice on a list that cannot be read as it is: the fault, and the words to type; empty if none is found."""
        if self._headed is None:
            return ""
        head, source, has_header = self._text[:_HEAD], self._source or Path(self.name), self._headed
        first = list(islice(lines_of(head), _SAMPLED_LINES + 1))
        header = self._parser.separator.heads(first.pop(0)[1]) if has_header else None
        refused = [(reject.line, os.fsencode(reject.path)) for reject in self.rejects[:_SAMPLED_LINES]]
        unnamed = source.suffix.lower() in (".csv", ".tsv") and not has_header
        remedy = named_columns(head, source) if unnamed else None
        for some in (refused, first):
            short = [(number, line) for number, line in some if len(line) <= _LONGEST_LINE]
            remedy = remedy or ListedLines(short, self._expected, source, self.root, header).remedy()
        if remedy is None and len(self):
            separator = self._parser.separator
            place = ColumnPlace(separator.byte, separator.skipped, has_header)
            remedy = find_missing(self.entries(np.zeros(1, np.int64))[0].path, self.root, place)
        if remedy is None:
            return ""
        if not remedy.words and not remedy.rewrite:
            return remedy.why
        # What was given has to be given once more.
        if self._expected != "int" and not {"--labels", "--image"}.intersection(remedy.words):
            remedy = replace(remedy, words=("--labels", self._expected, *remedy.words))
        if self._with_names:
            remedy = replace(remedy, words=(*remedy.words, "--classes", "FILE"))
        return remedy.text(self._source, self.root)

    @property
    def _expected(self) -> str:
        """The type of the labels, as `--labels` has it."""
        return "class" if self._parser.by_name else str(self.labels)

    def _why_nothing_is_left(self) -> str:
        if not self.lines:
            return "the list is empty. Write one image per line: its path, a blank, and its label"
        first = self.rejects[0]
        reason = f"none of {self.lines} lines can be used: line {first.line}: {first.reason}"
        return f"{reason}. {self.advice or (_NAMES if self._parser.by_name and self._with_names else _EXAMPLE)}"

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
