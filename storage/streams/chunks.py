"""The table of chunks: which bytes of which shard lie where in the files of a cache.

A *chunk* is a run of whole records by place, of one shard, with all their fields. Its bytes are a few *extents* of the
shard: one where all fields lie together, as in tar, one for each field where they lie apart, as in HDF5. The file of a
chunk holds its extents one after the other, in the order in which they lie in the shard.

The table is made once for each cache, from manifest and index, and mapped by every process that reads from it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.document import dump_document, load_document
from packtrain._core.errors import CorruptFile, UnsupportedVersion
from packtrain._core.index import Index
from packtrain._core.manifest import INDEX, Manifest
from packtrain._core.npy import npy_header
from packtrain._core.opening import open_regular
from packtrain._core.problems import reading

from ..staging.documents import BLOCK
from ..staging.folder import Folder
from .cutting import APART, chunk_starts, space_of
from .order import Integers

_CHECKSUMS: Final = "table.json"
_VERSION: Final = 1
_NOWHERE: Final = -(1 << 62)
_COLUMNS: Final = ("bounds", "shard", "bytes", "firsts", "start", "stop", "chunk", "position")


class Extent(NamedTuple):
    """A part of a chunk.

    Attributes:
        start: Where it begins in the shard.
        stop: Where it ends in the shard.
        position: Where it begins in the chunk's file.
    """

    start: int
    stop: int
    position: int


class ChunkRecord(NamedTuple):
    """A record in the file of a chunk.

    Attributes:
        row: Its row.
        field: The name of its field.
        position: Where it begins in the chunk's file.
        size: Its size in bytes.
        crc32c: Its checksum.
    """

    row: int
    field: str
    position: int
    size: int
    crc32c: int


@dataclass(frozen=True)
class ChunkTable:
    """The chunks of a dataset by number, in the order of their places.

    Attributes:
        bounds: Where each chunk begins, and where the last one ends: places, int64 [chunks + 1].
        shard: The shard of each chunk, int64 [chunks].
        bytes: The size of each chunk's file, int64 [chunks].
        firsts: Number of the first extent of each shard, int64 [shards + 1].
        start: Where each extent begins in its shard, int64 [extents]; in each shard they ascend and do not overlap.
        stop: Where each extent ends in its shard, int64 [extents].
        chunk: The chunk of each extent, int64 [extents].
        position: Where each extent begins in its chunk's file, int64 [extents].
    """

    bounds: Integers
    shard: Integers
    bytes: Integers
    firsts: Integers
    start: Integers
    stop: Integers
    chunk: Integers
    position: Integers

    @classmethod
    def of(cls, manifest: Manifest, index: Index) -> Self:
        """Makes the table of a dataset. Memory is that of the table and of the largest shard's part of the index.

        Raises:
            CorruptFile: The index names a shard, a row or bytes that are not there, or two records share bytes.
        """
        made = [_cut(manifest, index, number, first) for number, first in enumerate(_first_places(manifest))]
        counts = [len(shard.starts) for shard in made]
        first_chunk = np.cumsum([0, *counts])
        extents = [len(shard.start) for shard in made]

        def joined(pieces: list[Integers]) -> Integers:
            return np.concatenate([np.empty(0, np.int64), *pieces])

        return cls(
            bounds=joined([*(shard.starts for shard in made), np.array([manifest.records])]),
            shard=np.repeat(np.arange(len(made)), counts),
            bytes=joined([shard.bytes for shard in made]),
            firsts=np.cumsum([0, *extents]),
            start=joined([shard.start for shard in made]),
            stop=joined([shard.stop for shard in made]),
            chunk=joined([shard.chunk + first for shard, first in zip(made, first_chunk, strict=False)]),
            position=joined([shard.position for shard in made]),
        )

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.shard)

    def save(self, folder: Path) -> None:
        """Writes the table to ``table-*.npy`` in a folder, and their checksums to ``table.json``."""
        entry = Folder.open(folder)
        for name in _COLUMNS:
            values: Integers = getattr(self, name)
            entry.write(_path(folder, name).name, npy_header("<i8", values.shape) + _bytes_of(values))
        entry.write(_CHECKSUMS, dump_document({"version": _VERSION, "crc32c": self._checksums()}))

    @classmethod
    def load(cls, folder: Path, manifest: Manifest) -> Self:
        """Maps the table that was saved in a folder.

        Raises:
            CorruptFile: It is not the table of the dataset with this manifest.
            UnreadableFile: It cannot be read.
        """
        table = cls(**{name: _mapped(_path(folder, name)) for name in _COLUMNS})
        chunks, extents, shards = len(table.shard), len(table.start), len(manifest.shards)
        lengths = {"bounds": chunks + 1, "bytes": chunks, "firsts": shards + 1}
        lengths |= dict.fromkeys(("stop", "chunk", "position"), extents)
        for name, length in lengths.items():
            if len(getattr(table, name)) != length:
                raise _damaged(_path(folder, name), f"it has {len(getattr(table, name))} entries, not {length}")
        if int(table.bounds[-1]) != manifest.records or int(table.firsts[-1]) != extents:
            raise _damaged(_path(folder, "bounds"), "it belongs to another dataset")
        return table

    @classmethod
    def mended(cls, folder: Path, manifest: Manifest, index: Index) -> Self:
        """The same as `load`, after a comparison with the checksums. A damaged table is made anew.

        Several processes may do this at once, since they all write the same bytes.

        Raises:
            CorruptFile: The index is damaged.
            UnreadableFile: The table cannot be read.
            OSError: It cannot be written.
        """
        with suppress(CorruptFile, UnsupportedVersion, OSError):
            table = cls.load(folder, manifest)
            if load_document(folder / _CHECKSUMS, newest=_VERSION).get("crc32c") == table._checksums():
                return table
        cls.of(manifest, index).save(folder)
        return cls.load(folder, manifest)

    def _checksums(self) -> dict[str, str]:
        return {name: f"{crc32c(_bytes_of(getattr(self, name))):08x}" for name in _COLUMNS}

    def find(self, shard: int, offset: int, size: int) -> tuple[int, int]:
        """Finds bytes of a shard that belong to one record.

        Args:
            shard: Number of the shard.
            offset: Where they begin in the shard.
            size: How many they are. No bytes at all are at the beginning of a chunk nearby.

        Returns:
            The chunk, and where they begin in its file.

        Raises:
            CorruptFile: They are in no chunk.
        """
        firsts, start, stop, chunk, position = self._views
        if 0 <= shard < len(firsts) - 1:
            first, last = firsts[shard], firsts[shard + 1]
            found = bisect_right(start, offset, first, last) - 1
            if found >= first and offset + size <= stop[found]:
                return chunk[found], position[found] + offset - start[found]
            if not size and last > first:
                return chunk[max(found, first)], 0
        raise CorruptFile(f"no chunk holds bytes {offset} to {offset + size} of shard {shard}", file=INDEX)

    def find_all(
        self, shards: npt.NDArray[np.integer[Any]], offsets: npt.NDArray[np.integer[Any]]
    ) -> tuple[Integers, Integers]:
        """Finds where records begin, as `find` does one by one for no bytes.

        Args:
            shards: Number of the shard of each record, [records].
            offsets: Where each begins in its shard, int64 [records].

        Returns:
            The chunk of each record, and where it begins in the chunk's file; both int64 [records].

        Raises:
            CorruptFile: One of them is in no chunk.
        """
        if not len(self.start):
            # There are no chunks, which `find` says better than numpy.
            for shard, offset in zip(shards.tolist(), offsets.tolist(), strict=True):
                self.find(shard, offset, 0)
        line = self._line
        place = line.begins.take(shards, mode="clip") + offsets
        found = np.searchsorted(line.starts, place, side="right")
        chunks, positions = line.chunk.take(found), line.shift.take(found) + place
        # As unsigned numbers, offsets below zero are above all lengths.
        inside = offsets.view(np.uint64) <= line.lengths.take(shards, mode="clip")
        inside &= place <= line.stops.take(found)
        if not inside.all():
            # What the index has wrong may have been found in another shard, or nowhere.
            for which in range(len(shards)):
                chunks[which], positions[which] = self.find(int(shards[which]), int(offsets[which]), 0)
        return chunks, positions

    def extents(self, number: int) -> list[Extent]:
        """The extents of a chunk, in the order of its file."""
        first, last = self.firsts[self.shard[number]], self.firsts[self.shard[number] + 1]
        found = first + np.flatnonzero(self.chunk[first:last] == number)
        columns = (self.start[found].tolist(), self.stop[found].tolist(), self.position[found].tolist())
        return [Extent(*values) for values in zip(*columns, strict=True)]

    def records(self, number: int, manifest: Manifest, index: Index) -> Iterator[ChunkRecord]:
        """The records in a chunk's file, without those that are missing.

        Raises:
            CorruptFile: The index is damaged, or differs from the one that the table was made from.
        """
        rows = index.rows_at(np.arange(self.bounds[number], self.bounds[number + 1]))
        index.check_rows(rows)
        extents = np.array(self.extents(number), np.int64).reshape(-1, 3)
        start, stop, position = extents.T
        for field in manifest.schema.stored:
            columns = index.field(field.name)
            columns.check_rows(rows)
            offset, size = columns["offset"][rows], columns["length"][rows]
            there = np.flatnonzero(size > 0)
            rows_there, offset, size = rows[there], offset[there], size[there]
            found = np.searchsorted(start, offset, side="right") - 1
            if (found < 0).any() or (offset + size > stop[found]).any():
                raise CorruptFile(f"chunk {number} does not hold the records that the index names", file=INDEX)
            at = position[found] + offset - start[found]
            checksum = columns["crc32c"][rows_there]
            values = zip(rows_there.tolist(), at.tolist(), size.tolist(), checksum.tolist(), strict=True)
            yield from (ChunkRecord(row, field.name, *rest) for row, *rest in values)

    @cached_property
    def allocated(self) -> Integers:
        """Bytes that the file of each chunk takes on the disk, int64 [chunks]."""
        return -(-self.bytes // BLOCK) * BLOCK

    @cached_property
    def _line(self) -> _Line:
        lengths = np.append(self.stop, 0)[self.firsts[1:] - 1]
        begins = np.cumsum(lengths + 1) - lengths - 1
        shift = np.repeat(begins, np.diff(self.firsts))
        return _Line(
            begins=np.append(begins, _NOWHERE),
            lengths=np.append(lengths, 0).astype(np.uint64),
            starts=self.start + shift,
            stops=np.append(2 * _NOWHERE, self.stop + shift),
            chunk=np.append(0, self.chunk),
            shift=np.append(0, self.position - self.start - shift),
        )

    @cached_property
    def _views(self) -> tuple[Any, ...]:
        # A memoryview yields a Python int in a third of the time that a numpy scalar takes.
        return tuple(getattr(self, name).data for name in ("firsts", "start", "stop", "chunk", "position"))


class _Line(NamedTuple):
    """All shards in a line, so that one search finds records of all of them.

    Between two shards there is one place that belongs to neither, so that the end of the one is not the beginning of
    the other. A shard without extents takes as much of the line as another one. The first two columns end with an entry
    for shards that are not there, which lie before the line. The last three begin with one for what lies before all
    extents.

    Attributes:
        begins: Where each shard begins, int64 [shards + 1].
        lengths: Where its last extent ends in it, uint64 [shards + 1].
        starts: Where each extent begins, int64 [extents].
        stops: Where it ends, int64 [extents + 1].
        chunk: Its chunk, int64 [extents + 1].
        shift: From the line to the file of its chunk, int64 [extents + 1].
    """

    begins: Integers
    lengths: npt.NDArray[np.uint64]
    starts: Integers
    stops: Integers
    chunk: Integers
    shift: Integers


class _Cut(NamedTuple):
    """The chunks of one shard; `starts` are places, and chunks count from the shard's first."""

    starts: Integers
    bytes: Integers
    start: Integers
    stop: Integers
    chunk: Integers
    position: Integers


