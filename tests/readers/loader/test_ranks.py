"""Laws of rank and seed: both are those of the moment when a pass begins, and all ranks agree on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.batching import Numbers, through_json
from helpers.ranks import in_ranks
from helpers.resuming import ROWS
from torch.utils.data import DistributedSampler

from packtrain import Loader
from packtrain.errors import UsageError


def loader_of(**options: Any) -> Loader:
    return Loader(Numbers(ROWS), 3, **{"num_workers": 0, "fields": ("position", "row"), **options})


def join(rank: int, world: int, group: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{group}", world_size=world, rank=rank)


def rows(loader: Loader) -> list[int]:
    return [row for batch in loader for row in batch[3].tolist()]


def together(parts: list[list[int]]) -> list[int]:
    """The rows of all ranks without those that fill the last step."""
    return sorted(set().union(*parts))


def refused(action: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        action()
    return str(caught.value)


class TestTheRankIsReadWhenAPassBegins:
    def test_of_a_loader_made_before_the_process_group(self, tmp_path: Path) -> None:
        results = in_ranks(2, self.made_before, tmp_path / "group")
        parts = [found for found, *_ in results]
        assert together(parts) == list(range(ROWS))
        assert sum(map(len, parts)) < ROWS + 2, "each row went to one rank only"
        assert [lengths for _, lengths, _ in results] == [(8, 4)] * 2
        assert [place for *_, place in results] == [(0, 2), (1, 2)]

    @staticmethod
    def made_before(rank: int, world: int, group: Path) -> Any:
        loader = loader_of(shuffle=True, seed=1)
        before = len(loader)
        assert (loader.rank, loader.world_size) == (0, 1)
        join(rank, world, group)
        lengths, found = (before, len(loader)), rows(loader)
        place = loader.rank, loader.world_size
        assert rows(loader) != found
        dist.destroy_process_group()
        return found, lengths, place

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_change_in_the_middle_of_a_pass_is_an_error(self, tmp_path: Path, workers: int) -> None:
        results = in_ranks(2, self.joined_within, tmp_path / "group", workers)
        for rank, (text, left) in enumerate(results):
            assert f"rank 0 of 1 when the pass began, now it is rank {rank} of 2" in text
            assert left == 4, "the next pass goes through a whole epoch of the rank's own rows"

    @staticmethod
    def joined_within(rank: int, world: int, group: Path, workers: int) -> Any:
        with loader_of(seed=1, num_workers=workers, multiprocessing_context="fork") as loader:
            batches = iter(loader)
            next(batches)
            join(rank, world, group)
            text = refused(lambda: next(batches))
            left = sum(1 for _ in loader)
            dist.destroy_process_group()
            return text, left

    def test_what_was_given_stays(self, tmp_path: Path) -> None:
        assert in_ranks(2, self.given, tmp_path / "group") == [(1, 5)] * 2

    @staticmethod
    def given(rank: int, world: int, group: Path) -> Any:
        loader = loader_of(seed=1, rank=1, world_size=5)
        batches = iter(loader)
        next(batches)
        join(rank, world, group)
        next(batches)
        place = loader.rank, loader.world_size
        dist.destroy_process_group()
        return place

    def test_the_states_of_torchs_samplers_know_it_too(self, tmp_path: Path) -> None:
        assert in_ranks(2, self.with_torchs_sampler, tmp_path / "group") == [(0, 2), (1, 2)]

    @staticmethod
    def with_torchs_sampler(rank: int, world: int, group: Path) -> Any:
        sampler: DistributedSampler[Any] = DistributedSampler(Numbers(ROWS), world, rank)
        loader = loader_of(seed=1, sampler=sampler)
        loader.state_dict()
        join(rank, world, group)
        next(iter(loader))
        state = loader.state_dict()["sampler"]
        again = loader_of(seed=1, sampler=sampler)
        again.load_state_dict(loader.state_dict())
        assert sum(1 for _ in again) == 3
        dist.destroy_process_group()
        return state["rank"], state["world_size"]


class TestSeeds:
    def test_torchs_seed_is_the_seed(self) -> None:
        found = []
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            loader = loader_of(shuffle=True)
            found.append((rows(loader), rows(loader)))
        assert found[0] == found[2] != found[1]
        assert found[0] == (rows(same := loader_of(shuffle=True, seed=1)), rows(same))

    def test_it_is_read_when_the_first_pass_begins_and_then_stays(self) -> None:
        loader = loader_of(shuffle=True)
        torch.manual_seed(5)
        batches = iter(loader)
        torch.manual_seed(6)
        first = [row for batch in batches for row in batch[3].tolist()]
        torch.manual_seed(7)
        reference = loader_of(shuffle=True, seed=6)
        assert (first, rows(loader)) == (rows(reference), rows(reference))
        assert loader.state_dict()["seed"] == 6

    def test_making_batches_in_this_process_does_not_change_it(self) -> None:
        torch.manual_seed(3)
        list(loader_of(seed=1))
        assert torch.initial_seed() == 3

    def test_a_sample_before_the_first_pass_is_that_of_the_pass(self) -> None:
        loader = loader_of(shuffle=True)
        torch.manual_seed(4)
        image, _, position, row = loader.sample(5)
        torch.manual_seed(5)
        batches = list(loader)
        assert (position, row) == (5, batches[1][3][2]) and torch.equal(image, batches[1][0][2])

    def test_ranks_given_by_hand_need_one(self) -> None:
        assert "give seed=" in refused(lambda: loader_of(rank=0, world_size=2))
        assert rows(loader_of(rank=0, world_size=1)) == list(range(ROWS))

    def test_the_ranks_agree_although_torchs_seeds_differ(self, tmp_path: Path) -> None:
        results = in_ranks(3, self.seeded_by_rank, group=tmp_path / "group")
        for number in range(2):
            parts = [found[number] for found, _ in results]
            assert together(parts) == list(range(ROWS)) and sum(map(len, parts)) < ROWS + 3
        assert [state for _, state in results] == [results[0][1]] * 3
        assert results[0][1]["seed"] == (1 << 64) - 5, "that of rank 0, in 64 bits"

    @staticmethod
    def seeded_by_rank(rank: int, world: int) -> Any:
        torch.manual_seed(-5 + rank)
        with loader_of(shuffle=True, num_workers=1, multiprocessing_context="fork") as loader:
            return (rows(loader), rows(loader)), loader.state_dict()

    def test_a_loader_that_was_used_alone_agrees_again(self, tmp_path: Path) -> None:
        parts = in_ranks(2, self.first_alone, tmp_path / "group")
        assert together(parts) == list(range(ROWS)) and sum(map(len, parts)) < ROWS + 2

    @staticmethod
    def first_alone(rank: int, world: int, group: Path) -> Any:
        torch.manual_seed(rank)
        loader = loader_of(shuffle=True)
        assert rows(loader) != list(range(ROWS))
        join(rank, world, group)
        found = rows(loader)
        dist.destroy_process_group()
        return found

    def test_one_rank_may_ask_for_length_and_state(self, tmp_path: Path) -> None:
        """Neither starts a collective, for which the other ranks would have to wait."""
        assert in_ranks(2, self.only_rank_0, group=tmp_path / "group")[0][:2] == (None, 4)

    @staticmethod
    def only_rank_0(rank: int, world: int) -> Any:
        loader = loader_of(shuffle=True)
        found: Any = None, 4, None
        if rank == 0:
            found = loader.state_dict()["seed"], len(loader), refused(lambda: loader.sample(0))
            assert "the first pass" in found[2]
        dist.barrier()
        return found


class TestStatesWithoutASeed:
    def test_before_the_first_pass_it_is_open(self) -> None:
        loader = loader_of(shuffle=True)
        loader.set_epoch(2)
        state = through_json(loader.state_dict())
        assert (state["seed"], state["epoch"]) == (None, 2)
        torch.manual_seed(8)
        again, given, reference = (
            loader_of(shuffle=True),
            loader_of(shuffle=True, seed=3),
            loader_of(seed=8, shuffle=True),
        )
        for each in (again, given):
            each.load_state_dict(state)
            assert each.state_dict()["epoch"] == 2
        reference.set_epoch(2)
        assert rows(again) == rows(reference)
        assert given.state_dict()["seed"] == 3

    def test_the_seed_of_a_state_rules(self) -> None:
        torch.manual_seed(11)
        first = loader_of(shuffle=True)
        batches = iter(first)
        before = [row for _ in range(2) for row in next(batches)[3].tolist()]
        torch.manual_seed(12)
        second = loader_of(shuffle=True)
        second.load_state_dict(through_json(first.state_dict()))
        assert sorted(before + rows(second)) == list(range(ROWS))
        assert second.state_dict()["seed"] == 11

    def test_of_a_sampler(self) -> None:
        order = list(range(ROWS))[::-1]
        loader = loader_of(sampler=order)
        state = through_json(loader.state_dict())
        assert state["seed"] is None
        again = loader_of(sampler=order)
        again.load_state_dict(state)
        assert rows(again) == order

    @pytest.mark.filterwarnings("ignore")
    def test_of_a_distributed_checkpoint(self, tmp_path: Path, checkpoint: Any) -> None:
        torch.manual_seed(21)
        saved = loader_of(shuffle=True)
        found = [row for _, batch in zip(range(3), saved, strict=False) for row in batch[3].tolist()]
        checkpoint.save({"loader": saved}, checkpoint_id=tmp_path, no_dist=True)
        torch.manual_seed(22)
        loaded = loader_of(shuffle=True)
        checkpoint.load({"loader": loaded}, checkpoint_id=tmp_path, no_dist=True)
        assert sorted(found + rows(loaded)) == list(range(ROWS))
