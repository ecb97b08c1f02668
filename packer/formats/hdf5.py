"""Writes HDF5 shards, as `packtrain.readers.formats.hdf5` specifies them.

A contiguous dataset needs its size before its first byte is written, and the size is known only after the last record.
So records are streamed into a plain file; then libhdf5 writes a skeleton, a sparse file whose `images` has its place
but is never filled, and everything of it outside `images` is copied around the records. Where `images` begins is asked
of libhdf5 beforehand: with everything aligned, that does not depend on its size. No library call ever writes much, so
that a full disk is met in our own writes (libhdf5 can crash when it meets one while closing a file).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from packtrain.core.files import write_all
from packtrain.readers.formats.hdf5 import ALIGNMENT

from . import Finished, Record, ShardLayout

_FILE_OPTIONS: Final = {"libver": "earliest", "alignment_threshold": 1, "alignment_interval": ALIGNMENT}


class Writer:
    """Streams records into what becomes the `images` of an HDF5 file."""

    raw_as_npy: Final = False

    def __init__(self, path: Path, layout: ShardLayout) -> None:
        self._path = path
        self._layout = layout
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._start = _data_start()
        os.lseek(self._descriptor, self._start, os.SEEK_SET)
        self._offsets = [0]
        self._lines: list[int] = []
        self._crc32c: list[int] = []
        self._shapes: list[tuple[int, int, int]] = []
        self._labels: list[Any] = []

    def add(self, record: Record) -> None:
        """Appends the record's bytes."""
        assert self._descriptor is not None, "the writer is closed"
        write_all(self._descriptor, [record.payload])
        self._offsets.append(self._offsets[-1] + len(record.payload))
        self._lines.append(record.line)
        self._crc32c.append(record.crc32c)
        self._shapes.append(record.shape)
        self._labels.append(record.label)

    def finish(self) -> Finished:
        """Puts libhdf5's structures around the records."""
        assert self._descriptor is not None, "the writer is closed"
        # The name starts with that of the shard's temporary file, so that whoever removes one removes the other.
        skeleton = self._path.with_name(self._path.name + "-skeleton")
        try:
            self._write_skeleton(skeleton)
            _copy_around(skeleton, self._descriptor, self._start, self._offsets[-1])
        finally:
            skeleton.unlink(missing_ok=True)
        self.close()
        return Finished([self._start + offset for offset in self._offsets[:-1]])

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write_skeleton(self, path: Path) -> None:
        count, labels = len(self._lines), self._layout.labels
        shape = (self._offsets[-1],) if self._layout.fixed_shape is None else (count, *self._layout.fixed_shape)
        with h5py.File(path, "w-", locking=False, **_FILE_OPTIONS) as file:
            start = _allocate(file, shape)
            if start not in (self._start, None):
                raise RuntimeError(
                    f"libhdf5 {h5py.version.hdf5_version} placed the data at {start}, not at {self._start}"
                )
            file["lines"] = np.array(self._lines, "<i8")
            file["crc32c"] = np.array(self._crc32c, "<u4")
            if labels.kind != "none":
                file["labels"] = np.array(self._labels, labels.dtype).reshape(labels.shape(count))
            if self._layout.fixed_shape is None:
                file["offsets"] = np.array(self._offsets, "<i8")
                if self._layout.raw:
                    file["shapes"] = np.array(self._shapes, "<i4").reshape(count, 3)


def _data_start() -> int:
    with h5py.File("probe", "w", driver="core", backing_store=False, **_FILE_OPTIONS) as file:
        start = _allocate(file, (1,))
        assert start is not None, "libhdf5 gives every early allocated dataset its place at once"
        return start


def _allocate(file: Any, shape: tuple[int, ...]) -> int | None:
    """Creates `images`, contiguous, with its place in the file but never written. Returns that place."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    dataset = h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, h5py.h5s.create_simple(shape), creation)
    offset: int | None = dataset.get_offset()
    return offset


def _copy_around(source: Path, target: int, start: int, size: int) -> None:
    """Copies all of `source` to `target` but the `size` bytes from `start` on."""
    with source.open("rb", buffering=0) as file:
        os.lseek(target, 0, os.SEEK_SET)
        write_all(target, [file.read(start)])
        file.seek(start + size)
        os.lseek(target, start + size, os.SEEK_SET)
        write_all(target, [file.read()])
