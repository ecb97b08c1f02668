"""HDF5 shards, which h5py, MATLAB and h5dump can read.

A shard is an HDF5 file (earliest library version, suffix ``.h5``) with these datasets, all contiguous and unfiltered:

- ``images``: the records. If all records are raw and have the same size: uint8 [N, H, W, C]. Otherwise: uint8
  [total bytes], the records one after the other without gaps, delimited by ``offsets``.
- ``offsets``: int64 [N + 1], unless ``images`` is four-dimensional. Record i is ``images[offsets[i]:offsets[i + 1]]``.
- ``shapes``: int32 [N, 3]: height, width and channels. Only if records are raw and their sizes differ.
- ``labels``: int64 or float32, [N] or [N, K], unless the dataset has no labels.
- ``lines``: int64 [N]: the keys.
- ``crc32c``: uint32 [N]: the checksum of each record.

The data of ``images`` begins at a multiple of 4096 bytes. Raw records are only the pixels, in C order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import h5py

from packtrain._core.errors import CorruptFile
from packtrain._core.options import LabelSpec

from . import StoredRecord

SUFFIX: Final = ".h5"
ALIGNMENT: Final = 4096


def walk(path: Path, labels: LabelSpec) -> Iterator[StoredRecord]:
    """Yields every record of the file, found by h5py."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            size = path.stat().st_size
            images = _dataset(file, "images", size)
            start = images.id.get_offset() or 0
            lines = _dataset(file, "lines", size)[:].tolist()
            if images.ndim == 1:
                offsets = _dataset(file, "offsets", size)[:].tolist()
            else:
                record = math.prod(images.shape[1:])
                offsets = [record * i for i in range(len(lines) + 1)]
            values = [None] * len(lines) if labels.kind == "none" else _dataset(file, "labels", size)[:].tolist()
        if len(offsets) != len(lines) + 1 or len(values) != len(lines):
            raise ValueError("its datasets have different lengths")
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"{path} is not a sound HDF5 shard: {error}", file=path.name) from error
    for i, (line, value) in enumerate(zip(lines, values, strict=True)):
        label = tuple(value) if isinstance(value, list) else value
        yield StoredRecord(line, start + offsets[i], offsets[i + 1] - offsets[i], label)


def _dataset(file: h5py.File, name: str, size: int) -> h5py.Dataset:
    """Returns a dataset that lies in this file, of `size` bytes, as a whole.

    An HDF5 file may say that a dataset lies in any other file, and may describe one that is larger than the file.

    Raises:
        ValueError: It does not.
    """
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is a link, or missing")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{name} is not a dataset")
    # libhdf5 gives an offset only to what is contiguous, neither compressed nor virtual, and in this file.
    start, length = dataset.id.get_offset(), math.prod(dataset.shape) * dataset.dtype.itemsize
    if dataset.dtype.kind not in "iuf" or (length and (start is None or start + length > size)):
        raise ValueError(f"dataset {name} does not lie in the file as one piece of numbers")
    return dataset
