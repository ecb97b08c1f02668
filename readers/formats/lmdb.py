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

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np

from packtrain._core.errors import CorruptFile
from packtrain._core.opening import open_regular
from packtrain._core.options import LabelSpec

from . import MOST_LABEL_BYTES, StoredLabel, StoredRecord, read_label

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
            base = _map_address(path, environment, transaction)
            for key, record in transaction.cursor(images):
                address = _address(record)
                label: StoredLabel = None
                if values is not None:
                    label = read_label(bytes(transaction.get(key, b"", db=values)[: MOST_LABEL_BYTES + 1]))
                yield StoredRecord(int.from_bytes(key, "big"), address - base, len(record), label)
    except (lmdb.Error, ValueError, OSError, struct.error, StopIteration) as error:
        raise CorruptFile(f"{path} is not a sound LMDB shard: {error}", file=path.name) from error


# The page header of 16 bytes; magic number, version, address, map size; 48 bytes about the free pages and 40 about the
# main database, whose root comes next; the last page; the number of the transaction. https://www.openldap.org, mdb.c
_META: Final = struct.Struct("=16xI20x48x40xQ8xQ")
_MAGIC: Final = 0xBEEFC0DE


@contextmanager
def open_shard(path: Path) -> Iterator[Any]:
    """Opens the shard at `path` as a read-only environment."""
    environment = lmdb.open(os.fspath(path), subdir=False, readonly=True, lock=False, max_dbs=2, create=False)
    try:
        yield environment
    finally:
        environment.close()


def _map_address(path: Path, environment: Any, transaction: Any) -> int:
    """Returns the address at which liblmdb has mapped the first byte of `path`.

    py-lmdb gives views of values but not their offsets in the file. The names of the databases lie in the root page of
    the main database, whose number stands in the newer one of the two meta pages.
    """
    page_bytes, newest = environment.stat()["psize"], environment.info()["last_txnid"]
    with os.fdopen(open_regular(path), "rb") as file:
        metas = [_META.unpack(os.pread(file.fileno(), _META.size, page_bytes * number)) for number in (0, 1)]
    root = next(root for magic, root, transaction_number in metas if (magic, transaction_number) == (_MAGIC, newest))
    inside = _address(transaction.get(IMAGES))
    return int(inside - inside % page_bytes - root * page_bytes)


def _address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data
