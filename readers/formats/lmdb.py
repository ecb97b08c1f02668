"""LMDB shards, which any binding of LMDB can read.

A shard is an LMDB data file (``MDB_NOSUBDIR``, suffix ``.mdb``) with two named databases:

- ``images``: key -> the bytes of the record.
- ``labels``: key -> the label as JSON text (a number or a list of numbers); absent if the dataset has no labels.

A key is the line number as an 8-byte big-endian unsigned integer. Open a shard read-only and without a lock file::

    env = lmdb.open("train-000000.mdb", subdir=False, readonly=True, lock=False, max_dbs=2)

The bytes of a value are contiguous in the file: LMDB stores a large value in consecutive pages and a small one inside a
page. Raw records are `.npy` files: a 128-byte header and H x W x C uint8 pixels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np

from packtrain._core.errors import CorruptFile
from packtrain._core.options import LabelSpec

from . import StoredLabel, StoredRecord

SUFFIX: Final = ".mdb"
IMAGES: Final = b"images"
LABELS: Final = b"labels"


def walk(path: Path, labels: LabelSpec) -> Iterator[StoredRecord]:
    """Yields every record of the environment, found by py-lmdb."""
    try:
        with open_shard(path) as environment, environment.begin(buffers=True) as transaction:
            images = environment.open_db(IMAGES, transaction, create=False)
            values = None
            if labels.kind != "none":
                values = environment.open_db(LABELS, transaction, create=False)
            base: int | None = None
            for key, record in transaction.cursor(images):
                address = np.frombuffer(record, np.uint8).ctypes.data
                base = _map_address(path, address) if base is None else base
                label: StoredLabel = None
                if values is not None:
                    value = json.loads(bytes(transaction.get(key, db=values) or b""))
                    label = tuple(value) if isinstance(value, list) else value
                yield StoredRecord(int.from_bytes(key, "big"), address - base, len(record), label)
    except (lmdb.Error, ValueError) as error:
        raise CorruptFile(f"{path} is not a sound LMDB shard: {error}", file=path.name) from error


@contextmanager
def open_shard(path: Path) -> Iterator[Any]:
    """Opens the shard at `path` as a read-only environment."""
    environment = lmdb.open(os.fspath(path), subdir=False, readonly=True, lock=False, max_dbs=2, create=False)
    try:
        yield environment
    finally:
        environment.close()


def _map_address(path: Path, inside: int) -> int:
    """Returns the address at which liblmdb has mapped the first byte of `path`, given any address inside its map.

    py-lmdb gives views of values but not their offsets in the file. The kernel knows where the file is mapped.
    """
    inode = path.stat().st_ino
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        addresses, _, offset, _, number, *_ = line.split(maxsplit=5)
        start, stop = (int(text, 16) for text in addresses.split("-"))
        if start <= inside < stop and int(number) == inode:
            return start - int(offset, 16)
    raise ValueError("its map is not in /proc/self/maps")
