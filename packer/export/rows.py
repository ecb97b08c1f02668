"""The rows that are exported: of one dataset or of several, in a given order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import unexpected
from packtrain._core.errors import UnsupportedVersion, UsageError
from packtrain._core.paths import is_address
from packtrain._core.schema import Field, Schema
from packtrain._readers.dataset.chosen import chosen_rows
from packtrain._readers.dataset.opened import open_store
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.dataset.stored_rows import StoredPart, StoredRows
from packtrain._storage.remote.urls import place_of
from packtrain._storage.staging.version_documents import is_changed

if TYPE_CHECKING:
    from packtrain._storage.staging.options import StageOptions

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SourceRows:
    """Rows of datasets. They travel to the workers, so they pickle.

    Attributes:
        stores: The datasets.
        numbers: Which of the datasets each row is in, int64 [rows].
        inner: Its number there, int64 [rows].
    """

    stores: tuple[RecordStore, ...]
    numbers: Ints
    inner: Ints

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.inner)

    def __iter__(self) -> Iterator[tuple[RecordStore, int]]:
        """Gives the dataset of each row, and its number there."""
        # Views give plain numbers, one by one.
        for number, row in zip(self.numbers.data, self.inner.data, strict=True):
            yield self.stores[number], row

    def some(self, rows: slice | Ints) -> Self:
        """Some of these rows."""
        return replace(self, numbers=self.numbers[rows], inner=self.inner[rows])

    @cached_property
    def schema(self) -> Schema:
        """The fields of all rows. A field that is optional in one dataset is so in all.

        Raises:
            UsageError: The fields or the labels of two datasets differ.
        """
        first, *others = (store.schema for store in self.stores)
        for store, other in zip(self.stores[1:], others, strict=True):
            if other.labels != first.labels or [*map(_meaning, other.fields)] != [*map(_meaning, first.fields)]:
                raise UsageError(
                    f"{self.stores[0].name} and {store.name} differ in their fields or labels: export each by itself"
                )
        fields = tuple(
            replace(field, optional=any(each.optional for each in same))
            for field, *same in zip(first.fields, *(schema.fields for schema in (first, *others)), strict=True)
        )
        classes = max((schema.classes for schema in (first, *others)), key=lambda names: len(names or ()))
        return Schema(fields, first.labels, classes)

    def sizes(self) -> Ints:
        """Bytes of the records of each row, int64 [rows].

        Raises:
            CorruptFile: An index is damaged.
        """
        sizes = np.zeros(len(self), np.int64)
        for number, (store, row) in enumerate(self):
            sizes[number] = sum(max(0, store.field(name).length(row)) for name in store.schema.names)
        return sizes

    def sha256(self) -> str:
        """Digest of which rows of which datasets these are, in hexadecimal digits."""
        digest = hashlib.sha256()
        for store in self.stores:
            digest.update(store.sha256().encode())
        digest.update(self.numbers.astype("<i8").tobytes() + self.inner.astype("<i8").tobytes())
        return digest.hexdigest()


@contextmanager
def source_rows(
    dataset: object,
    rows: Iterable[int] | None,
    stage: str | os.PathLike[str] | StageOptions | None,
    budget: str | int | None,
) -> Iterator[SourceRows]:
    """Gives the rows of a dataset that is open already, or lies at a path or an address; see `export`.

    Raises:
        UsageError: It is something else; or its rows change while they are read.
        DatasetError: It is not sound.
    """
    if not isinstance(dataset, str | os.PathLike):
        if stage is not None or budget is not None:
            raise UsageError("the dataset is open already: leave out `stage` and `budget`")
        yield _rows_of(dataset, rows)
        return
    if stage is None and is_address(os.fspath(dataset)):
        raise UsageError(
            f"{os.fspath(dataset)} is in an object store: name a folder of this machine for a copy with `stage`, such "
            "as /nvme"
        )
    with ExitStack() as stack:
        found = _rows_at(dataset, stage, budget)
        for store in found.stores:
            stack.enter_context(store)
        yield found if rows is None else found.some(chosen_rows(rows, len(found)))


def _rows_at(
    path: str | os.PathLike[str], stage: str | os.PathLike[str] | StageOptions | None, budget: str | int | None
) -> SourceRows:
    try:
        stored = StoredRows(os.fspath(path), [StoredPart(open_store(path, stage, budget))])
    except UnsupportedVersion:
        if not is_changed(place := place_of("dataset", path)):
            raise
        if budget is not None:
            raise UsageError(
                f"{place} was changed since it was packed, so it is copied as a whole: leave out `budget`"
            ) from None
        if stage is None:
            assert isinstance(place, Path), "what lies at an address is staged"
            stored = StoredRows.open(place)
        else:
            from packtrain._storage.staging.stager import stage as staged

            # The leases of the copy are released at the end of the function, when the stores hold their own.
            copied = staged(place, stage)
            stored = StoredRows.open(copied.path)
    numbers, inner = np.empty(len(stored), np.int64), np.empty(len(stored), np.int64)
    for store, rows, at in stored.located(np.arange(len(stored))):
        numbers[at], inner[at] = stored.stores.index(store), rows
    return SourceRows(stored.stores, numbers, inner)


def _rows_of(dataset: object, rows: Iterable[int] | None) -> SourceRows:
    # Whoever has a dataset has loaded what this takes.
    from packtrain._readers.dataset.image_dataset import instead_of, samples_of

    samples = samples_of(dataset)
    if samples is None:
        expected = "the folder or address of a dataset, or what open_dataset, subset or concat returned"
        raise unexpected("dataset", dataset, expected + instead_of(dataset))
    chosen = np.arange(len(samples)) if rows is None else chosen_rows(rows, len(samples))
    stores = [store for store in samples.stores if isinstance(store, RecordStore)]
    if len(stores) < len(samples.stores):
        raise UsageError("a growing cache changes while it is read: pack its samples, and export the dataset")
    numbers, inner = np.empty(len(chosen), np.int64), np.empty(len(chosen), np.int64)
    for packed, at, found in samples.located(chosen):
        numbers[at], inner[at] = samples.stores.index(packed.store), found
    return SourceRows(tuple(stores), numbers, inner)


def _meaning(field: Field) -> Any:
    """Return what a field must have in common with that of another dataset; how pixels are stored may differ."""
    return replace(field, optional=False, store=None) if field.kind != "image" else (field.name, field.kind)
