"""Writes LMDB shards, as `packtrain._formats.lmdb` specifies them."""

from __future__ import annotations

import errno
import json
import mmap
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from packtrain._core.files import FULL, MiB
from packtrain._core.schema import Schema

from .. import StoredLabel
from ..writing import LABEL_DIGITS, NewSample, ShardSpace, WrittenShard
from .reader import LABELS, database, databases, places

_BATCH_BYTES: Final = 16 * MiB
_FIRST_MAP_BYTES: Final = 1024 * MiB
_SAMPLE_BYTES: Final = 1024
"""Bytes of memory that a sample takes, roughly, beside its content."""
_LEAST_ROOM: Final = MiB // 16


class _Waiting(NamedTuple):
    """A sample that waits for its batch, with the value of each field."""

    line: int
    label: StoredLabel
    values: tuple[bytes | None, ...]


def space(schema: Schema) -> ShardSpace:
    """Returns the bytes that shards take."""
    label = schema.labels.fields * LABEL_DIGITS
    return ShardSpace(mmap.PAGESIZE * 16 * (2 + len(schema.fields)), _paged(label) if label else 0, _paged)


def _paged(length: int) -> int:
    """The most bytes that a value of this length takes in pages, with the nodes that lead to it."""
    page = mmap.PAGESIZE
    node = length + 8 + 16
    # Pages that were split are at least a fourth full. A value for which a page has no two places has pages of its own.
    if node <= page // 2 - 16:
        return min(page, 4 * node)
    return length + 16 + -(length + 16) % page + 4 * 48


class Writer:
    """Writes samples to an LMDB environment, in transactions of some megabytes: LMDB keeps a transaction in memory."""

    def __init__(self, path: Path, schema: Schema, *, checksum: bool = True) -> None:
        self._path = path
        self._schema = schema
        try:
            # meminit stays on: without it, stale heap content would end up in the file.
            self._environment: Any = lmdb.open(
                os.fspath(path),
                _FIRST_MAP_BYTES,
                subdir=False,
                lock=False,
                sync=False,
                max_dbs=databases(schema),
                meminit=True,
            )
            self._fields = [self._environment.open_db(database(field)) for field in schema.fields]
            self._labels = self._environment.open_db(LABELS) if schema.labels.kind != "none" else None
        except lmdb.Error as error:
            raise _as_os_error(error, path, _LEAST_ROOM) from error
        self._map_bytes = _FIRST_MAP_BYTES
        self._batch: list[_Waiting] = []
        self._batch_bytes = 0
        self._lines: list[int] = []

    def add(self, sample: NewSample) -> None:
        """Appends a sample; it is written together with its batch."""
        values = tuple(None if record is None else record.joined() for record in sample.records)
        self._batch.append(_Waiting(sample.line, sample.label, values))
        # Where there is an image, the batches are those of version 1: LMDB's pages depend on them.
        self._batch_bytes += 0 if self._schema.image is not None else _SAMPLE_BYTES
        self._batch_bytes += sum(len(value) for value in values if value is not None)
        self._lines.append(sample.line)
        if self._batch_bytes >= _BATCH_BYTES:
            self._write_batch()

    def finish(self) -> WrittenShard:
        """Writes the last batch and looks up where LMDB has put each value."""
        self._write_batch()
        self.close()
        found = places(self._path, self._schema)
        return WrittenShard([tuple(offsets.get(line, 0) for offsets in found) for line in self._lines])

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def _write_batch(self) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for sample in self._batch:
                        key = sample.line.to_bytes(8, "big")
                        for database, value in zip(self._fields, sample.values, strict=True):
                            if value is not None:
                                transaction.put(key, value, db=database)
                        if self._labels is not None:
                            transaction.put(key, json.dumps(sample.label).encode(), db=self._labels)
                break
            except lmdb.MapFullError:
                self._map_bytes *= 2
                self._environment.set_mapsize(self._map_bytes)
            except lmdb.Error as error:
                raise _as_os_error(error, self._path, self._batch_bytes + _LEAST_ROOM) from error
        self._batch.clear()
        self._batch_bytes = 0


def _as_os_error(error: Any, path: Path, size: int) -> OSError:
    """Returns `error` as an OSError.

    liblmdb gives the error number only as text, and not at all if a full disk cut a write short. In that case this
    tries to allocate `size` more bytes, to see whether the disk is full.
    """
    for number in (*FULL, errno.ENOMEM):
        if os.strerror(number) in str(error):
            return OSError(number, os.strerror(number))
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), size)
    except OSError as full:
        if full.errno in FULL:
            return full
    return OSError(errno.EIO, str(error))
