"""Writes HDF5 shards, as `packtrain._readers.formats.hdf5` specifies them.

A contiguous dataset needs its size before its first byte is written, but the size is known only after the last record.
So records are streamed into a plain file. Then libhdf5 writes an HDF5 file in memory, in which space for `images` is
allocated but never filled, and everything libhdf5 wrote is copied into the plain file around the records. The offset of
`images` is asked of libhdf5 beforehand; with everything aligned, it does not depend on the size of `images`. libhdf5
never writes to the disk itself, because it crashes if the disk is full while it closes a file.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from packtrain._core.files import write_all
from packtrain._readers.formats.hdf5 import ALIGNMENT

from . import NewRecord, RecordSpec, WrittenShard

_FILE_OPTIONS: Final = {"libver": "earliest", "alignment_threshold": 1, "alignment_interval": ALIGNMENT}


class Writer:
    """Streams records into what becomes the dataset `images` of an HDF5 file."""

    raw_as_npy: Final = False

    def __init__(self, path: Path, spec: RecordSpec) -> None:
        self._path = path
        self._spec = spec
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._start = _data_start()
        os.lseek(self._descriptor, self._start, os.SEEK_SET)
        self._offsets = [0]
        self._lines: list[int] = []
        self._crc32c: list[int] = []
        self._shapes: list[tuple[int, int, int]] = []
        self._labels: list[Any] = []

    def add(self, record: NewRecord) -> None:
        """Appends the record's bytes."""
        assert self._descriptor is not None, "the writer is closed"
        write_all(self._descriptor, [record.payload])
        self._offsets.append(self._offsets[-1] + len(record.payload))
        self._lines.append(record.line)
        self._crc32c.append(record.crc32c)
        self._shapes.append(record.shape)
        self._labels.append(record.label)

    def finish(self) -> WrittenShard:
        """Writes libhdf5's structures around the records."""
        assert self._descriptor is not None, "the writer is closed"
        writes = _Writes()
        self._describe_records(writes)
        for offset, data in writes.pieces:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            write_all(self._descriptor, [data])
        os.ftruncate(self._descriptor, writes.size)
        self.close()
        return WrittenShard([self._start + offset for offset in self._offsets[:-1]])

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _describe_records(self, target: io.RawIOBase) -> None:
        count, labels = len(self._lines), self._spec.labels
        shape = (self._offsets[-1],) if self._spec.fixed_shape is None else (count, *self._spec.fixed_shape)
        with h5py.File(target, "w", **_FILE_OPTIONS) as file:
            start = _allocate(file, shape)
            if start not in (self._start, None):
                raise RuntimeError(
                    f"libhdf5 {h5py.version.hdf5_version} placed the data at {start}, not at {self._start}"
                )
            file["lines"] = np.array(self._lines, "<i8")
            file["crc32c"] = np.array(self._crc32c, "<u4")
            if labels.kind != "none":
                file["labels"] = np.array(self._labels, labels.dtype).reshape(labels.shape(count))
            if self._spec.fixed_shape is None:
                file["offsets"] = np.array(self._offsets, "<i8")
                if self._spec.raw:
                    file["shapes"] = np.array(self._shapes, "<i4").reshape(count, 3)


class _Writes(io.RawIOBase):
    """A file in memory, kept as a list of the writes to it.

    Attributes:
        pieces: Offset and bytes of each write, in the order of the writes.
        size: Size of the file in bytes.
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.size = 0
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to an offset from the start of the file, or from its end with SEEK_END."""
        self._position = offset + (self.size if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        """Returns the current offset."""
        return self._position

    def write(self, data: Any) -> int:
        """Records a write."""
        self.pieces.append((self._position, bytes(data)))
        self._position += len(data)
        self.size = max(self.size, self._position)
        return len(data)

    def readinto(self, buffer: Any) -> int:
        """Reads what was written, and zeros where nothing was."""
        content, start = bytearray(min(len(buffer), max(0, self.size - self._position))), self._position
        for offset, data in self.pieces:
            first, last = max(offset, start), min(offset + len(data), start + len(content))
            if first < last:
                content[first - start : last - start] = data[first - offset : last - offset]
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        """Sets the size of the file."""
        self.size = self._position if size is None else size
        return self.size


def _data_start() -> int:
    with h5py.File("probe", "w", driver="core", backing_store=False, **_FILE_OPTIONS) as file:
        start = _allocate(file, (1,))
        assert start is not None, "libhdf5 places a dataset with early allocation at once"
        return start


def _allocate(file: Any, shape: tuple[int, ...]) -> int | None:
    """Creates the contiguous dataset `images`, allocated but never filled. Returns its offset in the file."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)  # otherwise the bytes would depend on the time
    dataset = h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, h5py.h5s.create_simple(shape), creation)
    offset: int | None = dataset.get_offset()
    return offset
