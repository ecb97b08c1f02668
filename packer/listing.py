"""The list of images: `path label` per line, or a folder of class folders."""

from __future__ import annotations

import hashlib
import math
import os
import re
import reprlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError, UsageError
from packtrain._core.options import LabelSpec
from packtrain._readers.formats import StoredLabel

IMAGE_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision.datasets.folder.IMG_EXTENSIONS."""

_BOM: Final = b"\xef\xbb\xbf"
_LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)


class ListedImage(NamedTuple):
    """One line of the list.

    Attributes:
        line: 0-based number of the line.
        path: As the list gives it; bytes that are not UTF-8 as surrogate escapes.
        label: Its label, None without labels.
    """

    line: int
    path: str
    label: StoredLabel


@dataclass(frozen=True)
class Reject:
    """A line that could not be packed, and why."""

    line: int
    path: str
    reason: str


class BadLine(ValueError):
    """A line does not have the form that the list should have."""


class ImageList:
    """A parsed list. Holds the text and some bytes per line, not an object per line.

    Args:
        text: The list's bytes.
        labels: What follows the path on each line.
        name: For the dataset's file names.
        root: Folder that relative paths start from.
        classes: Class names by label, or None.

    Attributes:
        rejects: The lines that cannot be parsed. They are not among the entries.
        lines: Number of lines that are not blank.
        duplicates: Number of lines that repeat an earlier one word for word.
        sha256: Hash of the text.

    Raises:
        ListError: No line is left.
    """

    def __init__(
        self, text: bytes, labels: LabelSpec, *, name: str, root: Path, classes: tuple[str, ...] | None = None
    ) -> None:
        self.labels = labels
        self.name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "data"
        self.root = root
        self.classes = classes
        self.rejects: list[Reject] = []
        self.sha256 = hashlib.sha256(text).hexdigest()
        self._text = text
        starts, ends, numbers, hashes = array("q"), array("q"), array("q"), array("q")
        values: array[Any] = array("d" if labels.kind == "float" else "q")
        for number, start, end in _lines(text):
            line = text[start:end]
            hashes.append(hash(line))
            try:
                length, label = self._parse(line)
            except BadLine as error:
                self.rejects.append(Reject(number, os.fsdecode(line), str(error)))
                continue
            starts.append(start)
            ends.append(start + length)
            numbers.append(number)
            values.extend(label)
        self.lines = len(hashes)
        self.duplicates = self.lines - len(np.unique(np.asarray(hashes)))
        self._starts, self._ends, self._numbers = np.asarray(starts), np.asarray(ends), np.asarray(numbers)
        self._values = np.asarray(values)
        if not len(self):
            first = f": line {self.rejects[0].line}: {self.rejects[0].reason}" if self.rejects else ""
            raise ListError(f"{name}: none of {self.lines} lines can be used{first}")

    def __len__(self) -> int:
        """Number of entries: lines that are neither blank nor rejected."""
        return len(self._starts)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedImage, ...]:
        """The entries with these ordinals."""
        places = zip(*(column[ordinals].tolist() for column in (self._numbers, self._starts, self._ends)), strict=True)
        return tuple(
            ListedImage(number, os.fsdecode(self._text[start:end]), label)
            for (number, start, end), label in zip(places, self._labels(ordinals), strict=True)
        )

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The line numbers of entries."""
        numbers: npt.NDArray[np.int64] = self._numbers[ordinals]
        return numbers

    def paths(self, lines: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """The paths on the given lines (ascending numbers of lines that have an entry), as the list gives them."""
        for ordinal in np.searchsorted(self._numbers, lines).tolist():
            yield self._text[self._starts[ordinal] : self._ends[ordinal]]

    def resolve(self, path: str) -> str:
        """Where to find the file of an entry."""
        return os.path.join(self.root, path)

    def _labels(self, ordinals: npt.NDArray[np.int64]) -> Iterable[StoredLabel]:
        if self.labels.kind == "none":
            return repeat(None, len(ordinals))
        if self.labels.count is None:
            scalars: list[int | float] = self._values[ordinals].tolist()
            return scalars
        return map(tuple, self._values.reshape(-1, self.labels.count)[ordinals].tolist())

    def _parse(self, line: bytes) -> tuple[int, tuple[int, ...] | tuple[float, ...]]:
        """The length of the path on a line, and the values of its label."""
        fields = line.rsplit(None, self.labels.fields) if self.labels.fields else [line]
        if len(fields) <= self.labels.fields:
            raise BadLine(f"expected a path and {self.labels.fields} label value(s), separated by blanks")
        if b"\0" in fields[0]:
            raise BadLine("the path holds a NUL byte")
        if self.labels.kind == "float":
            return len(fields[0]), tuple(map(_parse_float, fields[1:]))
        values = tuple(map(_parse_int, fields[1:]))
        if self.classes is not None and not 0 <= values[0] < len(self.classes):
            raise BadLine(f"label {values[0]} is outside the {len(self.classes)} class names")
        return len(fields[0]), values


def read_list(source: Path, labels: LabelSpec, *, root: Path | None = None, classes: Path | None = None) -> ImageList:
    """Reads a list file, or lists an image folder (``class/name.jpg``) as torchvision's ImageFolder does.

    Args:
        source: The list or the folder.
        labels: What follows the path on each line; int for a folder.
        root: Folder that relative paths start from; default: the list's own folder.
        classes: File with one class name per line, in label order; a folder brings its own.

    Raises:
        ListError: `source` cannot be read, or holds nothing to pack.
        UsageError: `labels` or `classes` do not go with a folder.
    """
    try:
        if source.is_dir():
            if str(labels) != "int" or classes is not None or root is not None:
                raise UsageError(f"{source} is a folder: its class folders are the labels, and paths start there")
            names, text = _list_folder(source)
            return ImageList(text, labels, name=source.resolve().name, root=source, classes=names)
        class_names = None
        if classes is not None:
            listed = classes.read_text(encoding="utf-8-sig").strip()
            if not listed:
                raise ListError(f"{classes} holds no class names")
            class_names = tuple(line.strip() for line in listed.split("\n"))
        return ImageList(
            source.read_bytes(),
            labels,
            name=source.stem,
            root=source.parent if root is None else root,
            classes=class_names,
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ListError(f"cannot read the list {source}: {error}") from error


def _lines(text: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields number, start and end of each line that is not blank, without BOM, line end and trailing blanks."""
    start = len(_BOM) if text.startswith(_BOM) else 0
    number = 0
    while start < len(text):
        newline = text.find(b"\n", start)
        stop = len(text) if newline < 0 else newline
        if length := len(text[start:stop].rstrip()):
            yield number, start, start + length
        start = stop + 1
        number += 1


def _list_folder(folder: Path) -> tuple[tuple[str, ...], bytes]:
    """Class names, and the folder's images as the text of a list."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    lines = []
    for label, name in enumerate(names):
        for parent, _, files in sorted(os.walk(folder / name, followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(IMAGE_SUFFIXES):
                    path = os.path.relpath(os.path.join(parent, file), folder)
                    if "\n" in path:
                        raise ListError(f"{folder}: {path!r} holds a line break, which a list cannot name; rename it")
                    lines.append(f"{path} {label}\n")
    if not lines:
        raise ListError(f"{folder} has no images in class folders (class/name.jpg)")
    return tuple(names), os.fsencode("".join(lines))


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