def _first_places(manifest: Manifest) -> list[int]:
    return list(accumulate((shard.records for shard in manifest.shards[:-1]), initial=0)) if manifest.shards else []


def _cut(manifest: Manifest, index: Index, number: int, first: int) -> _Cut:
    info = manifest.shards[number]
    rows = index.rows_at(np.arange(first, first + info.records))
    index.check_rows(rows)
    if (index["shard"][rows] != number).any():
        raise CorruptFile(f"places {first} to {first + info.records - 1} are not all in {info.name}", file=INDEX)
    offsets, sizes = (np.empty((len(manifest.schema.stored), len(rows)), np.int64) for _ in range(2))
    for which, field in enumerate(manifest.schema.stored):
        columns = index.field(field.name)
        columns.check_rows(rows)
        offsets[which], sizes[which] = columns["offset"][rows], np.maximum(columns["length"][rows], 0)
    # Before anything is added up that may be too large for an int64.
    if ((sizes > 0) & ((offsets < 0) | (offsets > info.bytes - sizes))).any():
        raise CorruptFile(f"the index names bytes outside of {info.name}, which has {info.bytes}", file=INDEX)
    starts = np.array(chunk_starts(space_of(offsets, sizes)), np.int64)
    chunk = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))
    there = (sizes > 0).ravel()
    offset, size = offsets.ravel()[there], sizes.ravel()[there]
    start, stop, chunk = _merged(info.name, offset, size, np.tile(chunk, len(sizes))[there])
    in_chunks = np.lexsort((start, chunk))
    ends = np.cumsum((stop - start)[in_chunks])
    taken = np.bincount(chunk, stop - start, len(starts)).astype(np.int64)
    position = np.empty_like(start)
    position[in_chunks] = ends - (stop - start)[in_chunks] - (np.cumsum(taken) - taken)[chunk[in_chunks]]
    return _Cut(starts + first, taken, start, stop, chunk, position)


