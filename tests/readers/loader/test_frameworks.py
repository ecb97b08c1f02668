"""Laws of a loader in frameworks that expect torch's DataLoader."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.batching import Numbers
from helpers.support import FORMATS, image_set, packed
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from packtrain import Loader, concat, open_dataset
from packtrain.errors import UsageError
from packtrain.orders import Weighted
from packtrain.transforms import RandomResizedCrop


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_set(tmp_path_factory.mktemp("images"), 11)


def rows_of(loader: Loader) -> list[list[int]]:
    return [batch[-1].tolist() for batch in loader]


def loader_of(dataset: Any, **options: Any) -> Loader:
    return Loader(dataset, 4, **{"shuffle": True, "seed": 7, "num_workers": 0, "fields": ("row",), **options})


class TestPickling:
    @pytest.mark.parametrize(
        "copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["deepcopy", "pickle"]
    )
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_copy_goes_on_where_the_loader_is(self, copied: Callable[[Any], Any], workers: int, images: Path) -> None:
        """A process that is spawned for training gets a copy of the loader."""
        with loader_of(Numbers(20), num_workers=workers, multiprocessing_context="fork") as loader:
            new, old = copied(loader), rows_of(loader)
            batches = iter(loader)
            next(batches)
            under_way = copied(loader)
            left = [batch[-1].tolist() for batch in batches]
            with new, under_way:
                assert rows_of(new) == old
                assert under_way.state_dict() == {**new.state_dict(), "consumed": 4}
                under_way.load_state_dict(under_way.state_dict())
                assert rows_of(under_way) == left
            assert (loader.epoch, new.epoch, under_way.epoch) == (2, 1, 2)

    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("io", ["mmap", "pread"])
    def test_a_dataset_that_was_read(self, listing: Path, name: str, io: str, tmp_path: Path) -> None:
        dataset = open_dataset(packed(listing, tmp_path / "out", name), [RandomResizedCrop(8)], io=io)
        joined = concat([dataset, dataset.subset([3, 1])])
        loader = loader_of(joined)
        images = torch.cat([batch[0] for batch in loader])
        data = pickle.dumps((joined, loader))
        assert len(data) < 20_000, "neither records nor the index are copied"
        again, copied = pickle.loads(data)
        assert again.record(-1) == joined.record(-1)
        copied.set_epoch(0)
        assert torch.equal(torch.cat([batch[0] for batch in copied]), images)

    def test_what_was_measured_stays_behind(self) -> None:
        loader = loader_of(Numbers(20))
        list(loader)
        copied = pickle.loads(pickle.dumps(loader))
        assert (loader.stats.total.batches, copied.stats.total.batches) == (5, 0)

    def test_batches_that_are_handed_out_again_stay_behind(self) -> None:
        loader = loader_of(Numbers(20), num_workers=1, multiprocessing_context="fork")
        with loader, loader.headspace():
            list(loader)
            assert len(pickle.dumps(loader)) < 20_000


class TestSampler:
    def test_a_loader_that_has_not_begun_takes_the_number(self) -> None:
        for name in ("sampler", "batch_sampler"):
            loader = loader_of(Numbers(20))
            getattr(loader, name).set_epoch(3)
            assert (loader.epoch, loader.state_dict()["consumed"]) == (3, 0)

    def test_a_loader_that_has_begun_goes_on_to_the_next_epoch_and_never_back(self) -> None:
        loader = loader_of(Numbers(20))
        loader.set_epoch(2)
        assert list(islice(loader, 2))
        for epoch in (0, 2):
            loader.sampler.set_epoch(epoch)
            assert (loader.epoch, loader.state_dict()["consumed"]) == (2, 8)
        for epoch in (5, 6):
            loader.sampler.set_epoch(epoch)
            assert (loader.epoch, loader.state_dict()["consumed"]) == (3, 0)

    @pytest.mark.parametrize("epoch", [4, 5])
    def test_a_state_is_kept_in_its_epoch_and_left_for_the_next_one(self, epoch: int) -> None:
        loader = loader_of(Numbers(20))
        loader.load_state_dict({**loader.state_dict(), "epoch": 4, "consumed": 8})
        loader.sampler.set_epoch(epoch)
        assert (loader.epoch, loader.state_dict()["consumed"]) == ((4, 8) if epoch == 4 else (5, 0))

    @pytest.mark.parametrize(
        ("options", "in_order"),
        [
            ({"shuffle": False}, True),
            ({"shuffle": True}, False),
            ({"shuffle": None, "sampler": Weighted([1] * 20)}, False),
        ],
        ids=["in order", "shuffled", "weighted"],
    )
    def test_only_rows_in_their_order_are_recognised_as_such(self, options: dict[str, Any], in_order: bool) -> None:
        assert isinstance(loader_of(Numbers(20), **options).sampler, SequentialSampler) == in_order

    @pytest.mark.parametrize(
        "rebuilt",
        [
            lambda loader: DataLoader(loader.dataset, batch_sampler=loader.batch_sampler),
            lambda loader: DataLoader(loader.dataset, sampler=loader.sampler),
            lambda loader: DataLoader(loader.dataset, batch_sampler=BatchSampler(loader.sampler, 4, False)),
        ],
        ids=["batch_sampler", "sampler", "batched"],
    )
    @pytest.mark.parametrize("shuffle", [True, False])
    def test_no_torch_loader_comes_of_it(self, rebuilt: Callable[[Loader], Any], shuffle: bool) -> None:
        with pytest.raises(UsageError, match=r"Use the loader itself.*docs/frameworks\.md"):
            list(rebuilt(loader_of(Numbers(20), shuffle=shuffle)))

    def test_it_does_not_keep_the_loader_alive(self) -> None:
        loader = loader_of(Numbers(20))
        loader.sampler.set_epoch(1)
        dropped = weakref.ref(loader)
        del loader
        assert dropped() is None


class TestWhatIsLeft:
    @pytest.mark.parametrize(
        ("rows", "world", "drop_last", "steps", "remainder"),
        [(20, 1, False, 5, 0), (21, 1, False, 6, 1), (21, 1, True, 5, 0), (21, 2, False, 3, 5), (3, 2, False, 1, 3)],
    )
    def test_batches_left_and_samples_in_the_last_step(
        self, rows: int, world: int, drop_last: bool, steps: int, remainder: int
    ) -> None:
        loader = loader_of(Numbers(rows), drop_last=drop_last, rank=0, world_size=world)
        assert (loader.remaining, loader.remainder) == (steps, remainder)
        for done, _ in enumerate(loader, 1):
            assert loader.remaining == steps - done
        assert loader.remaining == steps

    def test_a_foreign_sampler_knows_the_rows_of_its_rank_only(self) -> None:
        for world in (1, 2):
            loader = loader_of(Numbers(21), shuffle=None, sampler=range(21), rank=0, world_size=world)
            assert (loader.remaining, loader.remainder) == (6, -1)
