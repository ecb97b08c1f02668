"""Writes LMDB shards, as `packtrain._readers.formats.lmdb` specifies them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Final

import lmdb

from packtrain._core.files import FULL, MiB
from packtrain._readers.formats.lmdb import IMAGES, LABELS, walk

from . import NewRecord, RecordSpec, WrittenShard

_BATCH_BYTES: Final = 16 * MiB
_FIRST_MAP_BYTES: Final = 1024 * MiB
_LEAST_ROOM: Final = MiB // 16


class Writer:
    """Writes records to an LMDB environment, in transactions of some megabytes: LMDB keeps a transaction in memory."""

    raw_as_npy: Final = True

    def __init__(self, path: Path, spec: RecordSpec) -> None:
        self._path = path
        self._spec = spec
        try:
            # meminit stays on: without it, stale heap content would end up in the file.
            self._environment: Any = lmdb.open(
                os.fspath(path), _FIRST_MAP_BYTES, subdir=False, lock=False, sync=False, max_dbs=2, meminit=True
            )
            self._images = self._environment.open_db(IMAGES)
            self._labels = self._environment.open_db(LABELS) if spec.labels.kind != "none" else None
        except lmdb.Error as error:
            raise _as_os_error(error, path, _LEAST_ROOM) from error
        self._map_bytes = _FIRST_MAP_BYTES
        self._batch: list[NewRecord] = []
        self._batch_bytes = 0
        self._lines: list[int] = []

    def add(self, record: NewRecord) -> None:
        """Appends a record; it is written together with its batch."""
        self._batch.append(record)
        self._batch_bytes += len(record.payload)
        self._lines.append(record.line)
        if self._batch_bytes >= _BATCH_BYTES:
            self._write_batch()

    def finish(self) -> WrittenShard:
        """Writes the last batch and looks up where LMDB has put each value."""
        self._write_batch()
        self.close()
        offsets = {record.line: record.offset for record in walk(self._path, self._spec.labels)}
        return WrittenShard([offsets[line] for line in self._lines])

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def _write_batch(self) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for record in self._batch:
                        key = record.line.to_bytes(8, "big")
                        transaction.put(key, record.payload, db=self._images)
                        if self._labels is not None:
                            transaction.put(key, json.dumps(record.label).encode(), db=self._labels)
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