def _merged(name: str, offset: Integers, size: Integers, chunk: Integers) -> tuple[Integers, Integers, Integers]:
    """The extents of a shard: start, stop and chunk of each, by start. Neighbours of the same chunk are merged."""
    order = np.argsort(offset, kind="stable")
    start, stop, chunk = offset[order], (offset + size)[order], chunk[order]
    if (start[1:] < stop[:-1]).any():
        raise CorruptFile(f"the index names records of {name} that share bytes", file=INDEX)
    apart = (chunk[1:] != chunk[:-1]) | (start[1:] - stop[:-1] > APART)
    begins = np.flatnonzero(np.append(True, apart)[: len(start)])
    ends = np.append(begins[1:], len(start))[: len(begins)] - 1
    return start[begins], stop[ends], chunk[begins]


def _path(folder: Path, name: str) -> Path:
    return folder / f"table-{name}.npy"


def _mapped(path: Path) -> Integers:
    with reading(path), os.fdopen(open_regular(path, follow=False), "rb") as file:
        header = len(npy_header("<i8", (0,)))
        count, rest = divmod(os.fstat(file.fileno()).st_size - header, 8)
        if rest or count < 0 or file.read(header) != npy_header("<i8", (count,)):
            raise _damaged(path, "its header does not fit its size")
        if not count:
            return np.empty(0, np.int64)
        return np.memmap(file, np.int64, "r", header, (count,)).view(np.ndarray)


def _bytes_of(values: Integers) -> memoryview:
    return memoryview(np.ascontiguousarray(values).view("u1").data) if len(values) else memoryview(b"")


def _damaged(path: Path, how: str) -> CorruptFile:
    return CorruptFile(f"{path} is damaged: {how}. Open the dataset again, which mends it", file=path.name)
