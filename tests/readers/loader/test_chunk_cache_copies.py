"""Laws of a dataset in an object store of which this machine has a complete copy: the copy is read, in the same order.

The order follows the address and not what is at hand. Otherwise, two ranks of which only one has a copy would repeat
samples and leave others out.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from helpers.reading import PLENTY, ROWS, TRANSFORM, URL, Streamed, cache_of, content, epoch_of, streamed_in
from torch.utils.data import DataLoader

from packtrain import Loader, StageOptions, open_dataset, stage
from packtrain._readers.dataset.image_dataset import PackedDataset
from packtrain.errors import Leased, NoRoom, UsageError
from packtrain.orders import ChunkShuffled
from packtrain.staging import entries, evict

BATCH = 12


@pytest.fixture
def streamed(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streamed]:
    """A dataset of many small chunks in a store."""
    with streamed_in(memory_path, monkeypatch) as found:
        yield found


@pytest.fixture
def copied(streamed: Streamed) -> Path:
    """A folder for staged copies that has a complete one."""
    folder = streamed.remote.place.parent / "copied"
    folder.mkdir()
    stage(streamed.remote.dataset, folder).lease.close()
    return folder


def opened(place: Path, budget: int | None = PLENTY, **options: Any) -> PackedDataset:
    """The dataset, opened by its address."""
    return open_dataset(URL, TRANSFORM, stage=StageOptions(place, **options), budget=budget)


def loader_of(dataset: PackedDataset, **options: Any) -> Loader:
    """A loader that shuffles."""
    return Loader(dataset, BATCH, shuffle=True, seed=5, num_workers=0, fields=("row",), **options)


def test_a_complete_copy_is_read_and_nothing_is_fetched(streamed: Streamed, copied: Path) -> None:
    before = len(streamed.store.reads())
    dataset = opened(copied, budget=None)
    assert content(dataset) == content(streamed.local())
    assert len(streamed.store.reads()) == before
    (entry,) = entries(copied)
    assert entry.state == "complete" and entry.leased and entry.path == dataset.store.path
    with pytest.raises(Leased):
        evict(copied, [entry.id])


def test_a_part_of_a_copy_is_no_copy(streamed: Streamed, copied: Path) -> None:
    (entry,) = entries(copied)
    next(entry.path.glob("*.tar")).unlink()
    dataset = opened(copied)
    assert cache_of(dataset).complete is False
    assert content(dataset) == content(streamed.local())


def test_a_cache_that_has_everything_is_no_copy(streamed: Streamed) -> None:
    with loader_of(streamed.open()) as loader:
        epoch_of(loader)
    assert stage(streamed.remote.dataset, streamed.remote.place).copied > 0


@pytest.mark.complete
def test_order_and_state_are_those_of_a_cache(streamed: Streamed, copied: Path) -> None:
    with loader_of(streamed.open()) as one, loader_of(opened(copied)) as other:
        for _ in range(2):
            assert epoch_of(one) == epoch_of(other)
        for loader in (one, other):
            list(islice(loader, 3))
        state = one.state_dict()
        assert other.state_dict() == state and state["parameters"].keys() >= {"lanes", "window"}
    rest = []
    for place in (streamed.remote.place, copied):
        with loader_of(opened(place)) as resumed:
            resumed.load_state_dict(state)
            rest.append(epoch_of(resumed))
    assert rest[0] == rest[1] and len(rest[0]) == ROWS - 3 * BATCH


def test_it_is_the_same_dataset_in_another_process(copied: Path) -> None:
    dataset = pickle.loads(pickle.dumps(opened(copied)))
    assert dataset.store.chunks is None
    assert isinstance(loader_of(dataset)._progress.order, ChunkShuffled)
    assert len(list(DataLoader(dataset, BATCH, num_workers=1, multiprocessing_context="fork"))) == ROWS // BATCH


class TestStageOptions:
    """Reactions of a cache to each of them; docs/staging.md has the table."""

    def test_the_budget_of_the_folder_holds_for_caches(self, streamed: Streamed) -> None:
        with pytest.raises(NoRoom, match=r"the budget of 1\.0 MiB has only 1\.0 MiB left"):
            open_dataset(URL, stage=StageOptions(streamed.remote.place, budget=1 << 20), budget=PLENTY)

    def test_what_is_to_stay_free_stays_free(self, streamed: Streamed) -> None:
        with pytest.raises(NoRoom, match=r"must stay free \(`reserve`\)"):
            opened(streamed.remote.place, reserve=1 << 60, grace=3600)
        opened(streamed.remote.place)
        assert entries(streamed.remote.place)[0].promised_until == 0, "nothing was made that could have been promised"

    @pytest.mark.parametrize("complete", [False, True])
    def test_the_grace_period_keeps_it(self, streamed: Streamed, copied: Path, complete: bool) -> None:
        place = copied if complete else streamed.remote.place
        opened(place, grace=3600)
        (entry,) = entries(place)
        assert entry.promised_until > time.time() + 3000

    @pytest.mark.parametrize("option", [{"partial": True}, {"warm": True}, {"threads": 4}], ids=lambda each: str(each))
    @pytest.mark.parametrize("complete", [False, True])
    def test_what_only_a_copy_honours_is_refused_by_name(
        self, streamed: Streamed, copied: Path, option: dict[str, Any], complete: bool
    ) -> None:
        ((name, value),) = option.items()
        with pytest.raises(UsageError, match=rf"StageOptions\({name}={value}\): .* leave it out"):
            opened(copied if complete else streamed.remote.place, **option)
