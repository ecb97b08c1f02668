"""Writes one shard of a cache and its index.

Written bytes get to the disk in small parts, so that neither the disk nor an fsync has to deal with a whole shard at
once. If the cache is small enough to stay in memory, new shards stay in the page cache, too, since the next epoch reads
them. If not, they are dropped as soon as they are on the disk: they would only displace what is read earlier. Decision
0017 has the figures.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

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
from packtrain._core.memory import available_memory
from packtrain._core.opening import closing_descriptor, open_regular
from packtrain._core.options import FORMATS
from packtrain._formats.writing import NewSample, shard_writer
from packtrain._packer.columns import RowWriter
from packtrain._storage.staging.kernel import drop_from_memory, start_writeback

_WRITE_BEHIND: Final = 8 << 20
"""Bytes after which a part of a shard is sent to the disk."""
_SHARE: Final = 0.5
"""Part of the memory that the shards of a cache may take for good."""


class FinishedShard(NamedTuple):
    """A shard that is on the medium under its name, and in no generation yet.

    Attributes:
        number: Its number.
        records: Number of its samples.
        bytes: Size of the container.
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
        info: Content of cache.json.
        number: Number of the shard.
        first: Number of its first sample.
        keep: True if the shard may stay in the page cache once it is on the disk.

    Attributes:
        bytes: Size of the records so far.
        whole: False while a sample is being written, and for good if that failed.

    Raises:
        OSError: It cannot be made; nothing is left of it.
    """

    def __init__(self, root: Path, info: CacheInfo, number: int, first: int, *, keep: bool = True) -> None:
        self._root = root
        self._info = info
        self._number = number
        self._first = first
        self._keep = keep
        self._behind = 0
        self._final = shard_path(root, FORMATS[info.format].suffix, number)
        self._path = root / TEMPORARY / self._final.name
        self._path.unlink(missing_ok=True)
        try:
            writer = shard_writer(info.format)(self._path, info.schema, checksum=False)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        self._rows: Final = RowWriter(writer, info.schema)
        self.bytes = 0
        self.whole = True

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._rows)

    def add(self, sample: NewSample) -> None:
        """Append a sample under its number."""
        self.whole = False
        self._rows.add(sample._replace(line=self._first + len(self._rows)))
        self.bytes += sample.size
        self.whole = True
        if self.bytes - self._behind >= _WRITE_BEHIND:
            write_behind(self._path, self._behind, self.bytes)
            self._behind = self.bytes

    def finish(self) -> FinishedShard:
        """Complete the shard and its index, durably, under their final names."""
        self.whole = False
        written, columns = self._rows.finish()
        self._rows.close()
        table = np.zeros(len(self._rows), index_dtype(self._info.schema))
        for name, values in columns.arrays.items():
            table["number" if name == "line" else name] = values
        data = index_bytes(table)
        fsync_file(self._path)
        if not self._keep:
            drop_from_memory(self._path)
        size = self._path.stat().st_size
        write_file(index_path(self._root, self._number), [data])
        for suffix, content in written.sidecars.items():
            write_file(self._final.with_suffix(suffix), [content])
        publish(self._path, self._final)
        return FinishedShard(self._number, len(self._rows), size, crc32c(data))

    def abandon(self) -> None:
        """Give the shard up, and remove all of it: no generation has it."""
        # What the writer still wants to write at its end may fail as well.
        with suppress(OSError):
            self._rows.close()
        for path in (self._path, *shard_files(self._root, self._info, self._number)):
            path.unlink(missing_ok=True)


def shard_files(root: Path, info: CacheInfo, number: int) -> tuple[Path, ...]:
    """Return the paths of a shard: the container, its index, and the sidecar that a tar shard has."""
    final = shard_path(root, FORMATS[info.format].suffix, number)
    return final, index_path(root, number), final.with_suffix(".idx")


def allocated(path: Path) -> int:
    """Return the bytes that a file takes on its file system; 0 if there is no file."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


# write_behind and drop_from_memory are advice to the kernel. A shard is as good without it, so failures are ignored.


def stays_in_memory(budget: int, available: float | None = None) -> bool:
    """Check whether a cache of so many bytes stays in the page cache next to everything else.

    Args:
        budget: The most bytes that the cache takes.
        available: Bytes of memory that this process can use; None: what the machine and its cgroup say.
    """
    return budget <= _SHARE * (available_memory() if available is None else available)


def write_behind(path: Path, start: int, end: int) -> None:
    """Start to write a part of a file to the disk, without waiting for it. A missing file is ignored."""
    with suppress(OSError), closing_descriptor(open_regular(path)) as descriptor:
        start_writeback(descriptor, start, end - start)
