"""Laws of a look: a pass that is left after its first batch does not count, and the next one begins where it began."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from helpers.batching import Numbers
from torch.utils.data import Sampler

from packtrain import Loader
from packtrain.errors import LoaderError

ROWS, BATCH = 20, 4


def loader_of(rows: int = ROWS, **options: Any) -> Loader:
    options = {"shuffle": "sampler" not in options, "seed": 7, "num_workers": 0, "fields": ("row",), **options}
    return Loader(Numbers(rows), BATCH, multiprocessing_context="fork", **options)


def rows_of(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch[2].tolist()]


def epochs(count: int, **options: Any) -> list[list[int]]:
    """The rows of each epoch of a loader that nobody looks at."""
    with loader_of(**options) as loader:
        return [rows_of(loader) for _ in range(count)]


def test_set_epoch_goes_on_after_a_look() -> None:
    expected = epochs(3)
    # As `set_epoch` is called in programs, and as Lightning does it, which begins a pass before.
    for begins in (False, True):
        for called in ("loader", "sampler"):
            loader, found = loader_of(), []
            for epoch in range(3):
                passed = iter(loader) if begins else None
                (loader if called == "loader" else loader.sampler).set_epoch(epoch)
                found.append(rows_of(islice(passed or loader, 1)))
            assert found == [each[:BATCH] for each in expected], (begins, called)


def test_the_epoch_that_is_set_after_a_look_at_the_first_may_be_any() -> None:
    expected, loader = epochs(4), loader_of()
    next(iter(loader))
    passed = iter(loader)
    loader.sampler.set_epoch(3)
    assert rows_of(passed) == expected[3]


def test_the_epoch_that_is_set_while_a_look_lasts_may_be_any() -> None:
    expected, loader = epochs(6), loader_of()
    passed = iter(loader)
    next(passed)
    loader.sampler.set_epoch(5)
    assert rows_of(loader) == expected[5]


def test_the_same_batch_for_ever_is_warned_of() -> None:
    loader = loader_of()
    for _ in range(9):
        next(iter(loader))
    list(islice(loader, 2))
    for _ in range(10):
        next(iter(loader))
    with pytest.warns(RuntimeWarning, match="10 passes in a row") as caught:
        next(iter(loader))
    assert [each.filename for each in caught] == [__file__]


class Counting(Sampler[int]):
    """A torch Sampler that yields other rows each time."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        self.drawn += 1
        return iter([(self.drawn + row) % ROWS for row in range(ROWS)])

    def __len__(self) -> int:
        return ROWS


def test_a_sampler_is_not_drawn_once_more() -> None:
    sampler = Counting()
    loader = loader_of(sampler=sampler)
    seen = rows_of([next(iter(loader))])
    assert rows_of(loader)[:BATCH] == seen and sampler.drawn == 1


def failing(samples: list[Any]) -> Any:
    if samples[0][1] >= BATCH:
        raise ValueError("not this one")
    return samples


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_that_fails_after_its_first_batch_was_no_look(workers: int) -> None:
    """A program that goes on after an error would get the same batch and the same error for ever."""
    with loader_of(shuffle=False, fields=(), collate_fn=failing, num_workers=workers) as loader:
        for epoch in range(3):
            passed = iter(loader)
            assert loader.epoch == epoch and len(next(passed)) == BATCH
            with pytest.raises(LoaderError, match="not this one"):
                next(passed)


def test_a_look_on_one_rank_leaves_the_ranks_in_the_same_epoch() -> None:
    ranks = [loader_of(rank=rank, world_size=2) for rank in range(2)]
    for epoch in range(3):
        next(iter(ranks[epoch % 2]))
        assert sorted(row for rank in ranks for row in rows_of(rank)) == list(range(ROWS))
        assert [rank.epoch for rank in ranks] == [epoch + 1] * 2
