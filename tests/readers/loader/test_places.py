"""Laws of `rows_at`: the order of records on disk, for datasets, their subsets and concatenations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.support import packed, shard_bytes

from packtrain import ImageDataset, PackedDataset, concat, open_dataset
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import CorruptFile
from packtrain.orders import BlockShuffled


@pytest.fixture
def dataset(images: Path, tmp_path: Path, format_name: str) -> PackedDataset:
    return open_dataset(packed(images, tmp_path / "out", format_name, shard_size=shard_bytes(images, 4)))


def located(dataset: ImageDataset, row: int) -> tuple[str, int, int]:
    """The place of a record: dataset, shard, offset; for LMDB, which places small records itself, that in its order."""
    home, row = dataset._samples.locate(row)
    assert isinstance(home.store, RecordStore)
    index = home.store.index
    by_key = home.store.manifest.format == "lmdb"
    return (
        str(home.store.path),
        int(index["shard"][row]),
        index["by_place"].tolist().index(row % len(home)) if by_key else int(index["offset"][row]),
    )


def by_place(dataset: ImageDataset) -> list[int]:
    rows: list[int] = dataset._samples.rows_at(np.arange(len(dataset))).tolist()
    return rows


def test_places_are_in_the_order_of_the_shards(dataset: PackedDataset) -> None:
    assert by_place(dataset) == sorted(range(12), key=lambda row: located(dataset, row))
    backwards: list[int] = dataset._samples.rows_at(np.arange(12)[::-1]).tolist()
    assert backwards == by_place(dataset)[::-1]


def test_those_of_a_subset_too(dataset: PackedDataset) -> None:
    subset = dataset.subset([7, -1, 3, 7, 0])
    assert sorted(by_place(subset)) == list(range(5))
    found = [located(subset, row) for row in by_place(subset)]
    assert found == sorted(found)
    assert by_place(dataset.subset([])) == []


def test_those_of_a_concatenation_come_one_dataset_after_the_other(dataset: PackedDataset) -> None:
    both = concat([dataset, dataset.subset([]), dataset.subset([5, 2, 9])])
    expected = by_place(dataset) + [12 + row for row in by_place(dataset.subset([5, 2, 9]))]
    assert by_place(both) == expected
    nested = concat([both, both]).subset(range(29, -1, -1))
    assert by_place(nested) == [29 - row for row in expected] + [14 - row for row in expected]


def test_a_block_order_takes_any_of_them(dataset: PackedDataset) -> None:
    for source in (dataset, dataset.subset([3, 1]), dataset.subset([]), concat([dataset, dataset])):
        rows = BlockShuffled(source, block=3, window=2).rows(1, 0, len(source))
        assert sorted(rows.tolist()) == list(range(len(source)))


def test_a_damaged_index_is_not_believed(dataset: PackedDataset) -> None:
    column = dataset.store.path / "index" / "by_place.npy"
    data = bytearray(column.read_bytes())
    data[-8] ^= 1
    column.write_bytes(data)
    with pytest.raises(CorruptFile, match="damaged in rows 0 to 11"):
        open_dataset(dataset.store.path)._samples.rows_at(np.arange(2))
