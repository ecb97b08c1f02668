"""Laws of the order in chunks: with the loader, its ranks, its states, and datasets of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.batching import Numbers, through_json
from helpers.support import packed, shard_bytes
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Loader, concat, open_dataset
from packtrain._readers.dataset.image_dataset import ImageDataset
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.loader.ranks import Ranks, World
from packtrain._storage.streams import cutting
from packtrain._storage.streams.chunks import ChunkTable
from packtrain.errors import UsageError
from packtrain.orders import ChunkShuffled, Order
from packtrain.testing import OrderContract

KEYS = st.integers(0, 2**64 - 1)


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 4), KEYS)
def test_rows_are_those_at_the_places_of_the_chunks(rows: int, lanes: int, window: int, key: int) -> None:
    order = ChunkShuffled(Numbers(rows), lanes=lanes, window=window)
    assert order.rows(key, 0, rows).tolist() == (rows - 1 - order.chunks.places(key, 0, rows)).tolist()


class TestGivenLanes(OrderContract):
    def order(self, rows: int) -> Order:
        return ChunkShuffled(Numbers(rows), lanes=1 + rows % 9, window=1 + rows % 4)


def loaders(rows: int, world: int, batch: int, state: Any = None, **options: Any) -> list[Loader]:
    dataset = Numbers(rows)
    order = ChunkShuffled(dataset, **options)
    made = [
        Loader(dataset, batch, sampler=order, seed=3, num_workers=0, fields=("row",), rank=rank, world_size=world)
        for rank in range(world)
    ]
    for loader in made:
        if state is not None:
            loader.load_state_dict(through_json(state))
    return made


def test_an_epoch_that_begins_takes_lanes_for_the_ranks_that_there_are() -> None:
    order = ChunkShuffled(Numbers(100))
    assert (order.lanes, order.parameters["window"]) == (32, 2)
    for step, nodes, lanes, window in (
        (256 * 8, 1, 32, 2),
        (250, 1, 50, 1),
        (251, 1, 32, 2),
        (256 * 8 * 12, 12, 48, 16),
        (256 * 8 * 16, 16, 32, 32),
        (256 * 8 * 256, 256, 256, 64),
    ):
        fitted = order.fitted(step, nodes)
        assert (fitted.lanes, fitted.parameters["window"]) == (lanes, window)
    assert order.fitted(32, 1) is order
    given = ChunkShuffled(Numbers(100), lanes=7, window=3)
    assert given.fitted(2048, 16) is given
    assert ChunkShuffled(Numbers(100), at_once=16).fitted(2048, 1).parameters["window"] == 1


def test_the_next_epoch_takes_other_lanes_than_the_rest_of_one_that_was_resumed() -> None:
    first = loaders(200, 1, 50)[0]
    next(iter(first))
    state = first.state_dict()
    assert state["parameters"]["lanes"] == 50
    second = loaders(200, 1, 64, state)[0]
    assert sum(len(batch[1]) for batch in second) == 150
    next(iter(second))
    assert (second.epoch, second.state_dict()["parameters"]["lanes"]) == (1, 32)


def test_lanes_and_window_of_a_state_count_more_than_those_given() -> None:
    state = loaders(40, 1, 4, lanes=4, window=3)[0].state_dict() | {"consumed": 4}
    other = loaders(40, 1, 4, lanes=5, window=1)[0]
    other.load_state_dict(state)
    assert other.state_dict() == state


@pytest.mark.parametrize("change", [{"chunks": 5}, {"places": 5}, {"lanes": 0}, {"lanes": "x"}, {"window": None}])
def test_a_state_of_other_chunks_is_refused(change: Any) -> None:
    loader = loaders(40, 1, 4)[0]
    state = loader.state_dict()
    with pytest.raises(UsageError, match="ChunkShuffled has lanes="):
        loader.load_state_dict(state | {"parameters": state["parameters"] | change})


@pytest.mark.parametrize("before", [True, False])
def test_a_sample_is_that_of_the_pass(before: bool) -> None:
    loader = loaders(70, 1, 50)[0]
    alone = [loader.sample(position)[1] for position in range(70)] if before else None
    rows = np.concatenate([batch[2] for batch in loader]).tolist()
    loader.set_epoch(0)
    assert [loader.sample(position)[1] for position in range(70)] == rows
    assert alone in (None, rows)
    assert loader.state_dict()["parameters"]["lanes"] == 50


class Told(Ranks):
    """Ranks that say on which machines they run."""

    def __init__(self, machines: str) -> None:
        super().__init__(None, None)
        self.machines = machines

    def now(self) -> World:
        return World(0, len(self.machines))

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        assert len(numbers) == 1
        return [[ord(machine)] for machine in self.machines]


def test_nodes_are_machines_with_equally_many_ranks_that_follow_each_other() -> None:
    for machines, nodes in (("a", 1), ("aabb", 2), ("bbaacc", 3), ("aaa", 1), ("abab", 4), ("aaabb", 5), ("abc", 3)):
        assert Told(machines).nodes() == nodes
    assert Ranks(1, 2).nodes() == 2


def test_who_does_not_know_its_chunks_is_refused() -> None:
    with pytest.raises(UsageError, match="object of type list does not know its chunks"):
        ChunkShuffled([1, 2, 3])  # type: ignore[arg-type]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of about two of the images of the tests."""
    monkeypatch.setattr(cutting, "ENOUGH", 2000)
    monkeypatch.setattr(cutting, "MOST", 3000)


