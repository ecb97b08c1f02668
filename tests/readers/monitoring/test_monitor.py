"""Laws of `watch`: it hands out the same batches, with figures about them."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
from helpers.batching import Numbers
from helpers.hazards import Numbered
from torch.utils.data import DataLoader, DistributedSampler

from packtrain import watch
from packtrain._extras.watch import samples_in
from packtrain._readers.monitoring.stats import Meter

ROWS, BATCH = 23, 4


def loader(workers: int = 0, **options: Any) -> DataLoader[Any]:
    context = "fork" if workers else None
    return DataLoader(Numbered(ROWS), BATCH, num_workers=workers, multiprocessing_context=context, **options)


def rows_of(batches: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_epoch_after_epoch(workers: int) -> None:
    watched = watch(loader(workers))
    for epoch in (1, 2):
        assert rows_of(watched) == rows_of(loader())
        assert (watched.stats.present.batches, watched.stats.present.samples) == (len(watched), ROWS)
        assert watched.stats.total.samples == epoch * ROWS
        assert 0 <= watched.stats.present.starved < len(watched)
    assert watched.stats.present.setup.workers == workers


def test_what_it_stands_for_can_be_seen_and_set() -> None:
    sampler: Any = DistributedSampler(Numbers(ROWS), num_replicas=2, rank=1, seed=3)
    inner = loader(sampler=sampler)
    watched = watch(inner)
    assert (len(watched), watched.batch_size, watched.dataset) == (len(inner), BATCH, inner.dataset)
    assert bool(watched)
    first = rows_of(watched)
    watched.sampler.set_epoch(1)
    assert sampler.epoch == 1
    assert rows_of(watched) != first
    watched.timeout = 7
    assert inner.timeout == 7
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = watched.no_such_thing
    other = copy.copy(watched)
    assert other.dataset is inner.dataset
    assert repr(watched) == f"watch({inner!r})"


def test_anything_can_be_watched() -> None:
    watched = watch([1, 2] for _ in range(3))
    assert list(watched) == [[1, 2]] * 3
    assert watched.stats.present.samples == 6
    assert list(watched) == []
    with pytest.raises(TypeError, match="len"):
        len(watched)
    assert "num_workers" not in str(watched.stats.total)


def test_an_error_and_a_break_come_through() -> None:
    def failing() -> Any:
        yield [1]
        raise ValueError("no such luck")

    watched = watch(failing())
    with pytest.raises(ValueError, match="no such luck"):
        list(watched)
    assert watched.stats.present.batches == 1
    for _ in (watched := watch(loader(2))):
        break
    assert watched.stats.present.batches == 1


@pytest.mark.parametrize(("waits", "works", "bottleneck"), [(20, 0, "data-bound"), (0, 20, "compute-bound")])
def test_who_waits_is_told_apart_from_who_works(waits: int, works: int, bottleneck: str) -> None:
    def batches() -> Any:
        for _ in range(12):
            clock[0] += waits
            yield [0]

    clock = [1]
    watched = watch(batches())
    watched.stats = Meter(watched.stats.present.setup, lambda: clock[0])  # type: ignore[misc]
    for _ in watched:
        clock[0] += works
    assert str(watched.stats).startswith(f"{bottleneck}: ")
    assert "unknown" in watched.stats.report()


def test_a_batch_is_let_go_of_when_the_consumer_drops_it() -> None:
    batches = iter(watch(torch.zeros(2, 3) for _ in range(3)))
    first = next(batches)
    gone = weakref.ref(first)
    del first
    assert gone() is None


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 3), 5),
        (torch.zeros(()), 0),
        ((torch.zeros(5, 3), torch.zeros(5)), 5),
        ({"text": ["a", "b"], "image": torch.zeros(2, 3)}, 2),
        (["a", "b", "c"], 3),
        ([1, 2], 2),
        (None, 0),
        ("abc", 0),
        ([], 0),
    ],
)
def test_samples_in_a_batch(batch: Any, samples: int) -> None:
    assert samples_in(batch) == samples
