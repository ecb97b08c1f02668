"""Laws of the rows that those see who make no samples: they are the rows that `open_dataset` gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.support import image_set, packed, require_module

from packtrain import append, drop_rows, open_dataset
from packtrain._readers.dataset.stored_rows import StoredRows


@pytest.fixture(scope="module", params=["as packed", "changed"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset; a changed one has several segments, and rows of both have been dropped."""
    root = tmp_path_factory.mktemp("rows")
    out = packed(image_set(root / "first", 12), root / "out", "tar")
    if request.param == "changed":
        append(out, image_set(root / "second", 9))
        drop_rows(out, [0, 1, 5, 11, 12, 20])
    return out


def test_a_row_is_where_the_dataset_has_it(folder: Path) -> None:
    dataset, stored = open_dataset(folder), StoredRows.open(folder)
    assert len(stored) == len(dataset)
    for row in range(len(stored)):
        store, inner = stored.locate(row)
        assert store.filename(inner) == dataset.filename(row)
        assert bytes(store.record(inner)) == bytes(dataset.record(row))
    with pytest.raises(IndexError):
        stored.locate(len(stored))


def test_several_rows_are_where_each_of_them_is(folder: Path) -> None:
    stored = StoredRows.open(folder)
    for wanted in (range(len(stored)), range(2, len(stored), 3), [4], []):
        found = []
        for store, inner, numbers in stored.located(np.array(wanted, np.int64)):
            found += [(store, row, number) for row, number in zip(inner.tolist(), numbers.tolist(), strict=True)]
        assert found == [(*stored.locate(row), row) for row in wanted]


def test_a_filter_takes_what_it_takes_of_the_dataset(folder: Path) -> None:
    require_module("polars")
    dataset, stored = open_dataset(folder), StoredRows.open(folder)
    for expression in ("row >= 3 and label <> 1", "width > 60", "row < 0"):
        taken = stored.where(expression)
        subset = dataset.where(expression)
        assert [dataset.describe(row) for row in taken.tolist()] == [subset.describe(row) for row in range(len(subset))]
