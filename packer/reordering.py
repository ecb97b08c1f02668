"""Brings the records of all shards into the order of the list, by way of a file, so that few are in memory at a time.

Shards come one after the other, and a shard's lines lie anywhere in the list. So records are collected until there are
enough for a *run*, which is written to the file in *buckets*: bucket b holds the entries of the list from b * n to
(b + 1) * n. Later each column is read bucket by bucket, from all runs, and put into order in memory. The columns are
written and read once, a run or a bucket is all that is in memory, and no entry needs a byte of its own.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._core.files import write_all

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Texts = tuple[Ints, Array]
"""The offsets of some texts, and their bytes, as `text_column` makes them."""

_RUN_BYTES: Final = 64 << 20
"""Size of a run or a bucket, at least about."""
_PART_BYTES: Final = 512 << 10
"""Size of what a run and a bucket have in common, at least about: of so much, columns are read."""
_TEXT_BYTES: Final = 64
"""Of a text of a record, about."""
_VECTOR: Final = 1000
"""Pieces that are written with one call; Linux takes 1,024."""
_ORDINAL: Final = "ordinal"
_SLOT: Final = "slot"


@dataclass(frozen=True)
class ColumnType:
    """Type of a column.

    Attributes:
        dtype: numpy type string of its values.
        shape: Shape of an entry.
    """

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of an entry."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class _Run:
    """The place of a run in the file.

    Attributes:
        at: Where each of their columns begins.
        records: Where those of each bucket begin, counted in records, int64 [buckets + 1].
        texts: Where the texts of each bucket begin, counted in bytes, int64 [buckets + 1], by the name of the column.
    """

    at: Mapping[str, int]
    records: Ints
    texts: Mapping[str, Ints]


class Reordering:
    """Records of a list that are added in any order, and their columns in the order of the list.

    Args:
        file: Descriptor of an empty file, which becomes as large as the index.
        entries: Number of entries of the list.
        forms: The columns, by their names.
        texts: Names of the columns of texts.
        at_once: Number of records in a run, and of entries in a bucket; None to decide by their size.
    """

    def __init__(
        self, file: int, entries: int, forms: Mapping[str, ColumnType], texts: Sequence[str], at_once: int | None = None
    ) -> None:
        self._file = file
        self._entries = entries
        self.forms = {**forms, _ORDINAL: ColumnType("<i8"), _SLOT: ColumnType("<u4")}
        self.forms |= {_sizes(name): ColumnType("<i8") for name in texts}
        width = sum(form.bytes for form in self.forms.values()) + _TEXT_BYTES * len(texts)
        # There are as many runs as buckets, so both grow with the root of the number of records.
        size = max(_RUN_BYTES, math.isqrt(entries * width * _PART_BYTES))
        self._at_once = max(1, size // width) if at_once is None else at_once
        self._buckets = -(-entries // self._at_once)
        self._waiting: list[tuple[Ints, Mapping[str, Array], Mapping[str, Texts]]] = []
        self._written = 0
        self._runs: list[_Run] = []
        self._end = 0
        self.records = 0
        """Number of records."""
        self.text_bytes = dict.fromkeys(texts, 0)
        """Size of all their texts, by the name of the column."""

    def add(self, ordinals: Ints, columns: Mapping[str, Array], texts: Mapping[str, Texts]) -> None:
        """Adds records.

        Args:
            ordinals: Which entries of the list they are, int64 [records]; none may come twice.
            columns: Their columns, [records, ...].
            texts: Their texts, by the name of the column.
        """
        self._waiting.append((ordinals, columns, texts))
        self.records += len(ordinals)
        for name in self.text_bytes:
            self.text_bytes[name] += len(texts[name][1])
        if self.records - self._written >= self._at_once:
            self._write_run()

    def ordinals(self) -> Iterator[Ints]:
        """Yields the ordinals of all records, in the order in which they were added."""
        self._write_run()
        for run in self._runs:
            yield self._read(run, _ORDINAL, 0, int(run.records[-1]))

    def filled(self, name: str) -> Iterator[tuple[int, Array]]:
        """Yields the column `name` of some entries at a time, in the order of the list, and the ordinal of the first.

        What stands at an entry without a record means nothing.
        """
        form = self.forms[name]
        for bucket in range(self._buckets):
            values = self._empty(bucket, form)
            for run, start, stop in self._parts(bucket):
                values[self._read(run, _SLOT, start, stop)] = self._read(run, name, start, stop)
            yield bucket * self._at_once, values

    def column(self, name: str, gaps: Ints) -> Iterator[Array]:
        """Yields the column `name` in pieces, in the order of the list; `gaps` are all entries without a record."""
        for first, values in self.filled(name):
            yield _without(values, first, gaps)

    def text_offsets(self, name: str, gaps: Ints) -> Iterator[Ints]:
        """Yields where the texts of a column begin, in the order of the list, and where the last one ends."""
        end = 0
        yield np.zeros(1, np.int64)
        for sizes in self.column(_sizes(name), gaps):
            yield end + np.cumsum(sizes)
            end += int(sizes.sum())

    def texts(self, name: str, gaps: Ints) -> Iterator[Array]:
        """Yields the texts of a column in the order of the list, uint8 [some]."""
        for bucket in range(self._buckets):
            starts, sizes = self._empty(bucket, ColumnType("<i8")), self._empty(bucket, ColumnType("<i8"))
            found, end = [np.empty(0, np.uint8)], 0
            for run, start, stop in self._parts(bucket):
                slots, lengths = (self._read(run, each, start, stop) for each in (_SLOT, _sizes(name)))
                sizes[slots] = lengths
                starts[slots] = end + np.cumsum(lengths) - lengths
                first, last = run.texts[name][bucket : bucket + 2].tolist()
                found.append(self._read_at(run.at[_bytes_of(name)] + first, np.empty(last - first, np.uint8)))
                end += last - first
            first = bucket * self._at_once
            yield picked_texts(np.concatenate(found), _without(starts, first, gaps), _without(sizes, first, gaps))

    def _parts(self, bucket: int) -> Iterator[tuple[_Run, int, int]]:
        """Yields which records of each run are in a bucket."""
        self._write_run()
        for run in self._runs:
            start, stop = run.records[bucket : bucket + 2].tolist()
            yield run, start, stop

    def _empty(self, bucket: int, form: ColumnType) -> Array:
        return np.zeros((min(self._at_once, self._entries - bucket * self._at_once), *form.shape), form.dtype)

    def _write_run(self) -> None:
        """Writes what waits to the file."""
        waiting, self._waiting, self._written = self._waiting, [], self.records
        if not waiting:
            return
        at: dict[str, int] = {}
        pieces = list[memoryview]()

        def write(name: str, values: Array) -> None:
            at[name] = self._end
            if values.size:
                pieces.append(_bytes(values))
                self._end += len(pieces[-1])

        added, columns, texts_of = zip(*waiting, strict=True)
        ordinals = np.concatenate(added)
        write(_ORDINAL, ordinals)
        buckets = ordinals // self._at_once
        # Numbers of 16 bits are sorted in linear time.
        order = np.argsort(buckets.astype("<u2") if self._buckets <= 1 << 16 else buckets, kind="stable")
        write(_SLOT, (ordinals - buckets * self._at_once).astype("<u4")[order])
        records = _bounds(np.bincount(buckets, minlength=self._buckets))
        for name in self.forms.keys() - {_ORDINAL, _SLOT, *map(_sizes, self.text_bytes)}:
            write(name, np.concatenate([each[name] for each in columns])[order])
        bounds: dict[str, Ints] = {}
        for name in self.text_bytes:
            sizes = np.concatenate([np.diff(each[name][0]) for each in texts_of])
            write(_sizes(name), sizes[order])
            bounds[name] = _bounds(sizes[order])[records]
            starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])[order] if len(sizes) else sizes
            texts = np.concatenate([each[name][1] for each in texts_of])
            write(_bytes_of(name), picked_texts(texts, starts, sizes[order]))
        for first in range(0, len(pieces), _VECTOR):
            write_all(self._file, pieces[first : first + _VECTOR])
        self._runs.append(_Run(at, records, bounds))

    def _read(self, run: _Run, name: str, start: int, stop: int) -> Array:
        form = self.forms[name]
        values = np.empty((stop - start, *form.shape), form.dtype)
        return self._read_at(run.at[name] + start * form.bytes, values)

    def _read_at(self, position: int, values: Array) -> Array:
        left = _bytes(values) if values.size else memoryview(b"")
        while left:
            count = os.preadv(self._file, [left], position)
            if not count:
                raise OSError(errno.EIO, "a temporary file has lost what was written to it")
            left, position = left[count:], position + count
        return values


def _sizes(name: str) -> str:
    return f"{name} sizes"


def _bytes_of(name: str) -> str:
    return f"{name} bytes"


def picked_texts(texts: Array, starts: Ints, sizes: Ints) -> Array:
    """Returns the bytes, uint8, of the texts that begin at `starts` and have these sizes, one after the other."""
    stops = np.cumsum(sizes)
    result = np.empty(stops[-1] if len(stops) else 0, np.uint8)
    # Texts of the same size are items of the same type, which numpy copies many at a time.
    order = np.argsort(sizes, kind="stable")
    distinct, firsts = np.unique(sizes[order], return_index=True)
    for size, (first, last) in zip(distinct.tolist(), pairwise([*firsts.tolist(), len(order)]), strict=True):
        if size:
            which = order[first:last]
            _items(result, size)[stops[which] - size] = _items(texts, size)[starts[which]]
    return result


def _items(texts: Array, size: int) -> Array:
    """All runs of `size` bytes in `texts`, which overlap: item n begins at byte n."""
    return np.ndarray((len(texts) - size + 1,), f"V{size}", texts, strides=(1,))


def _without(values: Array, first: int, gaps: Ints) -> Array:
    """Leaves out the `gaps`, which ascend, of entries `first`, `first` + 1, and so on."""
    start, stop = np.searchsorted(gaps, (first, first + len(values)))
    return np.delete(values, gaps[start:stop] - first, axis=0) if start < stop else values


def _bounds(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)])


def _bytes(values: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(values).reshape(-1).view("u1").data)
