"""The rows of a dataset in a folder, of all its segments, for those who make no samples. Does not import torch."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from packtrain._core.paths import local_path
from packtrain._core.schema import Schema
from packtrain._core.versions import has_versions, load_version

from .kept import KeptRows
from .query import Query, Rows, pieces
from .records import counted
from .store import RecordStore
from .versioned import segment_stores


class _Part(NamedTuple):
    """A segment: its records, and which rows of it there are; None: all."""

    store: RecordStore
    kept: KeptRows | None


class StoredRows:
    """The rows of a dataset, in order; of one that was changed, those of its newest version.

    Args:
        path: Folder of the dataset.

    Attributes:
        name: Name of the dataset in messages.
        schema: What samples hold.

    Raises:
        DatasetError: It is not a sound dataset.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        folder = local_path(path)
        if has_versions(folder):
            version = load_version(folder)
            stores = segment_stores(folder, version, "auto", check=True)
            kept = [None if each.dropped is None else KeptRows(folder, each) for each in version.segments]
            self._parts = [_Part(*each) for each in zip(stores, kept, strict=True)]
        else:
            self._parts = [_Part(RecordStore(folder), None)]
        self.name: Final = os.fspath(folder)
        self.schema: Final[Schema] = self._parts[0].store.schema
        lengths = (len(part.store if part.kept is None else part.kept) for part in self._parts)
        self._starts = [0, *accumulate(lengths)]

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

    def where(self, expression: str) -> Rows:
        """The rows that a filter takes, int64 [n], ascending; raises what `ImageDataset.where` raises."""
        queries = {store: Query(store, expression) for store, _ in self._parts}
        found = [
            numbers[queries[store].matches(inner, numbers)]
            for rows in pieces(len(self))
            for store, inner, numbers in self.located(rows)
        ]
        return np.concatenate(found)