def test_a_local_dataset_knows_its_chunks(images: Path, tmp_path: Path, format_name: str, small_chunks: None) -> None:
    """They are those that a cache of it has, so a state goes from one to the other."""
    dataset = open_dataset(packed(images, tmp_path / "out", format_name, shard_size=shard_bytes(images, 4)))
    store, bounds = dataset._samples.store, dataset._samples.chunk_bounds().tolist()
    assert isinstance(store, RecordStore)
    assert bounds == ChunkTable.of(store.manifest, store.index).bounds.tolist()
    assert len(bounds) > 1 + len(store.manifest.shards)


def test_chunks_of_subsets_and_concatenations(images: Path, tmp_path: Path, small_chunks: None) -> None:
    dataset = open_dataset(packed(images, tmp_path / "out", "tar", shard_size=shard_bytes(images, 4)))
    bounds = dataset._samples.chunk_bounds()
    both = concat([dataset, dataset])
    assert both._samples.chunk_bounds().tolist() == [*bounds[:-1], *(bounds + 12)]
    chosen = [7, -1, 3, 7, 0]
    subset = dataset.subset(chosen)
    places = np.sort(dataset._samples.places_of(np.array(chosen) % 12))
    chunks = np.searchsorted(bounds, places, side="right")
    borders = [place for place in range(1, 5) if chunks[place] != chunks[place - 1]]
    assert subset._samples.chunk_bounds().tolist() == [0, *borders, 5]
    assert dataset.subset([])._samples.chunk_bounds().tolist() == [0]
    assert len(ChunkShuffled(dataset.subset([]))) == 0


def test_each_place_lies_in_the_chunk_that_its_record_lies_in(images: Path, tmp_path: Path, small_chunks: None) -> None:
    """Of nested choices and concatenations, in which rows and datasets come twice."""
    one, two = (open_dataset(packed(images, tmp_path / name, "tar", seed=seed)) for seed, name in enumerate("ab"))
    random = np.random.default_rng(0)
    for _ in range(20):
        dataset: ImageDataset = concat([one, two.subset(random.integers(0, 12, 9)), one])
        dataset = concat([dataset.subset(random.integers(0, 33, 20)), two])
        bounds, store, number = dataset._samples.chunks()
        assert (np.diff(bounds) > 0).all() and bounds[-1] == len(dataset) == 32
        for place, row in enumerate(dataset._samples.rows_at(np.arange(32)).tolist()):
            packed_samples, inner = dataset._samples.locate(row)
            own = packed_samples.store.chunk_bounds()
            found = np.searchsorted(bounds, place, side="right") - 1
            assert dataset._samples.stores[store[found]] is packed_samples.store
            assert own[number[found]] <= packed_samples.places_of(np.array([inner]))[0] < own[number[found] + 1]
