"""Datasets over other datasets: chosen rows of one, and several one after the other."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt

from packtrain._core.errors import UsageError

from ..transforms.batched import Destination
from .base import ImageDataset, Transform
from .packed import PackedDataset
from .store import RecordStore


class Subset(ImageDataset):
    """Chosen rows of another dataset; `ImageDataset.subset` makes one."""

    def __init__(self, dataset: ImageDataset, rows: Iterable[int]) -> None:
        self._dataset = dataset
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            if rows.shape != (len(dataset),):
                raise IndexError(f"a mask of shape {rows.shape} for a dataset of {len(dataset)} rows")
            rows = np.flatnonzero(rows)
        # An array, not a list: a list's reference counts would be written to, and so copied, in every forked worker.
        self._rows = np.fromiter(rows, np.int64)
        if len(self._rows) and not (-len(dataset) <= self._rows.min() and self._rows.max() < len(dataset)):
            raise IndexError(f"rows {self._rows.min()} to {self._rows.max()} of a dataset of {len(dataset)} rows")
        self._rows[self._rows < 0] += len(dataset)

    def __len__(self) -> int:
        return len(self._rows)

    def _locate(self, row: int) -> tuple[PackedDataset, int]:
        return self._dataset._locate(int(self._rows[row]))

    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        """See `ImageDataset.copy_rows`."""
        return _inside(rows, len(self)) and self._dataset.copy_rows(self._rows[rows], into)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        return self._dataset.classes

    @property
    def draws(self) -> int:
        """See `ImageDataset.draws`."""
        return self._dataset.draws

    @property
    def foreign(self) -> bool:
        """See `ImageDataset.foreign`."""
        return self._dataset.foreign

    @property
    def stores(self) -> tuple[RecordStore, ...]:
        """See `ImageDataset.stores`."""
        return self._dataset.stores

    @cached_property
    def _by_place(self) -> npt.NDArray[np.int64]:
        return np.argsort(self._dataset.places_of(self._rows), kind="stable")

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.rows_at`; a row that was chosen several times lies at as many places."""
        return self._by_place[places]

    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.places_of`."""
        places = np.empty(len(self), np.int64)
        places[self._by_place] = np.arange(len(self))
        return places[rows]

    def with_transform(self, transform: Transform | Sequence[Transform] | None) -> Self:
        """See `ImageDataset.with_transform`."""
        other = copy.copy(self)
        other._dataset = self._dataset.with_transform(transform)
        return other


class Concat(ImageDataset):
    """Datasets one after the other; `concat` makes one."""

    def __init__(self, datasets: Sequence[ImageDataset]) -> None:
        if not datasets:
            raise UsageError("concat needs at least one dataset")
        names = {dataset.classes for dataset in datasets}
        if len(names) > 1:
            raise UsageError("the datasets have different class names, so that one label would mean two things")
        self._datasets = tuple(datasets)
        self._ends = list(accumulate(len(dataset) for dataset in datasets))

    def __len__(self) -> int:
        return self._ends[-1]

    def _locate(self, row: int) -> tuple[PackedDataset, int]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a dataset of {len(self)} rows")
        row %= len(self)
        number = bisect_right(self._ends, row)
        return self._datasets[number]._locate(row - (self._ends[number - 1] if number else 0))

    def copy_rows(self, rows: npt.NDArray[np.int64], into: Destination) -> bool:
        """See `ImageDataset.copy_rows`."""
        if not _inside(rows, len(self)):
            return False
        numbers = np.searchsorted(self._ends, rows, side="right")
        inner = rows - np.array([0, *self._ends])[numbers]
        # The same dataset several times makes a longer epoch; it is asked once.
        firsts = np.array([self._datasets.index(dataset) for dataset in self._datasets])[numbers]
        for first in np.unique(firsts).tolist():
            mine = firsts == first
            if not self._datasets[first].copy_rows(inner[mine], into._replace(at=into.at[mine])):
                return False
        return True

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        return self._datasets[0].classes

    @property
    def draws(self) -> int:
        """See `ImageDataset.draws`."""
        return max(dataset.draws for dataset in self._datasets)

    @property
    def foreign(self) -> bool:
        """See `ImageDataset.foreign`."""
        return any(dataset.foreign for dataset in self._datasets)

    @property
    def stores(self) -> tuple[RecordStore, ...]:
        """See `ImageDataset.stores`."""
        return tuple(dict.fromkeys(store for dataset in self._datasets for store in dataset.stores))

    def rows_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.rows_at`."""
        return self._in_each(places, lambda dataset, inner: dataset.rows_at(inner))

    def places_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `ImageDataset.places_of`."""
        return self._in_each(rows, lambda dataset, inner: dataset.places_of(inner))

    def _in_each(
        self,
        numbers: npt.NDArray[np.int64],
        function: Callable[[ImageDataset, npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    ) -> npt.NDArray[np.int64]:
        """Applies a function to those of the numbers that fall into each dataset."""
        found = np.empty_like(numbers)
        start = 0
        for dataset, end in zip(self._datasets, self._ends, strict=True):
            mine = (start <= numbers) & (numbers < end)
            if mine.any():
                found[mine] = start + function(dataset, numbers[mine] - start)
            start = end
        return found

    def with_transform(self, transform: Transform | Sequence[Transform] | None) -> Self:
        """See `ImageDataset.with_transform`."""
        other = copy.copy(self)
        other._datasets = tuple(dataset.with_transform(transform) for dataset in self._datasets)
        return other


def concat(datasets: Sequence[ImageDataset]) -> Concat:
    """Datasets one after the other, as one; each keeps its own transforms.

    Raises:
        UsageError: There are none, or their class names differ.
    """
    return Concat(datasets)


def _inside(rows: npt.NDArray[np.int64], length: int) -> bool:
    """Whether these are rows of a dataset, none of them counted from the end."""
    return bool((rows >= 0).all() and (rows < length).all())
