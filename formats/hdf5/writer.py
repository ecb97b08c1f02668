"""Writes HDF5 shards, as `packtrain._formats.hdf5` specifies them.

A contiguous dataset needs its size before its first byte is written, but the size is known only after the last record.
So images are streamed into a plain file, and the records of each other field into a file of its own that has no name.
Then libhdf5 writes an HDF5 file in memory, in which space for the records is allocated but never filled, and everything
libhdf5 wrote is copied into the plain file around the images, and the other records behind them. The offset of `images`
is asked of libhdf5 beforehand; with everything aligned, it does not depend on the size of `images`. libhdf5 never
writes to the disk itself, because it crashes if the disk is full while it closes a file.
"""

from __future__ import annotations

import errno
import io
import os
from array import array
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from packtrain._core.files import MiB, write_all
from packtrain._core.schema import Field, Schema

from ..writing import NewRecord, NewSample, ShardSpace, WrittenShard
from .reader import ALIGNMENT, layout, place

_FILE_OPTIONS: Final = {"libver": "earliest", "alignment_threshold": 1, "alignment_interval": ALIGNMENT}
_PIECE_BYTES: Final = MiB
_MOST_SENT: Final = 1024 * MiB
_LARGE_BYTES: Final = MiB // 16
"""From here on, copying a record costs more than a system call."""


def space(schema: Schema) -> ShardSpace:
    """Returns the bytes that shards take."""
    fields, others = len(schema.fields), len(schema.others)
    # The number, and for each field a checksum, an end, a shape and whether it is there.
    sample = 8 + 8 * schema.labels.fields + fields * (4 + 8 + 12 + 1)
    # Each of libhdf5's structures is aligned. All fields but the image lie in files without a name, too, until they are
    # copied into the shard.
    return ShardSpace(ALIGNMENT * (32 + 32 * fields), sample, int, others, 2 if others else 1)


class Writer:
    """Streams images into what becomes the dataset `images` of an HDF5 file, and puts the other fields behind them."""

    def __init__(self, path: Path, schema: Schema, *, checksum: bool = True) -> None:
        self._labels_spec = schema.labels
        self._lines = array("q")
        self._labels: list[Any] = []
        self._fields: list[_Records] = []
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            self._image = None
            if schema.image is not None:
                self._image = _Records(schema.image, _Stream(self._descriptor, _data_start()))
                self._fields.append(self._image)
            for field in schema.others:
                self._fields.append(_Records(field, _Spool(path)))
        except BaseException:
            self.close()
            raise

    def add(self, sample: NewSample) -> None:
        """Appends the sample's records, each to those of its field."""
        for field, record in zip(self._fields, sample.records, strict=True):
            field.add(record)
        self._lines.append(sample.line)
        self._labels.append(sample.label)

    def finish(self) -> WrittenShard:
        """Writes libhdf5's structures around the images, and the other fields behind them."""
        assert self._descriptor is not None, "the writer is closed"
        writes = _Writes()
        starts = self._describe(writes)
        for offset, data in writes.pieces:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            write_all(self._descriptor, [data])
        os.ftruncate(self._descriptor, writes.size)
        for field, start in zip(self._fields, starts, strict=True):
            field.sink.copy(self._descriptor, start)
        self.close()
        offsets = [field.offsets(start) for field, start in zip(self._fields, starts, strict=True)]
        return WrittenShard(list(zip(*offsets, strict=True)))

    def close(self) -> None:
        """Closes the file and those of the fields."""
        for field in self._fields:
            field.sink.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _describe(self, target: io.RawIOBase) -> list[int]:
        """Writes an HDF5 file without the records. Returns where those of each field begin."""
        count, labels = len(self._lines), self._labels_spec
        with h5py.File(target, "w", **_FILE_OPTIONS) as file:
            image, starts = self._image, []
            if image is not None:
                starts.append(image.allocate(file))
            file["lines"] = np.array(self._lines, "<i8")
            if image is not None:
                file["crc32c"] = np.array(image.crc32c, "<u4")
            if labels.kind != "none":
                file["labels"] = np.array(self._labels, labels.dtype).reshape(labels.shape(count))
            if image is not None:
                image.describe(file)
            for field in self._fields[len(starts) :]:
                group = file.create_group(field.group)
                starts.append(field.allocate(group))
                group["crc32c"] = np.array(field.crc32c, "<u4")
                field.describe(group)
        return starts


