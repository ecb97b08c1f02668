"""The rows of a dataset in a folder, of all its segments, for those who make no samples. Does not import torch."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.paths import local_path
from packtrain._core.schema import Schema
from packtrain._core.version_files import has_versions
from packtrain._core.versions import Segment, Version, load_version

from .kept import KeptRows
from .query import Query, Rows, pieces
from .records import counted
from .store import RecordStore
from .versioned import segment_stores


class StoredPart(NamedTuple):
    """A packed dataset or a segment: its records, and which rows of it there are; None: all."""

    store: RecordStore
    kept: KeptRows | None = None


class StoredRows:
    """The rows of a dataset, in order.

    Args:
        name: Name of the dataset in messages.
        parts: Where they lie, in this order.
        version: The version of a dataset that was changed, whose rows these are; else None.

    Attributes:
        name: The same.
        version: The same.
        stores: The records of each part.
        schema: What samples hold; that of the first part.
    """

    def __init__(self, name: str, parts: Sequence[StoredPart], version: Version | None = None) -> None:
        self.name: Final = name
        self.version: Final = version
        self._parts: Final = tuple(parts)
        self.stores: Final = tuple(part.store for part in parts)
        self.schema: Final[Schema] = self.stores[0].schema
        lengths = (len(part.store if part.kept is None else part.kept) for part in parts)
        self._starts: Final = [0, *accumulate(lengths)]

    @classmethod
    def open(cls, path: str | os.PathLike[str], io: str = "auto", *, index_only: bool = False) -> Self:
        """Opens a dataset; of one that was changed, its newest version. With `index_only`, see `RecordStore`.

        Raises:
            DatasetError: It is not a sound dataset.
        """
        folder = local_path(path)
        if has_versions(folder):
            return cls.of_version(folder, load_version(folder), io, index_only=index_only)
        return cls(os.fspath(folder), [StoredPart(RecordStore(folder, io=io, index_only=index_only))])

    @classmethod
    def of_version(cls, folder: Path, version: Version, io: str = "auto", *, index_only: bool = False) -> Self:
        """Opens a version, whose documents need not be written yet if nothing was changed; raises as `open`."""
        if not has_versions(folder):
            return cls.open(folder, io, index_only=index_only)
        stores = segment_stores(folder, version, io, check=True, index_only=index_only)
        return cls.of_segments(folder, version.segments, stores, version)

    @classmethod
    def of_segments(
        cls, folder: Path, segments: Sequence[Segment], stores: Sequence[RecordStore], version: Version | None = None
    ) -> Self:
        """The rows that a version has of some segments, whose records are in these stores; raises as `open`."""
        kept = (None if each.dropped is None else KeptRows(folder, each) for each in segments)
        return cls(os.fspath(folder), [StoredPart(*each) for each in zip(stores, kept, strict=True)], version)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self.stores:
            store.close()

    def __len__(self) -> int:
        return self._starts[-1]

    def locate(self, row: int) -> tuple[RecordStore, int]:
        """The store that holds `row`, and the row's number there.

        Raises:
            IndexError: There is no such row.
        """
        row = counted(row, len(self))
        number = bisect_right(self._starts, row) - 1
        store, kept = self._parts[number]
        inner = row - self._starts[number]
        return store, inner if kept is None else kept.item(inner)

    def located(self, rows: Rows) -> Iterator[tuple[RecordStore, Rows, Rows]]:
        """Each store that has some of these rows, int64 [n], ascending; its rows; and what they are called here."""
        bounds = np.searchsorted(rows, self._starts)
        for (store, kept), start, first, stop in zip(self._parts, self._starts, bounds, bounds[1:], strict=False):
            if first < stop:
                inner = rows[first:stop] - start
                yield store, inner if kept is None else kept[inner], rows[first:stop]

    def all_located(self) -> Iterator[tuple[RecordStore, Rows | slice]]:
        """Each store, and its rows that there are: a slice where these are all, which copies nothing of a column."""
        for store, kept in self._parts:
            yield store, slice(None) if kept is None else kept[np.arange(len(kept))]

    def column(self, name: str, rows: Rows, field: str | None = None) -> npt.NDArray[Any]:
        """Entries of a column for some rows, int64 [n], ascending; see `Store.column`."""
        found = [store.column(name, inner, field) for store, inner, _ in self.located(rows)]
        return np.concatenate(found) if found else self.stores[0].column(name, rows, field)

    def where(self, expression: str) -> Rows:
        """The rows that a filter takes, int64 [n], ascending; raises what `ImageDataset.where` raises."""
        queries = {store: Query(store, expression) for store, _ in self._parts}
        found = [
            numbers[queries[store].matches(inner, numbers)]
            for rows in pieces(len(self))
            for store, inner, numbers in self.located(rows)
        ]
        return np.concatenate(found)
