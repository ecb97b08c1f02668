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

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import h5py
import numpy as np

from packtrain._core.errors import CorruptFile
from packtrain._core.options import LabelSpec

from . import StoredRecord

SUFFIX: Final = ".h5"
ALIGNMENT: Final = 4096


def walk(path: Path, labels: LabelSpec) -> Iterator[StoredRecord]:
    """Yields every record of the file, found by h5py."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            images = file["images"]
            lines = file["lines"][:].tolist()
            start = images.id.get_offset()
            if start is None and lines:
                raise ValueError("dataset images is not contiguous")
            if images.ndim == 1:
                offsets = file["offsets"][:].tolist()
            else:
                size = int(np.prod(images.shape[1:]))
                offsets = [size * i for i in range(len(lines) + 1)]
            values = [None] * len(lines) if labels.kind == "none" else file["labels"][:].tolist()
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"{path} is not a sound HDF5 shard: {error}", file=path.name) from error
    for i, (line, value) in enumerate(zip(lines, values, strict=True)):
        label = tuple(value) if isinstance(value, list) else value
        yield StoredRecord(line, start + offsets[i], offsets[i + 1] - offsets[i], label)