class _Stream:
    """Writes to the shard itself, from an offset on."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor = descriptor
        self._start = start
        os.lseek(descriptor, start, os.SEEK_SET)

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        write_all(self._descriptor, [data])

    def copy(self, descriptor: int, start: int) -> None:
        """Makes sure that the place is that which was foreseen."""
        if start not in (self._start, 0):
            raise RuntimeError(f"libhdf5 {h5py.version.hdf5_version} placed the data at {start}, not at {self._start}")

    def close(self) -> None:
        """The file is the writer's."""


class _Spool:
    """Writes to a file without a name, beside the shard. What is left of it after a crash is what the shard leaves."""

    def __init__(self, path: Path) -> None:
        name = path.with_name(f"{path.name}.field")
        self._descriptor: int | None = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(name)
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        if len(data) < _LARGE_BYTES:
            self._waiting += data
            data = b""
        if data or len(self._waiting) >= _PIECE_BYTES:
            self._flush(data)

    def copy(self, descriptor: int, start: int) -> None:
        """Copies everything to offset `start` of another file."""
        assert self._descriptor is not None, "the writer is closed"
        self._flush()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.lseek(descriptor, start, os.SEEK_SET)
        try:
            while os.sendfile(descriptor, self._descriptor, None, _MOST_SENT):
                pass
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            # Not all file systems can; both files are where the last call has left them.
            while piece := os.read(self._descriptor, _PIECE_BYTES):
                write_all(descriptor, [piece])

    def close(self) -> None:
        """Closes the file, which ends it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _flush(self, data: bytes | memoryview = b"") -> None:
        assert self._descriptor is not None, "the writer is closed"
        write_all(self._descriptor, [bytes(self._waiting), data])
        self._waiting.clear()


class _Records:
    """The records of a field: their bytes in a sink, and what is to be known about each.

    Attributes:
        group: Group of the field in the file.
        sink: Where the bytes are.
        crc32c: Checksum of each record, 0 where it is missing.
    """

    def __init__(self, field: Field, sink: _Stream | _Spool) -> None:
        self.group, self._name = place(field)
        self.sink = sink
        self.crc32c = array("I")
        self._field = field
        self._layout = layout(field)
        self._ends = array("q", [0])
        self._present = bytearray()
        self._shapes = array("i")
        self._no_shape = (0,) * self._layout.sizes
        self._array = field.kind == "array"

    def add(self, record: NewRecord | None) -> None:
        """Appends a record, or notes that it is missing."""
        if record is None:
            entries, crc32c, shape = 0, 0, self._no_shape
        else:
            entries, crc32c, shape = self._entries(record), record.crc32c, record.shape
            if record.header:
                self.sink.write(record.header)
            self.sink.write(record.payload)
        self._ends.append(self._ends[-1] + entries)
        self.crc32c.append(crc32c)
        self._present.append(record is not None)
        if self._no_shape:
            self._shapes.extend(shape[: len(self._no_shape)])

    def _entries(self, record: NewRecord) -> int:
        layout, size = self._layout, record.size
        if not (layout.single or self._array):
            return size
        entries = 1 if layout.single else record.shape[0]
        if entries * layout.entry_bytes != size:
            raise ValueError(f"field {self._field.name}: {size} bytes do not hold an array of {record.shape}")
        return entries

    def allocate(self, group: Any) -> int:
        """Makes room for the records. Returns its offset in the file, 0 if it is empty."""
        return _allocate(group, self._name, self._layout.dtype, (self._ends[-1], *self._layout.entry)) or 0

    def describe(self, group: Any) -> None:
        """Writes what delimits the records."""
        layout, count = self._layout, len(self._present)
        if layout.delimited:
            group["offsets"] = np.array(self._ends, "<i8")
        if layout.sizes:
            group["shapes"] = np.array(self._shapes, "<i4").reshape(count, layout.sizes)
        if self._field.optional:
            group["present"] = np.frombuffer(self._present, np.uint8)

    def offsets(self, start: int) -> list[int]:
        """Returns the offset in the file of each record, 0 where it is missing, if the first one is at `start`."""
        entry = self._layout.entry_bytes
        return [start + end * entry if present else 0 for end, present in zip(self._ends, self._present, strict=False)]


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
        start = _allocate(file, "images", "|u1", (1,))
        assert start is not None, "libhdf5 places a dataset with early allocation at once"
        return start


def _allocate(group: Any, name: str, dtype: str, shape: tuple[int, ...]) -> int | None:
    """Creates a contiguous dataset, allocated but never filled. Returns its offset in the file, if it has bytes."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)  # otherwise the bytes would depend on the time
    values = h5py.h5t.py_create(np.dtype(dtype), logical=True)
    dataset = h5py.h5d.create(group.id, name.encode(), values, h5py.h5s.create_simple(shape), creation)
    offset: int | None = dataset.get_offset()
    return offset
