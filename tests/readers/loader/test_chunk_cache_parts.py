"""Laws of a loader over chosen rows of datasets in object stores, and over several of them, each through a part of it.

The order is that of the same rows of local copies, each cache fetches what the order needs of it and nothing else, and
fetching processes are real.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.batching import through_json
from helpers.ranks import in_ranks
from helpers.reading import (
    PLENTY,
    ROWS,
    TRANSFORM,
    URL,
    Streamed,
    cache_of,
    content,
    epoch_of,
    small_dataset,
    streamed_in,
)
from helpers.streaming import kill_fetcher
from helpers.waiting import wait_until

from packtrain import Loader, concat, open_dataset, stage
from packtrain._readers.dataset.image_dataset import ImageDataset, PackedDataset
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.layout import ORDERS
from packtrain.errors import UsageError
from packtrain.orders import ChunkShuffled

BATCH = 12
FEWER = 180
"""Rows of the second dataset."""
OTHER = "s3://bucket/other"


@pytest.fixture
def streamed(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streamed]:
    """Two datasets of many small chunks in a store."""
    with streamed_in(memory_path, monkeypatch) as found:
        shutil.copytree(small_dataset(FEWER), found.remote.dataset.with_name("other"))
        yield found


def opened(streamed: Streamed, share: float, url: str = URL) -> PackedDataset:
    """A dataset through a cache for a share of its chunks."""
    place = streamed.remote.place
    cache = cache_of(open_dataset(url, stage=place, budget=PLENTY))
    budget = int(cache.state()["overhead"] + share * cache.table.allocated.sum())
    cache.close()
    return open_dataset(url, TRANSFORM, stage=place, budget=budget)


def local(streamed: Streamed, url: str = URL) -> PackedDataset:
    """The same where it lies."""
    return open_dataset(streamed.remote.dataset.with_name(url.rpartition("/")[2]), TRANSFORM)


def both(streamed: Streamed, share: float) -> ImageDataset:
    """Both datasets, one after the other, each through a cache for a share of its chunks."""
    return concat([opened(streamed, share), opened(streamed, share, OTHER)])


def both_local(streamed: Streamed) -> ImageDataset:
    """The same where they lie."""
    return concat([local(streamed), local(streamed, OTHER)])


def loader_of(dataset: ImageDataset, **options: Any) -> Loader:
    """A loader that shuffles."""
    options = {"shuffle": "sampler" not in options, "seed": 5, "num_workers": 0, "fields": ("row",), **options}
    return Loader(dataset, BATCH, **options)


def caches_of(dataset: ImageDataset) -> list[ChunkCache]:
    """The caches of a dataset."""
    return [store.chunks for store in dataset._samples.stores if store.chunks is not None]


def files_of(cache: ChunkCache) -> list[str]:
    """The files of orders in a cache."""
    folder = cache.entry / ORDERS
    return sorted(os.listdir(folder)) if folder.exists() else []


class TestSubsets:
    def test_chunks_of_which_no_row_is_chosen_are_never_fetched(self, streamed: Streamed) -> None:
        dataset = opened(streamed, 0.5)
        cache, bounds = cache_of(dataset), cache_of(dataset).table.bounds
        chosen = range(10, 20)
        rows = dataset._samples.rows_at(np.concatenate([np.arange(bounds[each], bounds[each + 1]) for each in chosen]))
        with loader_of(dataset.subset(rows)) as loader:
            for _ in range(3):
                assert sorted(row for row, _, _ in epoch_of(loader)) == list(range(len(rows)))
            assert np.flatnonzero(np.frombuffer(cache.present, np.uint8)).tolist() == list(chosen)
            assert cache.state()["fetched"] == len(chosen), "what fits is fetched once"

    def test_the_file_of_the_order_goes_with_the_loader(self, streamed: Streamed) -> None:
        dataset = opened(streamed, 1.2)
        cache, before = cache_of(dataset), cache_of(dataset).state()["overhead"]
        with loader_of(dataset.subset(range(300))) as loader, loader_of(dataset.subset(range(300, 500))) as other:
            next(iter(loader))
            next(iter(other))
            assert len(files_of(cache)) == 2
            state = cache.state()
            assert state["orders"] >= 2 * 4096 and state["overhead"] == before + state["orders"]
            loader.close()
            wait_until(lambda: len(files_of(cache)) == 1, "the file of the one is gone")
        wait_until(lambda: not files_of(cache), "that of the other, too")

    def test_a_whole_dataset_needs_no_file(self, streamed: Streamed) -> None:
        dataset = opened(streamed, 0.5)
        for same in (dataset, concat([dataset]), dataset.subset(range(ROWS))):
            with loader_of(same) as loader:
                next(iter(loader))
                assert files_of(cache_of(dataset)) == []


class TestConcatenations:
    @pytest.mark.complete
    @pytest.mark.parametrize("share", [0.5, 1.0])
    def test_each_row_comes_once_in_the_order_of_local_copies(self, streamed: Streamed, share: float) -> None:
        """The third part lies on this machine, and the fourth is chosen rows of the second."""
        parts, same = [
            concat([all_of, here, other.subset(range(50, 90))])
            for all_of, here, other in (
                (opened(streamed, share), local(streamed, OTHER), opened(streamed, share, OTHER)),
                (local(streamed), local(streamed, OTHER), local(streamed, OTHER)),
            )
        ]
        order = ChunkShuffled(same, lanes=4, window=1)
        with loader_of(parts, sampler=order) as one, loader_of(same, sampler=order) as other:
            for _ in range(2):
                found = epoch_of(one)
                assert found == epoch_of(other) and sorted(found) == content(same)

    @pytest.mark.complete
    def test_a_cache_that_holds_the_windows_fetches_each_chunk_once_in_an_epoch(self, streamed: Streamed) -> None:
        dataset = both(streamed, 0.6)
        with loader_of(dataset, sampler=ChunkShuffled(dataset, lanes=2, window=1)) as loader:
            for epoch in range(2):
                before = [cache.state()["fetched"] for cache in caches_of(dataset)]
                epoch_of(loader)
                for cache, count in zip(caches_of(dataset), before, strict=True):
                    fetched = cache.state()["fetched"] - count
                    # The next epoch's first chunks are fetched as this one ends.
                    assert fetched <= len(cache.table) * (1.2 if not epoch else 0.6), (epoch, fetched, len(cache.table))

    @pytest.mark.complete
    def test_fetchers_may_die(self, streamed: Streamed) -> None:
        dataset = both(streamed, 0.5)
        with loader_of(dataset) as loader:
            found: list[int] = []
            for number, (_, _, rows) in enumerate(loader):
                found += rows.tolist()
                if number % 20 == 3:
                    for cache in caches_of(dataset):
                        kill_fetcher(cache)
                        shutil.rmtree(cache.entry / ORDERS, ignore_errors=True)
            assert sorted(found) == list(range(ROWS + FEWER))

    def test_new_fetchers_hear_of_the_loader_and_its_order(self, streamed: Streamed) -> None:
        dataset = both(streamed, 0.5)
        with loader_of(dataset) as loader:
            next(iter(loader))
            for cache in caches_of(dataset):
                shutil.rmtree(cache.entry / ORDERS)
                kill_fetcher(cache)
            for cache in caches_of(dataset):
                wait_until(lambda cache=cache: cache.state()["readers"] == 1, "the loader is known again")  # type: ignore[misc]
                assert len(files_of(cache)) == 1

    def test_the_smallest_budget_counts_and_the_one_that_is_named_would_do(self, streamed: Streamed) -> None:
        parts = [opened(streamed, 1.0), opened(streamed, 0.2, OTHER)]
        dataset = concat(parts)
        with loader_of(dataset) as loader:
            next(iter(loader))
            sizes = loader.state_dict()["parameters"]
        assert sizes["lanes"] * sizes["window"] < 64
        order = ChunkShuffled(dataset, lanes=32, window=4)
        entry = cache_of(parts[1]).entry
        with (
            pytest.raises(UsageError, match=rf"{entry} needs .* raise the budget") as caught,
            loader_of(dataset, sampler=order) as loader,
        ):
            next(iter(loader))
        named = cache_of(parts[1]).state()["budget"] + (int(re.findall(r"by (\d+) MiB", str(caught.value))[0]) << 20)
        enough = concat([parts[0], open_dataset(OTHER, TRANSFORM, stage=streamed.remote.place, budget=named)])
        with loader_of(enough, sampler=order) as loader:
            assert len(epoch_of(loader)) == ROWS + FEWER

    def test_an_order_that_cannot_be_foreseen_is_refused(self, streamed: Streamed) -> None:
        dataset, others = both(streamed, 0.5), both_local(streamed).subset(range(ROWS + FEWER - 1, -1, -1))
        for options in ({"shuffle": False}, {"sampler": ChunkShuffled(others)}):
            with pytest.raises(UsageError, match=r"s3://bucket/(set|other) .*=\"\d+MiB\" or more; .* ChunkShuffled"):
                loader_of(dataset, **options)


def rows_of_an_epoch(
    rank: int, world: int, place: str, copied: str, budgets: list[int], state: Any, steps: int | None
) -> tuple[list[int], Any]:
    """Goes through an epoch; rank 0 has a copy of the first dataset."""
    first = open_dataset(URL, TRANSFORM, stage=copied if rank == 0 else place, budget=budgets[0])
    dataset = concat([first, open_dataset(OTHER, TRANSFORM, stage=place, budget=budgets[1])]).subset(range(10, 770))
    assert (first.store.chunks is None) == (rank == 0)
    with loader_of(dataset) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return [row for _, _, rows in islice(loader, steps) for row in rows.tolist()], loader.state_dict()


@pytest.mark.complete
def test_ranks_share_an_epoch_when_only_one_has_a_copy_of_a_part(
    streamed: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = [cache.budget for cache in caches_of(both(streamed, 0.5))]
    copied = tmp_path / "copied"
    copied.mkdir()
    stage(streamed.remote.dataset, copied).lease.close()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    arguments = os.fspath(streamed.remote.place), os.fspath(copied), budgets
    before = in_ranks(2, rows_of_an_epoch, *arguments, None, 9, group=tmp_path / "first")
    assert before[0][1] == before[1][1]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    after = in_ranks(3, rows_of_an_epoch, *arguments, through_json(before[0][1]), None, group=tmp_path / "second")
    rows = [row for rows, _ in (*before, *after) for row in rows]
    assert set(rows) == set(range(760)) and len(rows) - 760 < 3
