"""Fetches a chunk: reads its ranges, and checks each of its records."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from crc32c import crc32c

from packtrain._core.errors import CorruptRecord
from packtrain._core.index import Index
from packtrain._core.manifest import Manifest

from ..location import shard_place
from ..remote.objects import Objects
from ..remote.urls import Url
from .chunks import ChunkTable, Extent, Piece

_APART: Final = 128 << 10
"""Extents that are not farther apart than this are read as one range: a request costs more than these bytes."""
_KEPT: Final = 24 << 20
"""Chunks that are larger are fetched to memory of their own."""
_PART: Final = 16 << 20
"""The longest range."""


class Range(NamedTuple):
    """Bytes of a shard that are read with one request, and the extents, or parts of one, that are in them."""

    start: int
    stop: int
    extents: tuple[Extent, ...]


class Wrong(NamedTuple):
    """A record that is not what was packed, and the checksum of what it is."""

    piece: Piece
    found: int


class Fetched(NamedTuple):
    """The content of a chunk's file. It may be in memory of the thread that fetched it, for its next chunk to take."""

    data: memoryview
    wrong: tuple[Wrong, ...]


class Source:
    """A remote dataset whose chunks are fetched.

    Args:
        url: Address of its folder.
        manifest: Its manifest.
        index: Its index.
        table: Its chunks.
        objects: The object store.
    """

    def __init__(self, url: Url, manifest: Manifest, index: Index, table: ChunkTable, objects: Objects) -> None:
        self._url = url
        self._manifest = manifest
        self._index = index
        self._table = table
        self._objects = objects
        self._local = threading.local()

    def fetch(self, chunk: int) -> Fetched:
        """Fetches a chunk. What does not match the index is fetched once more.

        If the same few records are wrong in the same way then, that is how they lie in the store, and the others are
        sound.

        Raises:
            RemoteError: The object store does not give it.
            CorruptRecord: It gives something else, twice, and not the same; or most records are wrong.
            CorruptFile: The index is damaged.
        """
        shard = int(self._table.shard[chunk])
        url = shard_place(self._url, self._manifest, shard)
        extents = self._table.extents(chunk)
        pieces = list(self._table.pieces(chunk, self._manifest, self._index))
        wrong: tuple[Wrong, ...] = ()
        for _ in range(2):
            data = self._read(url, extents)
            before, wrong = wrong, _wrong(pieces, data)
            if not wrong or (wrong == before and 2 * len(wrong) < len(pieces)):
                return Fetched(data, wrong)
        raise self.corrupt(chunk, wrong[0])

    def _buffer(self, size: int) -> memoryview:
        """Memory of this thread, whose content is old. Fresh pages for each chunk would cost more than its copy."""
        if size > _KEPT:
            return memoryview(bytearray(size))
        kept: memoryview | None = getattr(self._local, "buffer", None)
        if kept is None or len(kept) < size:
            kept = self._local.buffer = memoryview(bytearray(size))
        return kept[:size]

    def wrong_in(self, chunk: int, data: memoryview) -> tuple[Wrong, ...]:
        """The records in the content of a chunk's file that are not what was packed."""
        return _wrong(self._table.pieces(chunk, self._manifest, self._index), data)

    def _read(self, url: Url, extents: Sequence[Extent]) -> memoryview:
        if len(extents) == 1 and extents[0].stop - extents[0].start <= _PART:
            # Most chunks: their bytes are looked at and written where they arrive.
            (start, stop, _) = extents[0]
            return self._objects.read_range(url, start, stop - start)
        buffer = self._buffer(sum(extent.stop - extent.start for extent in extents))
        for each in ranges(extents):
            self._read_part(url, each, buffer)
        return buffer

    def _read_part(self, url: Url, part: Range, buffer: memoryview) -> None:
        if len(part.extents) == 1:
            (only,) = part.extents
            self._objects.read_into(url, part.start, buffer[only.position : only.position + only.stop - only.start])
            return
        between = memoryview(bytearray(part.stop - part.start))
        self._objects.read_into(url, part.start, between)
        for start, stop, position in part.extents:
            buffer[position : position + stop - start] = between[start - part.start : stop - part.start]

    def corrupt(self, chunk: int, wrong: Wrong) -> CorruptRecord:
        """The error for a record that arrived damaged twice."""
        url = shard_place(self._url, self._manifest, int(self._table.shard[chunk]))
        piece, found = wrong
        line, path = int(self._index["line"][piece.row]), self._index.text("path", piece.row)
        field = "" if piece.field == "image" else f"{piece.field} of "
        return CorruptRecord(
            f"{url}: {field}row {piece.row} (line {line}, {path!r}), in chunk {chunk}, arrived damaged twice: crc32c "
            f"is {found:08x}, {piece.crc32c:08x} was written. Either the object was changed, or the store returns "
            f"wrong data: `packtrain verify {self._url}` lists all damage",
            file=self._manifest.shards[int(self._table.shard[chunk])].name,
            row=piece.row,
            line=line,
        )


def ranges(extents: Sequence[Extent]) -> Iterator[Range]:
    """The ranges to read for some extents of a chunk, which are in the order in which they lie in the shard."""
    together: list[Extent] = []
    for extent in chain.from_iterable(map(_parts, extents)):
        if together and (extent.start - together[-1].stop > _APART or extent.stop - together[0].start > _PART):
            yield Range(together[0].start, together[-1].stop, tuple(together))
            together = []
        together.append(extent)
    if together:
        yield Range(together[0].start, together[-1].stop, tuple(together))


def _parts(extent: Extent) -> Iterator[Extent]:
    for start in range(extent.start, extent.stop, _PART):
        yield Extent(start, min(extent.stop, start + _PART), extent.position + start - extent.start)


def _wrong(pieces: Iterable[Piece], buffer: memoryview) -> tuple[Wrong, ...]:
    found = ((piece, crc32c(buffer[piece.position : piece.position + piece.size])) for piece in pieces)
    return tuple(Wrong(piece, checksum) for piece, checksum in found if checksum != piece.crc32c)
