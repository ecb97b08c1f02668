"""The lines of a list, many at a time: where they are, which of them are plain, and numbers that tell them apart."""

from __future__ import annotations

import hashlib
import os
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import ListError
from packtrain._core.files import file_errors
from packtrain._core.opening import open_regular
from packtrain._core.options import LabelSpec

from .lines import Separator

LARGE: Final = 256 << 20
"""Bytes from which on a list is not kept in memory."""
_PIECE: Final = 4 << 20


class LargeText:
    """The content of a file, read where it is needed. It is sliced like bytes.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.fdopen(open_regular(path), "rb", buffering=0)
        self._state = self._now()

    def __del__(self) -> None:
        if "_file" in vars(self):
            self._file.close()

    def __len__(self) -> int:
        return self._state[0]

    def __getitem__(self, part: slice) -> bytes:
        """A part of the text, of step 1.

        Raises:
            ListError: The file has changed, or cannot be read.
        """
        start, stop, _ = part.indices(len(self))
        pieces = []
        with file_errors(self._path, ListError, verb="read the list"):
            while start < stop:
                pieces.append(os.pread(self._file.fileno(), min(_PIECE, stop - start), start))
                start += len(pieces[-1])
                if not pieces[-1]:
                    break
            if start < stop or self._now() != self._state:
                raise ListError(f"the list {self._path} was changed while it was being packed: run the same once more")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sha256(self) -> str:
        """SHA-256 of the text, in hexadecimal digits."""
        digest = hashlib.sha256()
        for start in range(0, len(self), _PIECE):
            digest.update(self[start : start + _PIECE])
        return digest.hexdigest()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

_BYTES: Final = 4 << 20
"""About this much of a text is looked at in one go."""
_LINES: Final = 1 << 16
_AT_ONCE: Final = 1 << 20
_LONG: Final = 4096
"""Bytes from which on a line is looked at by itself."""
_WORD: Final = 8
_NEWLINE, _BLANK, _TAB, _ZERO = b"\n \t0"
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(32)


Text: TypeAlias = bytes | LargeText
"""A text in memory, or a file that is too large for that."""


class Block(NamedTuple):
    """Some lines that follow each other, without those that are blank.

    Attributes:
        data: The piece of the text that they are in.
        base: Where it begins in the text.
        numbers: Number of each line, int64 [lines].
        starts: Where each line begins in `data`, int64 [lines].
        ends: Where it ends; line end and trailing blanks are left out. int64 [lines].
    """

    data: bytes
    base: int
    numbers: Integers
    starts: Integers
    ends: Integers

    def line(self, index: int) -> bytes:
        """One of the lines."""
        return self.data[self.starts[index] : self.ends[index]]

    def but_first(self) -> Block:
        """The same without the first line."""
        return self._replace(numbers=self.numbers[1:], starts=self.starts[1:], ends=self.ends[1:])


class KeptLines:
    """Positions of some lines of a text, in six or eight bytes for each."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._counts = [0]

    def __len__(self) -> int:
        return self._counts[-1]

    def add(self, block: Block, kept: Booleans) -> None:
        """Adds the lines of a block that are to be kept, bool [lines]."""
        numbers, starts, lengths = (values[kept] for values in (block.numbers, block.starts, block.ends - block.starts))
        if not len(starts):
            return
        first = int(numbers[0])
        in_sequence = int(numbers[-1]) - first == len(numbers) - 1
        sizes = lengths.astype(np.uint16 if lengths.max() < 1 << 16 else np.int64)
        places = starts.astype(np.uint32 if starts[-1] < 1 << 32 else np.int64)
        self._pieces.append(_Piece(block.base, first, None if in_sequence else numbers, places, sizes))
        self._counts.append(len(self) + len(starts))

    def at(self, ordinals: Integers) -> tuple[Integers, Integers, Integers]:
        """Number, start and end of the lines with these ordinals; all int64 [n]."""
        found = np.empty((3, len(ordinals)), np.int64)
        which = np.searchsorted(self._counts, ordinals, side="right") - 1
        order = np.argsort(which, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(which[order])) + 1) if len(order) else ():
            number = int(which[mine[0]])
            piece, inner = self._pieces[number], ordinals[mine] - self._counts[number]
            found[0, mine] = piece.first + inner if piece.numbers is None else piece.numbers[inner]
            found[1, mine] = starts = piece.base + piece.starts[inner].astype(np.int64)
            found[2, mine] = starts + piece.sizes[inner]
        return found[0], found[1], found[2]


class _Piece(NamedTuple):
    base: int
    first: int
    numbers: Integers | None
    starts: npt.NDArray[Any]
    sizes: npt.NDArray[Any]


def blocks_of(text: Text) -> Iterator[Block]:
    """Yields all lines of a text that are not blank; a BOM at the beginning is left out."""
    place = len(BOM_UTF8) if text[: len(BOM_UTF8)] == BOM_UTF8 else 0
    size, number, longer = len(text), 0, 1
    while place < size:
        data = text[place : place + _BYTES * longer]
        if place + len(data) < size:
            whole = data.rfind(b"\n") + 1
            if not whole:
                longer *= 2
                continue
            data = data[:whole]
        longer = 1
        breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        ends = breaks if data.endswith(b"\n") else np.append(breaks, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1])
        numbers = np.arange(number, number + len(ends))
        number, ends = number + len(ends), _stripped(data, starts, ends)
        kept = ends > starts
        if not kept.all():
            numbers, starts, ends = numbers[kept], starts[kept], ends[kept]
        yield Block(data, place, numbers, starts, ends)
        place += len(data)


