"""Writes one shard of a cache and its index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from packtrain._core.files import fsync_file, publish, write_file
from packtrain._core.generations import (
    TEMPORARY,
    CacheInfo,
    index_bytes,
    index_dtype,
    index_path,
    shard_path,
)
from packtrain._packer.formats import shard_writer
from packtrain._readers.formats import container

from .encoding import EncodedSample


class FinishedShard(NamedTuple):
    """A shard that is on the medium under its name, and in no generation yet.

    Attributes:
        number: Its number.
        records: Number of its samples.
        bytes: Its size.
        index_crc32c: Checksum of its index file.
    """

    number: int
    records: int
    bytes: int
    index_crc32c: int


class GrowingShard:
    """A shard that is being written.

    Args:
        root: The cache's folder.
        info: What the cache holds.
        number: Number of the shard.
        first: Number of its first sample.
    """

    def __init__(self, root: Path, info: CacheInfo, number: int, first: int) -> None:
        self._root = root
        self._info = info
        self._number = number
        self._first = first
        self._schema: Final = info.schema
        self._final = shard_path(root, container(info.format).SUFFIX, number)
        self._path = root / TEMPORARY / self._final.name
        self._path.unlink(missing_ok=True)
        self._writer = shard_writer(info.format)(self._path, self._schema)
        self._rows: list[tuple[Any, list[tuple[int, int]]]] = []
        self.bytes = 0

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._rows)

    def add(self, sample: EncodedSample) -> None:
        """Appends a sample."""
        self._writer.add(sample.numbered(self._first + len(self._rows)))
        places = [(-1, 0) if record is None else (len(record.payload), record.crc32c) for record in sample.records]
        self._rows.append((sample.label, places))
        self.bytes += sample.bytes

    def finish(self) -> FinishedShard:
        """Completes the shard and its index, durably, under their final names."""
        written = self._writer.finish()
        self._writer.close()
        table = self._table(written.offsets)
        fsync_file(self._path)
        size = self._path.stat().st_size
        data = index_bytes(table)
        write_file(index_path(self._root, self._number), [data])
        for suffix, content in written.sidecars.items():
            write_file(self._final.with_suffix(suffix), [content])
        publish(self._path, self._final)
        return FinishedShard(self._number, len(self._rows), size, crc32c(data))

    def abandon(self) -> None:
        """Gives the shard up."""
        self._writer.close()
        self._path.unlink(missing_ok=True)

    def _table(self, offsets: list[tuple[int, ...]]) -> Any:
        table = np.zeros(len(self._rows), index_dtype(self._schema))
        table["number"] = np.arange(self._first, self._first + len(self._rows))
        if self._schema.labels.kind != "none":
            table["label"] = [label for label, _ in self._rows]
        for at, field in enumerate(self._schema.fields):
            table[field.prefix + "offset"] = [row[at] for row in offsets]
            table[field.prefix + "length"] = [places[at][0] for _, places in self._rows]
            table[field.prefix + "crc32c"] = [places[at][1] for _, places in self._rows]
        return table


def remove_shard(root: Path, info: CacheInfo, number: int) -> None:
    """Deletes a shard, its index and its sidecars."""
    final = shard_path(root, container(info.format).SUFFIX, number)
    for path in final.parent.glob(f"{final.stem}.*"):
        os.unlink(path)
