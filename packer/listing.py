"""The list of images: a file with `path label` on each line, or a folder of class folders."""

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
"""The same as torchvision.datasets.folder.IMG_EXTENSIONS."""

_BOM: Final = b"\xef\xbb\xbf"
_LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)


class ListedImage(NamedTuple):
    """One line of the list.

    Attributes:
        line: 0-based number of the line.
        path: Path as the list gives it; bytes that are not UTF-8 are surrogate escapes.
        label: Label on the line; None if the list has no labels.
    """

    line: int
    path: str
    label: StoredLabel


@dataclass(frozen=True)
class Reject:
    """A line that could not be packed.

    Attributes:
        line: 0-based number of the line.
        path: Path as the list gives it, or the whole line if it could not be parsed.
        reason: Why it was refused.
    """

    line: int
    path: str
    reason: str


class BadLine(ValueError):
    """A line does not have the form `path label`; the message says why."""


class ImageList:
    """A parsed list. It holds the text and a few bytes per line, not an object per line.

    The lines that could be parsed are the *entries* of the list. Their ordinals count them from 0, in list order.

    Args:
        text: Content of the list.
        labels: Type of the labels on each line.
        name: Name of the list; becomes the prefix of the shard names.
        root: Folder that relative paths start from.
        classes: Class names by label, or None.

    Attributes:
        labels: Type of the labels on each line.
        name: Prefix of the shard names: `name` with only ASCII letters, digits, ``-`` and ``_``.
        root: Folder that relative paths start from.
        classes: Class names by label, or None.
        rejects: The lines that could not be parsed.
        lines: Number of lines that are not blank.
        duplicates: Number of lines that repeat an earlier line exactly.
        sha256: SHA-256 of the text, in hexadecimal digits.

    Raises:
        ListError: No line could be parsed.
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
        """Number of entries: lines that are neither blank nor refused."""
        return len(self._starts)

    def entries(self, ordinals: npt.NDArray[np.int64]) -> tuple[ListedImage, ...]:
        """Returns the entries with these ordinals."""
        places = zip(*(column[ordinals].tolist() for column in (self._numbers, self._starts, self._ends)), strict=True)
        return tuple(
            ListedImage(number, os.fsdecode(self._text[start:end]), label)
            for (number, start, end), label in zip(places, self._labels(ordinals), strict=True)
        )

    def line_numbers(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the line numbers, int64 [n], of the entries with these ordinals [n]."""
        numbers: npt.NDArray[np.int64] = self._numbers[ordinals]
        return numbers

    def paths(self, lines: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """Yields the paths on these lines as the list gives them. The lines must ascend, and each must be an entry."""
        for ordinal in np.searchsorted(self._numbers, lines).tolist():
            yield self._text[self._starts[ordinal] : self._ends[ordinal]]

    def resolve(self, path: str) -> str:
        """Returns the path under which the file of an entry is found."""
        return os.path.join(self.root, path)

    def _labels(self, ordinals: npt.NDArray[np.int64]) -> Iterable[StoredLabel]:
        if self.labels.kind == "none":
            return repeat(None, len(ordinals))
        if self.labels.count is None:
            scalars: list[int | float] = self._values[ordinals].tolist()
            return scalars
        return map(tuple, self._values.reshape(-1, self.labels.count)[ordinals].tolist())

    def _parse(self, line: bytes) -> tuple[int, tuple[int, ...] | tuple[float, ...]]:
        """Returns the length of the path on a line, and the values of its label."""
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
        source: The list file or the image folder.
        labels: Type of the labels on each line; must be int for a folder.
        root: Folder that relative paths start from; None for the folder of the list.
        classes: File with one class name per line, in label order; None for an image folder, which names its classes.

    Raises:
        ListError: `source` cannot be read or has nothing to pack.
        UsageError: `source` is a folder, and `labels`, `root` or `classes` was given.
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


def _list_folder(folder: Path) -> tuple[tuple[str, ...], bytes]:
    """Returns the class names, and a list of the images in the folder as text."""
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
