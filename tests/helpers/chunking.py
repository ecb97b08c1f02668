"""A cache of chunks that lies in the memory of the test: chunks are cut from a dataset on this disk when asked for."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import numpy as np

from packtrain._core.errors import RemoteError
from packtrain._core.index import Index
from packtrain._core.manifest import Manifest
from packtrain._readers.dataset.sound import Check
from packtrain._readers.dataset.store import RecordStore
from packtrain._storage.streams.chunks import ChunkTable
from packtrain._storage.streams.client import ChunkCache


class CutChunks:
    """The chunks of a dataset, of which a few are kept.

    Args:
        dataset: Folder of the dataset.
        folder: Where files go: the dataset without its shards, and chunks. It must not exist.
        most: Number of chunks that are kept; whoever comes first goes first.

    Attributes:
        asked: Chunks that were asked for without waiting.
        fetched: Chunks that were cut, in order.
        broken: Chunks that cannot be fetched.
        mends: True to cut a damaged chunk again.
    """

    url = "s3://bucket/set"

    def __init__(self, dataset: Path, folder: Path, most: int = 1 << 30) -> None:
        self._dataset = dataset
        self.folder = folder
        self._most = most
        (folder / "chunks").mkdir(parents=True)
        self._manifest = Manifest.load(dataset)
        shards = {shard.name for shard in self._manifest.shards}
        shutil.copytree(dataset, folder / "dataset", ignore=lambda _, names: shards & set(names))
        self.table = ChunkTable.of(self._manifest, Index.of(dataset, self._manifest))
        self.present = memoryview(bytearray(len(self.table)))
        self.asked = list[int]()
        self.fetched = list[int]()
        self.broken = set[int]()
        self.mends = True

    def store(self, io: str = "auto", *, check: Check = True) -> RecordStore:
        """The dataset, read from these chunks."""
        return RecordStore(self.folder / "dataset", io=io, check=check, chunks=cast(ChunkCache, self))

    def file(self, chunk: int) -> Path:
        """The file of a chunk, whether or not it is there."""
        return self.folder / "chunks" / f"{chunk:08d}"

    def evict(self, chunk: int) -> None:
        """Removes a chunk."""
        self.present[chunk] = 0
        self.file(chunk).unlink()

    def open(self, chunk: int, meanwhile: Callable[[], None] = lambda: None) -> int:
        if chunk in self.broken:
            raise RemoteError(f"chunk {chunk} cannot be fetched")
        if not self.present[chunk]:
            there = np.flatnonzero(np.frombuffer(self.present, np.uint8)).tolist()
            oldest = sorted(there, key=lambda each: os.stat(self.file(each)).st_mtime_ns)
            for old in oldest[: max(0, len(there) + 1 - self._most)]:
                self.evict(old)
            meanwhile()
            shard = self._manifest.shard_path(self._dataset, int(self.table.shard[chunk])).read_bytes()
            self.file(chunk).write_bytes(b"".join(shard[start:stop] for start, stop, _ in self.table.extents(chunk)))
            self.present[chunk] = 1
            self.fetched.append(chunk)
        descriptor = os.open(self.file(chunk), os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def ahead(self, chunks: Iterable[int]) -> None:
        self.asked += chunks

    def damaged(self, chunk: int) -> None:
        if self.mends:
            self.evict(chunk)