def lines_of(text: Text) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each line of a text that is not blank."""
    for block in blocks_of(text):
        for index, number in enumerate(block.numbers.tolist()):
            yield number, block.line(index)


def blocks_between(text: Text, spans: Iterable[tuple[int, int, int]]) -> Iterator[Block]:
    """Yields lines of which number, start and end are known; they must ascend."""
    rest = iter(spans)
    while some := list(islice(rest, _LINES)):
        numbers, starts, ends = np.array(some, np.int64).T
        base = int(starts[0])
        yield Block(text[base : int(ends[-1])], base, numbers, starts - base, ends - base)


def line_hashes(block: Block) -> npt.NDArray[np.uint64]:
    """A number for each line, uint64 [lines]; equal lines have equal numbers, and others almost surely do not."""
    words, lengths = _words(block.data), block.ends - block.starts
    found = lengths.astype(np.uint64) * _MULTIPLIER
    active = np.flatnonzero(lengths <= _LONG)
    offset = 0
    while len(active):
        left = lengths[active] - offset
        # The last word overlaps the one before it.
        word = words[block.starts[active] + offset + (np.minimum(0, left - _WORD) if offset else 0)]
        if not offset and (short := left < _WORD).any():
            word[short] &= (np.uint64(1) << (left[short] * 8).astype(np.uint64)) - np.uint64(1)
        mixed = (found[active] ^ word) * _MULTIPLIER
        found[active] = mixed ^ (mixed >> _SHIFT)
        active, offset = active[left > _WORD], offset + _WORD
    for index in np.flatnonzero(lengths > _LONG).tolist():
        found[index] = hash(block.line(index)) & 0xFFFFFFFFFFFFFFFF
    return found


def distinct(hashes: array[int]) -> int:
    """Count different numbers. They are sorted in place, because there may not be memory for a copy.

    Args:
        hashes: The numbers, of 64 bits without a sign.
    """
    every = np.frombuffer(hashes, np.uint64)
    every.sort()
    steps = range(0, len(every), _AT_ONCE)
    return sum(int(np.count_nonzero(np.diff(every[start : start + _AT_ONCE + 1]))) for start in steps) + bool(hashes)


def plain_lines(block: Block, separator: Separator, labels: LabelSpec, classes: int | None) -> Booleans:
    """Find lines that are certainly sound: a path, one separator, and a label of up to eight digits, bool [lines].

    Args:
        block: The lines.
        separator: How the columns are separated.
        labels: Type of the labels.
        classes: Number of classes that labels must be below; None for any number.
    """
    plain = np.zeros(len(block.starts), bool)
    quoted = separator.byte is not None and (separator.skipped or b'"' in block.data)
    if str(labels) != "int" or quoted or b"\0" in block.data:
        return plain
    data = np.frombuffer(block.data, np.uint8)
    # There are as many bytes before the end of the line as are looked at.
    roomy = np.flatnonzero(block.ends - block.starts > _WORD + 2)
    starts, ends = block.starts[roomy], block.ends[roomy]
    words = _words(block.data)[ends - _WORD]
    digits, value, counting = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64), np.ones(len(ends), bool)
    for place in range(_WORD):
        digit = (words >> np.uint64(8 * (_WORD - 1 - place)) & np.uint64(0xFF)).astype(np.int64) - _ZERO
        counting &= (digit >= 0) & (digit <= 9)
        digits += counting
        value += np.where(counting, digit * 10**place, 0)
    before = ends - digits - 1
    found = data[before]
    apart = (found == _BLANK) | (found == _TAB) if separator.byte is None else found == separator.byte[0]
    # What is not printable may be a blank, too.
    sound = (digits > 0) & apart & (data[before - 1] > _BLANK) & (data[starts] > _BLANK)
    plain[roomy] = sound if classes is None else sound & (value < classes)
    return plain


def _stripped(data: bytes, starts: Integers, ends: Integers) -> Integers:
    """The ends of lines without their trailing blanks."""
    found, ends = np.frombuffer(data + b"x", np.uint8), ends.copy()
    active = np.arange(len(ends))
    for _ in range(_WORD):
        last = found[ends[active] - 1]
        active = active[(ends[active] > starts[active]) & ((last == _BLANK) | ((last >= 9) & (last <= 13)))]
        if not len(active):
            return ends
        ends[active] -= 1
    for index in active.tolist():
        ends[index] = starts[index] + len(data[starts[index] : ends[index]].rstrip())
    return ends


def _words(data: bytes) -> npt.NDArray[np.uint64]:
    """The eight bytes from each place on, the first as the lowest."""
    return np.ndarray((len(data) + 1,), "<u8", data + bytes(_WORD), strides=(1,))
