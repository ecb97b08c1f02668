"""Reads LMDB shards through other people's code, for `verify`, and says where records lie."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np

from packtrain._core.errors import CorruptFile
from packtrain._core.schema import IMAGE, Field, Schema

from .. import MOST_LABEL_BYTES, StoredLabel, StoredSample, read_label

LABELS: Final = b"labels"
_KEY_BYTES: Final = 8
_PAGE_NUMBER_BYTES: Final = 8

Value = tuple[int, str, memoryview]
"""A value of a database: the line number, the name of the field or "" for the label, and the bytes."""


def database(field: Field) -> bytes:
    """Returns the name of the database that holds a field."""
    return b"images" if field.name == IMAGE else b"fields/" + field.name.encode()


def databases(schema: Schema) -> int:
    """Returns the number of databases of a shard, or one more: what LMDB wants to know beforehand."""
    return len(schema.fields) + 1


def walk(path: Path, schema: Schema) -> Iterator[StoredSample]:
    """Yields every sample of the environment, found by py-lmdb."""
    required = {field.name for field in schema.fields if not field.optional}
    try:
        with open_shard(path, schema) as (environment, transaction):
            base = _map_address(environment, transaction, database(schema.fields[0]))
            found = [_values(environment, transaction, field.name, database(field)) for field in schema.fields]
            if schema.labels.kind != "none":
                found.append(_values(environment, transaction, "", LABELS))
                required.add("")
            line = operator.itemgetter(0)
            for number, values in itertools.groupby(heapq.merge(*found, key=line), line):
                yield _sample(number, list(values), base, required)
    except (lmdb.Error, ValueError, OSError) as error:
        raise CorruptFile(f"{path} is not a sound LMDB shard: {error}", file=path.name) from error


def places(path: Path, schema: Schema) -> list[dict[int, int]]:
    """Returns the offset of every value, by line, for each field of the schema."""
    with open_shard(path, schema) as (environment, transaction):
        base = _map_address(environment, transaction, database(schema.fields[0]))
        return [
            {
                line: _address(value) - base
                for line, _, value in _values(environment, transaction, field.name, database(field))
            }
            for field in schema.fields
        ]


@contextmanager
def open_shard(path: Path, schema: Schema) -> Iterator[tuple[Any, Any]]:
    """Opens the shard at `path`. Gives a read-only environment and a transaction."""
    environment = lmdb.open(
        os.fspath(path), subdir=False, readonly=True, lock=False, max_dbs=databases(schema), create=False
    )
    try:
        with environment.begin(buffers=True) as transaction:
            yield environment, transaction
    finally:
        environment.close()


def _sample(line: int, values: list[Value], base: int, required: set[str]) -> StoredSample:
    """Puts together what the databases hold for a line.

    Raises:
        ValueError: It lacks one of the `required` values.
    """
    by_name = {name: value for _, name, value in values}
    if lacking := required - by_name.keys():
        raise ValueError(f"line {line} has no {min(lacking) or 'label'}")
    text = by_name.pop("", None)
    label: StoredLabel = None if text is None else read_label(bytes(text[: MOST_LABEL_BYTES + 1]))
    places = {name: (_address(value) - base, len(value)) for name, value in by_name.items()}
    return StoredSample(line, places, label)


def _values(environment: Any, transaction: Any, name: str, database: bytes) -> Iterator[Value]:
    """Yields what a database holds, in the order of the lines."""
    before = -1
    for key, value in transaction.cursor(environment.open_db(database, transaction, create=False)):
        line = int.from_bytes(key, "big")
        if len(key) != _KEY_BYTES or line <= before:
            # A tree that is made to do harm may lead back to where it came from.
            raise ValueError(f"database {database.decode()} has a key of {len(key)} bytes, or keys out of order")
        before = line
        yield line, name, value


def _map_address(environment: Any, transaction: Any, database: bytes) -> int:
    """Returns the address at which liblmdb has mapped the first byte of the file.

    py-lmdb gives views of values but not their offsets in the file. The main database holds a short value for each
    named database, so it lies inside a page, and every page begins with its number.
    """
    page_bytes = int(environment.stat()["psize"])
    value = transaction.get(database)
    if value is None:
        raise ValueError(f"it has no database {database.decode()}")
    address = _address(value)
    page = address - address % page_bytes
    number = int.from_bytes(ctypes.string_at(page, _PAGE_NUMBER_BYTES), "little")
    return page - number * page_bytes


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)
