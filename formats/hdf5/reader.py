"""Reads HDF5 shards through other people's code, for `verify`, and says where records lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import h5py
import numpy as np

from packtrain._core.errors import CorruptFile
from packtrain._core.schema import IMAGE, Field, Schema

from .. import StoredSample

ALIGNMENT: Final = 4096


class Layout(NamedTuple):
    """The layout of a field's records in their HDF5 dataset.

    Attributes:
        dtype: numpy type string of the dataset.
        entry: Shape of an entry, that is without the first dimension.
        single: True if every record is one entry.
        delimited: True if `offsets` says which entries a record consists of.
        sizes: Number of sizes that `shapes` has for each record; 0 if there is no `shapes`.
    """

    dtype: str
    entry: tuple[int, ...]
    single: bool
    delimited: bool
    sizes: int

    @property
    def entry_bytes(self) -> int:
        """Size of an entry in bytes."""
        return math.prod(self.entry) * np.dtype(self.dtype).itemsize


def layout(field: Field) -> Layout:
    """Returns how the records of `field` lie in its dataset."""
    dtype, shape, sizes = "|u1", None, 0
    if field.dtype is not None and field.kind == "array":
        dtype, shape = field.dtype, field.shape
    elif field.encoding == "raw":
        sizes = 2
    elif field.store is not None and field.store.store_mode.is_raw:
        shape = field.store.fixed_shape
        sizes = 3 if shape is None else 0
    single = shape is not None and None not in shape
    entry = tuple(side or 0 for side in (shape or ())[0 if single else 1 :])
    return Layout(dtype, entry, single, field.optional or not single, sizes)


def place(field: Field) -> tuple[str, str]:
    """Returns the group of a field, and the name of the dataset in it that holds the records."""
    return ("/", "images") if field.name == IMAGE else (f"/fields/{field.name}", "data")


def walk(path: Path, schema: Schema) -> Iterator[StoredSample]:
    """Yields every sample of the file, found by h5py."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            size = path.stat().st_size
            lines = _integers(file, "lines", size)
            values: list[Any] = [None] * len(lines)
            if schema.labels.kind != "none":
                values = _dataset(file, "labels", size)[:].tolist()
            fields = [_records(file, field, len(lines), size) for field in schema.fields]
        if len(values) != len(lines):
            raise ValueError("labels and lines have different lengths")
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"{path} is not a sound HDF5 shard: {error}", file=path.name) from error
    for i, (line, value) in enumerate(zip(lines, values, strict=True)):
        places = {
            name: (start + ends[i] * entry, (ends[i + 1] - ends[i]) * entry)
            for name, (start, entry, ends, present) in zip(schema.names, fields, strict=True)
            if present[i]
        }
        yield StoredSample(line, places, tuple(value) if isinstance(value, list) else value)


class _Records(NamedTuple):
    """The places of the records of a field.

    Attributes:
        start: Offset of the first one in the file.
        entry: Size of an entry in bytes.
        ends: Entries in front of each record, and at last their number.
        present: Which samples have the field.
    """

    start: int
    entry: int
    ends: Sequence[int]
    present: Sequence[int]


def _records(file: h5py.File, field: Field, count: int, size: int) -> _Records:
    """Finds the records of a field of `count` samples.

    Raises:
        ValueError: They are not as the schema says.
    """
    (where, name), expected = place(field), layout(field)
    group = _group(file, where)
    data = _dataset(group, name, size)
    if data.dtype != expected.dtype or data.shape[1:] != expected.entry:
        raise ValueError(f"{data.name} has another type or shape")
    ends: Sequence[int] = range(count + 1)
    if expected.delimited:
        ends = _integers(group, "offsets", size)
    present: Sequence[int] = range(1, count + 1)
    if field.optional:
        present = _integers(group, "present", size)
    if len(ends) != count + 1 or len(present) != count:
        raise ValueError(f"the datasets of {field.name} and lines have different lengths")
    return _Records(data.id.get_offset() or 0, expected.entry_bytes, ends, present)


def _group(file: h5py.File, path: str) -> h5py.Group:
    """Returns a group that lies in this file: each step to it could lead into any other one.

    Raises:
        ValueError: There is none.
    """
    group: Any = file
    for name in filter(None, path.split("/")):
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"group {path} is a link, or missing")
        group = group[name]
        if not isinstance(group, h5py.Group):
            raise ValueError(f"{path} is not a group")
    return group


def _integers(group: h5py.Group, name: str, size: int) -> list[int]:
    """Reads a dataset of integers, as `_dataset` finds it.

    Raises:
        ValueError: It holds something else.
    """
    dataset = _dataset(group, name, size)
    if dataset.dtype.kind not in "iu" or dataset.ndim != 1:
        raise ValueError(f"{name} is not a list of integers")
    values: list[int] = dataset[:].tolist()
    return values


def _dataset(group: h5py.Group, name: str, size: int) -> h5py.Dataset:
    """Returns a dataset that lies in this file, of `size` bytes, as a whole.

    An HDF5 file may say that a dataset lies in any other file, and may describe one that is larger than the file.

    Raises:
        ValueError: It does not.
    """
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is a link, or missing")
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{name} is not a dataset")
    # libhdf5 gives an offset only to what is contiguous, neither compressed nor virtual, and in this file.
    start, length = dataset.id.get_offset(), math.prod(dataset.shape) * dataset.dtype.itemsize
    if dataset.dtype.kind not in "biufc" or (length and (start is None or start + length > size)):
        raise ValueError(f"dataset {name} does not lie in the file as one piece of numbers")
    return dataset
