"""A dataset that is opened where it was staged keeps its copy from being evicted, here and in every worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers.staging.workers import InWorkers, leased, to_bytes, to_tensor
from helpers.support import START_METHODS, SUFFIXES, items, packed, tree
from torch.utils.data import DataLoader

from packtrain import Loader, StageOptions, concat, open_dataset, stage
from packtrain.errors import Leased, NoRoom, StagingError
from packtrain.staging import entries, evict


@pytest.fixture
def place(memory_path: Path) -> Path:
    """A folder to stage to."""
    return memory_path


@pytest.fixture(scope="module")
def dataset(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("dataset") / "train", "tar")


class TestOpening:
    def test_it_reads_the_copy(self, images: Path, tmp_path: Path, place: Path, format_name: str) -> None:
        source = packed(images, tmp_path / "set", format_name)
        expected = [(image.tobytes(), label) for image, label in items(open_dataset(source))]
        opened = open_dataset(source, stage=place)
        (entry,) = entries(place)
        assert opened.store.path == entry.path
        for shard in source.glob(f"*{SUFFIXES[format_name]}"):
            shard.unlink()
        assert [(image.tobytes(), label) for image, label in items(opened)] == expected

    def test_a_name_or_options_say_where(self, dataset: Path, place: Path) -> None:
        by_name = open_dataset(dataset, stage=str(place))
        by_options = open_dataset(dataset, stage=StageOptions(to=place, budget=1 << 30))
        assert by_name.store.path == by_options.store.path != dataset
        (elsewhere := place / "elsewhere").mkdir()
        with pytest.raises(NoRoom):
            open_dataset(dataset, stage=StageOptions(to=elsewhere, budget=10))

    def test_without_it_nothing_is_staged(self, dataset: Path, place: Path) -> None:
        before = tree(dataset)
        items(open_dataset(dataset))
        assert entries(place) == []
        assert tree(dataset) == before

    def test_a_staged_path_that_was_evicted(self, dataset: Path, place: Path) -> None:
        path = stage(dataset, StageOptions(to=place)).path
        evict(place)
        with pytest.raises(StagingError, match="has been evicted: stage it again"):
            open_dataset(path)


class TestLease:
    def test_as_long_as_the_dataset(self, dataset: Path, place: Path) -> None:
        opened = open_dataset(dataset, stage=place)
        with pytest.raises(Leased):
            evict(place, [entries(place)[0].id])
        items(opened)
        assert leased(place)
        del opened
        assert not leased(place)

    def test_by_its_path_alone(self, dataset: Path, place: Path) -> None:
        staged = stage(dataset, StageOptions(to=place))
        opened = open_dataset(staged.path)
        staged.lease.close()
        assert leased(place)
        del opened
        assert not leased(place)

    def test_as_long_as_what_was_made_of_it(self, dataset: Path, place: Path) -> None:
        opened = open_dataset(dataset, stage=place)
        views = concat([opened.subset([0, 3]), opened])
        loader = Loader(views.with_transform([to_bytes]), 2, num_workers=0)
        del opened
        assert leased(place)
        del views
        assert leased(place)
        del loader
        assert not leased(place)

    @START_METHODS
    def test_in_the_workers_of_torch(self, dataset: Path, place: Path, method: str) -> None:
        opened = open_dataset(dataset, InWorkers(place), stage=place)
        loader = DataLoader(opened, batch_size=3, num_workers=2, multiprocessing_context=method)
        rows = torch.cat([batch for batch, _ in loader])
        assert os.getpid() not in rows[:, 0]
        assert rows[:, 1].all()
        assert not rows[:, 2].any()
        del loader
        assert leased(place)
        del opened
        assert not leased(place)

    @START_METHODS
    def test_workers_that_are_left_alone_hold_it(self, dataset: Path, place: Path, method: str) -> None:
        """What the parent lets go of while they live is theirs still."""
        opened = open_dataset(dataset, to_tensor, stage=place)
        loader = DataLoader(opened, batch_size=1, num_workers=1, multiprocessing_context=method)
        batches = iter(loader)
        next(batches)
        assert opened.store._lease is not None
        opened.store._lease.close()
        assert leased(place)
        assert len(list(batches)) == 11
        del batches
        assert not leased(place)

    @START_METHODS
    def test_in_the_workers_of_our_loader(self, dataset: Path, place: Path, method: str) -> None:
        opened = open_dataset(dataset, stage=place)
        with Loader(
            opened.with_transform([InWorkers(place)]), 3, num_workers=2, multiprocessing_context=method
        ) as loader:
            del opened
            rows = torch.cat([torch.as_tensor(batch[0]) for batch in loader])
            assert os.getpid() not in rows[:, 0]
            assert rows[:, 1].all()
            assert not rows[:, 2].any()
            assert leased(place)
        del loader
        assert not leased(place)


def test_partly_staged_all_of_it_is_read(images: Path, tmp_path: Path, place: Path, format_name: str) -> None:
    source = packed(images, tmp_path / "set", format_name, shard_size=1)
    expected = [(image.tobytes(), label) for image, label in items(open_dataset(source))]
    stage(source, StageOptions(to=place)).lease.close()
    (entry,) = evict(place)
    opened = open_dataset(source, stage=StageOptions(to=place, budget=entry.bytes - 8192, partial=True))
    (entry,) = entries(place)
    assert 0 < entry.local_shards < entry.shards
    assert [(image.tobytes(), label) for image, label in items(opened)] == expected
