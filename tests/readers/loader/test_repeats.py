"""Laws of repeated augmentation: what timm's sampler gives for the same shuffle, and exact resume."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.support import import_torchvision, packed, require_module
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Loader, open_dataset
from packtrain._readers.loader.schedule import Schedule
from packtrain.errors import UsageError
from packtrain.orders import BlockShuffled, Order, RepeatedAugmentation, Sequential, Shuffled
from packtrain.testing import OrderContract
from packtrain.transforms import RandomCrop

KEYS = st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def sampler() -> Any:
    """timm's sampler, which is DeiT's."""
    require_module("timm")
    import_torchvision()
    from timm.data.distributed_sampler import RepeatAugSampler

    return RepeatAugSampler


def rows_of(order: RepeatedAugmentation, key: int, batch: int, rank: int, world: int) -> list[list[int]]:
    """The rows of each step of a rank."""
    schedule, found, consumed = Schedule(len(order), batch, rank, world, dealing=order.dealing), [], 0
    every = order.rows(key, 0, len(order))
    while step := schedule.step(consumed):
        found.append(every[step.positions].tolist())
        consumed = step.consumed
    return found


@given(st.integers(1, 900), st.integers(1, 5), st.integers(1, 6), st.integers(1, 70), KEYS)
@pytest.mark.complete
def test_each_rank_gets_what_timms_sampler_gives_for_the_same_shuffle(
    sampler: Any, rows: int, repeats: int, world: int, batch: int, key: int
) -> None:
    order = RepeatedAugmentation(rows, repeats)
    shuffle = Shuffled(rows).rows(key, 0, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randperm", lambda *_, **__: torch.from_numpy(shuffle))
        theirs = [list(sampler(range(rows), world, rank, num_repeats=repeats)) for rank in range(world)]
    for rank, wanted in enumerate(theirs):
        ours = list(itertools.chain(*rows_of(order, key, batch, rank, world)))
        # Where the number of ranks does not divide the epoch, they drop the rest or go on, and we fill up.
        even = len(order) // world
        assert ours[:even] == wanted[:even]
        assert all(len(found) - even <= (len(order) % world > 0) for found in (ours, wanted))


class TestRepeatedAugmentation(OrderContract):
    each_row_once = False

    def order(self, rows: int) -> Order:
        return RepeatedAugmentation(rows, 1 + rows % 4, samples=rows)


@given(st.integers(1, 600), st.integers(1, 4), KEYS, st.data())
def test_a_row_comes_as_often_as_it_should(rows: int, repeats: int, key: int, data: st.DataObject) -> None:
    samples = data.draw(st.integers(0, rows * repeats))
    order = RepeatedAugmentation(rows, repeats, samples=samples)
    found = order.rows(key, 0, samples)
    assert [len(list(group)) for _, group in itertools.groupby(found.tolist())][:-1] == [repeats] * (
        -(-samples // repeats) - 1
    )
    assert max(Counter(found.tolist()).values(), default=0) <= repeats


def test_the_repeats_of_a_row_are_on_different_ranks_in_the_same_step() -> None:
    order = RepeatedAugmentation(512, 3)
    steps = [rows_of(order, 1, 9, rank, 3) for rank in range(3)]
    for ranks in list(zip(*steps, strict=True))[:-1]:
        assert len(ranks[0]) == 9 and ranks[0] == ranks[1] == ranks[2]


def test_other_orders_can_be_repeated(images: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed(images, tmp_path / "out", "tar"), RandomCrop(9))
    blocks = BlockShuffled(dataset, block=2, window=2)
    order = RepeatedAugmentation(blocks, 2, samples=2 * len(dataset))
    assert order.rows(5, 0, len(order)).tolist() == blocks.rows(5, 0, len(dataset)).repeat(2).tolist()
    assert order.parameters != RepeatedAugmentation(len(dataset), 2).parameters
    assert RepeatedAugmentation(Sequential(8)).parameters != RepeatedAugmentation(8).parameters
    assert order.dataset_rows == len(dataset) == len(Loader(dataset, 2, sampler=order, seed=0))


@pytest.mark.parametrize("workers", [0, 2])
def test_each_repeat_is_another_augmentation(images: Path, tmp_path: Path, workers: int) -> None:
    dataset = open_dataset(packed(images, tmp_path / "out", "tar"), RandomCrop(20))
    order = RepeatedAugmentation(len(dataset), 3, samples=3 * len(dataset))
    fixed: dict[str, Any] = {"sampler": order, "seed": 4, "fields": ("row", "position")}
    alone = Loader(dataset, 1, num_workers=0, **fixed)
    wanted = {int(place): (pixels[0], int(row)) for pixels, _, row, place in alone}
    for start in range(0, len(order), 3):
        made = [wanted[start + number] for number in range(3)]
        assert len({image.numpy().tobytes() for image, _ in made}) == 3 and len({row for _, row in made}) == 1
    seen: list[int] = []
    for rank in range(3):
        place: dict[str, Any] = {"rank": rank, "world_size": 3, "multiprocessing_context": "fork"}
        with Loader(dataset, 4, num_workers=workers, **fixed, **place) as loader:
            for pixels, _, rows, positions in loader:
                for image, *known in zip(pixels, rows.tolist(), positions.tolist(), strict=True):
                    assert torch.equal(image, wanted[known[1]][0]) and known[0] == wanted[known[1]][1]
                seen += positions.tolist()
    assert sorted(seen) == list(range(len(order)))


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="samples=7: 2 rows, each 3 times, are only 6 positions"):
        RepeatedAugmentation(2, samples=7)
    with pytest.raises(UsageError, match="repeats=0"):
        RepeatedAugmentation(2, 0)
    assert [len(RepeatedAugmentation(rows)) for rows in (0, 3, 255, 256, 1000, 1281167)] == [
        0,
        3,
        255,
        256,
        768,
        1281024,
    ]
