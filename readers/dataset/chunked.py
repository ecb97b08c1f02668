"""Shards that lie in an object store, read from the files of a bounded cache. Does not import torch.

A record is found in its chunk, whose file is mapped, or read by system calls. If the chunk is not there, whoever reads
waits until the cache's fetching process has brought it. The space of a chunk that the cache gives up is free only when
nobody has its file open any more. So each process looks now and then which of its files have gone.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from packtrain._core.errors import CorruptFile
from packtrain._core.manifest import INDEX, Manifest
from packtrain._core.mounts import is_network
from packtrain._core.overriding import override

from .shards import Integers, Io, ShardFile, Shards

if TYPE_CHECKING:
    from packtrain._storage.streams.chunks import ChunkTable
    from packtrain._storage.streams.client import ChunkCache

# Open files that are looked at whenever another one is opened, and by each batch that only copies.
_LOOKS: Final = 64
_FEW_LOOKS: Final = 2


class ChunkedShards(Shards):
    """The shards of a dataset in the files of a cache.

    Args:
        chunks: The files.
        folder: Folder of the dataset, which has everything but its shards.
        manifest: Its manifest.
        io: ``"mmap"``, ``"pread"`` or ``"auto"``, see `RecordStore`.
    """

    def __init__(self, chunks: ChunkCache, folder: Path, manifest: Manifest, io: str) -> None:
        super().__init__("pread" if io == "pread" or (io == "auto" and is_network(folder)) else "mmap")
        self._chunks = chunks
        self._folder = folder
        self._manifest = manifest
        self._files: Final = _Files(chunks, self.io)

    @override
    def open(self, number: int) -> ShardFile:
        shards = self._manifest.shards
        if number >= len(shards):
            raise CorruptFile(f"{self._chunks.url}: the index names shard {number} of {len(shards)}", file=INDEX)
        shard = self.opened[number] = _ChunkedShard(number, shards[number].bytes, self._chunks.table, self._files)
        return shard

    @property
    @override
    def waited_ns(self) -> int:
        return self._files.waited

    @override
    def files(self, numbers: Integers, offsets: Integers) -> tuple[Integers, Integers] | None:
        if self.io != "mmap":
            return None
        self._files.drop_gone(_FEW_LOOKS)
        chunks, positions = self._chunks.table.find_all(numbers, offsets)
        opened, present = self._files.opened, self._chunks.present
        if not all(number in opened or present[number] for number in set(chunks.tolist())):
            # Whoever waits for one of them must not keep the others.
            return None
        return chunks, positions

    @override
    def view(self, number: int) -> memoryview:
        return self._files.view(number)

    @override
    def expect(self, numbers: Integers, offsets: Integers) -> None:
        self._files.drop_gone(_LOOKS)
        chunks = np.unique(self._chunks.table.find_all(numbers, offsets)[0])
        missing = chunks[np.frombuffer(self._chunks.present, np.uint8)[chunks] == 0]
        if len(missing):
            self._chunks.ahead(missing.tolist())

    @override
    def replace_damaged(self, number: int, offset: int, size: int) -> bool:
        chunk, _ = self._chunks.table.find(number, offset, size)
        self._files.opened.pop(chunk, None)
        self._chunks.damaged(chunk)
        return True

    @override
    def close_removed(self) -> None:
        self._files.drop_gone(len(self._files.opened))

    @override
    def close(self) -> None:
        super().close()
        self._files.close()


class _Files(Shards):
    """The files of chunks that are open, by number of the chunk.

    Attributes:
        waited: Nanoseconds that were spent on opening files that were not there.
    """

    def __init__(self, chunks: ChunkCache, io: Io) -> None:
        super().__init__(io)
        self._chunks = chunks
        self.waited = 0

    @override
    def open(self, number: int) -> ShardFile:
        if self._chunks.present[number]:
            self.drop_gone(_LOOKS)
            before = 0
        else:
            # Room is made for what this process waits for, and others wait, too: it must not keep what goes meanwhile.
            self.opened.clear()
            before = time.monotonic_ns()
        try:
            return self._opened(
                number,
                partial(self._chunks.open, number, meanwhile=self._close_removed),
                int(self._chunks.table.bytes[number]),
            )
        finally:
            if before:
                self.waited += time.monotonic_ns() - before

    def _close_removed(self) -> None:
        self.drop_gone(len(self.opened))

    def drop_gone(self, looks: int) -> None:
        """Closes files that the cache does not have any more, among the next `looks` that are looked at."""
        opened, present = self.opened, self._chunks.present
        for number in list(islice(opened, looks)):
            # Another thread may close it, too.
            file = opened.pop(number, None)
            if file is not None and present[number]:
                opened[number] = file


class _ChunkedShard:
    """A shard whose bytes lie in chunks.

    Args:
        number: Its number.
        size: Its size in bytes.
        table: Where its bytes lie in chunks.
        files: The files of chunks.
    """

    modified_ns: int | None = None

    def __init__(self, number: int, size: int, table: ChunkTable, files: _Files) -> None:
        self.bytes = size
        self._number = number
        self._find = table.find
        self._files = files
        self._opened = files.opened

    def read(self, offset: int, size: int) -> memoryview:
        """The bytes [offset, offset + size) of one record, waiting for their chunk if it is not there.

        Raises:
            CorruptFile: They are in no chunk.
            RemoteError: The chunk cannot be fetched.
            StagingError: It cannot be kept.
            WrongShard: The chunk's file has another size.
            OSError: It cannot be read.
        """
        chunk, position = self._find(self._number, offset, size)
        file = self._opened.get(chunk) or self._files.open(chunk)
        return file.read(position, size)

    def will_need(self, offset: int, size: int) -> None:
        """Asks the system to read these bytes into memory, if their chunk is open."""
        chunk, position = self._find(self._number, offset, size)
        file = self._opened.get(chunk)
        if file is not None:
            file.will_need(position, size)
