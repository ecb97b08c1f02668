"""Laws of resume: what is handed out before and after it is the epoch exactly once, whichever process makes it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.batching import Numbers, jitter, through_json
from helpers.resuming import FIELDS, ORDERS, SEED, Run, Topology, numbers
from helpers.support import FORMATS, image_set, packed, param_id
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, WeightedRandomSampler

from packtrain import Loader, concat, open_dataset
from packtrain.errors import UsageError
from packtrain.orders import Weighted
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

# Rows of epoch 2 of 20 rows with seed 7 from position 16, and what the three generators give at position 16.
GOLDEN_ROWS = [6, 2, 16, 1]
GOLDEN_DRAWS = [0.8132438284162823, 0.7160419642941693, 0.6246813391102125]

LENGTHS = (0, 1, 2, 7, 23, 40)


def topologies(*workers: int) -> st.SearchStrategy[Topology]:
    return st.builds(Topology, st.integers(1, 4), st.integers(1, 9), st.booleans(), st.sampled_from(workers))


def schedules(*workers: int, size: int = 12) -> st.SearchStrategy[list[Any]]:
    """Lists of actions of a `Run`."""
    actions = (
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("restart"), topologies(*workers)),
        st.tuples(st.just("begin")),
        st.tuples(st.just("leave")),
        st.tuples(st.just("set_epoch"), st.integers(0, 3)),
        st.tuples(st.just("save")),
        st.tuples(st.just("load")),
    )
    return st.lists(st.one_of(*actions), min_size=1, max_size=size)


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Packed images with packtrain's transforms, with foreign ones, as subsets, and all of these together."""
    folder = tmp_path_factory.mktemp("resumed")
    listing = image_set(folder / "images", 20)
    fused, foreign = ([RandomResizedCrop((7, 9)), RandomHorizontalFlip()], jitter)
    whole = open_dataset(packed(listing, folder / "tar", "tar"), fused)
    drawn = open_dataset(packed(listing, folder / "lmdb", "lmdb"), foreign)
    part = whole.subset([3, 3, -1, 8, 0, 12, 5])
    return {"fused": whole, "foreign": drawn, "subset": part, "concat": concat([part, drawn.subset(range(9)), whole])}


@given(st.sampled_from(LENGTHS), st.sampled_from(sorted(ORDERS)), topologies(0), schedules(0))
def test_any_schedule_of_steps_saves_and_restarts(
    length: int, order: str, first: Topology, schedule: list[Any]
) -> None:
    with Run(numbers(length), order, first) as run:
        for action in schedule:
            run.do(*action)
        # Whatever happened so far, the present epoch is completed, and the next one follows.
        run.do("take", length + 8)


@pytest.mark.complete
@given(st.sampled_from(LENGTHS), st.sampled_from(sorted(ORDERS)), topologies(1, 2), schedules(0, 1, 2, size=5))
def test_the_same_with_worker_processes(length: int, order: str, first: Topology, schedule: list[Any]) -> None:
    with Run(numbers(length), order, first) as run:
        for action in schedule:
            run.do(*action)
        run.do("take", 3)


PACKS = ("fused", "foreign", "subset", "concat")


@pytest.mark.stress
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=480)
@given(
    st.sampled_from((*LENGTHS, *PACKS)),
    st.sampled_from(sorted(ORDERS)),
    topologies(0, 1, 2, 3),
    schedules(0, 1, 2, 3, size=15),
)
def test_hundreds_of_schedules(
    packs: dict[str, Any], which: int | str, order: str, first: Topology, schedule: list[Any]
) -> None:
    with Run(numbers(which) if isinstance(which, int) else packs[which], order, first) as run:
        for action in schedule:
            run.do(*action)
        run.do("take", 8)


def loader_of(rows: int = 20, batch: int = 4, **options: Any) -> Loader:
    options = {"shuffle": "sampler" not in options, "seed": SEED, "num_workers": 0, "fields": FIELDS, **options}
    return Loader(Numbers(rows), batch, **options)


def positions(batches: Any) -> list[int]:
    return [position for batch in batches for position in batch[2].tolist()]


class TestStates:
    def test_the_state_is_not_the_loaders_own(self) -> None:
        loader = loader_of(sampler=Foreign())
        state = loader.state_dict()
        kept = through_json(state)
        list(loader)
        assert state == kept
        loader.load_state_dict(state)
        list(loader)
        assert state == kept

    @pytest.mark.parametrize("epoch", [0, 3])
    def test_a_pass_that_gave_nothing_goes_through_the_epoch_that_is_set(self, epoch: int) -> None:
        """Lightning calls `iter` before it says which epoch that is."""
        loader, expected = loader_of(), loader_of()
        batches = iter(loader)
        loader.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert [batch[3].tolist() for batch in batches] == [batch[3].tolist() for batch in expected]
        assert loader.epoch == epoch + 1

    def test_the_end_of_an_epoch_finishes_it_or_begins_the_one_that_is_set(self) -> None:
        """In a loop that was saved between the last batch and the end of the pass, and in the next epoch."""
        loader = loader_of()
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
        state = through_json(loader.state_dict())
        assert (state["epoch"], state["consumed"], loader.remaining) == (0, 20, 0)
        finished, begun = loader_of(), loader_of()
        for resumed in (finished, begun):
            resumed.load_state_dict(state)
        finished.set_epoch(0)
        begun.set_epoch(1)
        assert positions(finished) == []
        assert positions(finished) == positions(begun) == list(range(20))
        assert finished.epoch == begun.epoch == 2
        list(batches)
        assert loader.state_dict() == {**state, "epoch": 1, "consumed": 0}

    def test_what_an_old_state_means_stays_for_ever(self) -> None:
        """Written down when version 1 was made: other numbers would change every resumed training run."""
        loader = loader_of()
        loader.load_state_dict(
            {"version": 1, "seed": SEED, "epoch": 2, "consumed": 16, "length": 20, "order": "Shuffled"}
        )
        ((images, labels, *_),) = loader
        assert labels.tolist() == GOLDEN_ROWS
        torch.testing.assert_close(images[0, 1:], torch.tensor(GOLDEN_DRAWS, dtype=torch.float64), rtol=0, atol=1e-6)


class TestRefusals:
    @pytest.mark.parametrize(
        ("action", "begun"),
        [("set_epoch", True), *((action, begun) for action in ("load", "close", "iter") for begun in (True, False))],
    )
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_pass_that_was_ended_says_so(self, action: str, begun: bool, workers: int) -> None:
        with loader_of(num_workers=workers, multiprocessing_context="fork") as loader:
            state = loader.state_dict()
            batches = iter(loader)
            if begun:
                next(batches)
            if action == "load":
                loader.load_state_dict(state)
            elif action == "set_epoch":
                loader.set_epoch(5)
            elif action == "close":
                loader.close()
            else:
                iter(loader)
            before = loader.state_dict()
            with pytest.raises(UsageError, match="this pass has ended"):
                next(batches)
            assert loader.state_dict() == before
            assert next(batches, None) is None
            # The loader itself continues as if that pass had not been asked.
            assert len(positions(loader)) == 20

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"version": 2}, "version 2, not 1"),
            ({"version": "1"}, "version '1', not 1"),
            ({"version": None}, "version None, not 1"),
            ({"length": 21}, "21 positions in an epoch, this one has 20: is it another dataset?"),
            ({"order": "Sequential"}, "order Sequential, this one has Shuffled"),
            ({"order": "SamplerOrder"}, "order is 'SamplerOrder', sampler is None"),
            ({"order": None}, "order"),
            ({"consumed": 21}, "21 of 20 positions are consumed"),
            ({"consumed": -1}, "consumed is -1"),
            ({"consumed": 4.0}, "consumed is 4.0"),
            ({"consumed": True}, "consumed is True"),
            ({"epoch": -1}, "epoch is -1"),
            ({"epoch": "3"}, "epoch is '3'"),
            ({"seed": None}, "seed is None"),
            ({"length": [20]}, r"length is \[20\]"),
            ({"sampler": 5, "order": "SamplerOrder"}, "sampler is 5"),
            ({"sampler": {"world_size": 1}}, r"sampler is \{'world_size': 1\}"),
            ({"more": 1}, "more"),
        ],
        ids=param_id,
    )
    def test_a_state_that_is_not_this_loaders(self, changes: dict[str, Any], message: str) -> None:
        loader = loader_of()
        next(iter(loader))
        before = loader.state_dict()
        with pytest.raises(UsageError, match=message):
            loader.load_state_dict({**before, **changes})
        assert loader.state_dict() == before, "a refused state changes nothing"

    @pytest.mark.parametrize("name", ["version", "seed", "epoch", "consumed", "length", "order"])
    def test_a_state_that_lacks_something(self, name: str) -> None:
        state = loader_of().state_dict()
        del state[name]
        with pytest.raises(UsageError, match=f"{name}"):
            loader_of().load_state_dict(state)

    @pytest.mark.parametrize("state", [None, [], 5, "state", [("version", 1)]], ids=param_id)
    def test_what_is_no_state_at_all(self, state: Any) -> None:
        with pytest.raises(UsageError, match="not the state of a loader"):
            loader_of().load_state_dict(state)

    def test_the_seed_may_be_any_integer(self) -> None:
        for seed in (-1, 2**63, 2**70):
            loader = loader_of(seed=seed)
            again = loader_of()
            again.load_state_dict(through_json(loader.state_dict()))
            assert positions(again) == list(range(20))


class Foreign(Sampler[int]):
    """A sampler that is not packtrain's. Its state is the number of epochs that it has drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        self.drawn += 1
        yield from torch.randperm(20, generator=torch.Generator().manual_seed(self.drawn)).tolist()

    def __len__(self) -> int:
        return 20

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]


SAMPLERS: dict[str, Any] = {
    "random": lambda rank, world: RandomSampler(range(20)),
    "weighted": lambda rank, world: WeightedRandomSampler(range(1, 21), 17),
    "distributed": lambda rank, world: DistributedSampler(range(20), world, rank, seed=3),  # type: ignore[arg-type]
    "own state": lambda rank, world: Foreign(),
    "list": lambda rank, world: [5, 3, 5, 0, 19, 2],
}


class TestForeignSamplers:
    @pytest.mark.complete
    @pytest.mark.parametrize("name", SAMPLERS)
    @pytest.mark.parametrize("world", [1, 3])
    def test_they_go_on_where_they_were(self, name: str, world: int) -> None:
        for rank in range(world):

            def made(batch: int, rank: int = rank) -> Loader:
                sampler = SAMPLERS[name](rank, world)
                return loader_of(batch=batch, sampler=sampler, rank=rank, world_size=world)

            whole = made(2)
            epochs = [[torch.cat(column) for column in zip(*whole, strict=True)] for _ in range(3)]
            for epoch in range(3):
                for count in range(len(epochs[epoch][0]) // 2 + 1):
                    first = made(2)
                    for _ in range(epoch):
                        list(first)
                    before = [batch for _, batch in zip(range(count), first, strict=False)]
                    second = made(3)
                    second.load_state_dict(through_json(first.state_dict()))
                    second.set_epoch(epoch)
                    found = [torch.cat(column) for column in zip(*before, *second, strict=True)]
                    assert all(map(torch.equal, found, epochs[epoch]))
                    if epoch < 2:
                        followed = [torch.cat(column) for column in zip(*second, strict=True)]
                        assert all(map(torch.equal, followed, epochs[epoch + 1]))

    def test_one_ranks_state_serves_all_ranks(self) -> None:
        """Every rank reads what rank 0 wrote into the checkpoint."""

        def ranks() -> list[Loader]:
            return [
                loader_of(batch=2, sampler=SAMPLERS["distributed"](rank, 2), rank=rank, world_size=2)
                for rank in range(2)
            ]

        first = ranks()
        passes = [iter(loader) for loader in first]
        for _ in range(3):
            for part in passes:
                next(part)
        state = through_json(first[0].state_dict())
        rest = [[batch[3].tolist() for batch in part] for part in passes]
        second = ranks()
        for loader, expected in zip(second, rest, strict=True):
            loader.load_state_dict(state)
            assert [batch[3].tolist() for batch in loader] == expected

    def test_ranks_draw_numbers_of_their_own(self) -> None:
        """Here every rank has a position 3. With packtrain's orders, only one rank has it."""
        (first, *_), (second, *_) = (
            next(iter(loader_of(sampler=[5, 5, 5, 5], rank=rank, world_size=2))) for rank in range(2)
        )
        assert torch.equal(first[:, 0], second[:, 0])
        assert not set(first[:, 1:].flatten().tolist()) & set(second[:, 1:].flatten().tolist())

    def test_another_number_of_ranks_is_refused(self) -> None:
        state = loader_of(sampler=SAMPLERS["distributed"](0, 2), rank=0, world_size=2).state_dict()
        for world in (1, 3):
            other = loader_of(sampler=SAMPLERS["distributed"](0, world), rank=0, world_size=world)
            with pytest.raises(UsageError, match=f"saved by 2 ranks, now there are {world}; only packtrain's own"):
                other.load_state_dict(state)

    def test_a_sampler_that_draws_other_rows_is_refused(self) -> None:
        generator = torch.Generator().manual_seed(1)
        loader = loader_of(sampler=RandomSampler(range(20), generator=generator))
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(UsageError, match="did not draw epoch 0 again"):
            next(iter(loader))
        fewer = loader_of(sampler=[1, 2, 3])
        fewer.load_state_dict({**state, "sampler": {**state["sampler"], "world_size": 1}})
        with pytest.raises(UsageError, match=r"did not draw epoch 0 again .*20 rows then, 3 now"):
            next(iter(fewer))


class TestStateful:
    def half_way(self, **options: Any) -> Loader:
        loader = loader_of(**options)
        next(iter(loader))
        return loader

    def test_it_is_torchs_protocol(self, checkpoint: Any) -> None:
        assert isinstance(loader_of(), checkpoint.stateful.Stateful)

    @pytest.mark.parametrize("sampler", [None, Weighted([1] * 20), "own state"], ids=param_id)
    def test_a_distributed_checkpoint_of_one_process(self, tmp_path: Path, checkpoint: Any, sampler: Any) -> None:
        def sampler_of() -> Any:
            return SAMPLERS[sampler](0, 1) if isinstance(sampler, str) else sampler

        loader = self.half_way(sampler=sampler_of())
        state = loader.state_dict()
        again = loader_of(seed=0, sampler=sampler_of())
        with warnings.catch_warnings():
            # About missing processes, and about how torch uses its own storages.
            warnings.simplefilter("ignore")
            checkpoint.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
            checkpoint.load({"loader": again}, checkpoint_id=tmp_path / "saved")
        assert again.state_dict() == state
        assert positions(again) == list(range(4, 20))

    def test_torch_load_with_weights_only(self, tmp_path: Path) -> None:
        """As Lightning keeps it: as part of a checkpoint in one file."""
        loader = self.half_way()
        torch.save({"loops": {"loader": loader.state_dict()}}, tmp_path / "last.ckpt")
        again = loader_of(batch=5, seed=0)
        again.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["loops"]["loader"])
        assert positions(again) == list(range(4, 20))


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_goes_on_in_another_format(images: Path, tmp_path: Path, format: str) -> None:
    """The state knows rows, not files: packed with the same seed, every format has the same rows."""
    transform = [RandomResizedCrop(8), RandomHorizontalFlip()]
    tar, other = (
        open_dataset(packed(images, tmp_path / "sets" / str(number) / name, name), transform)
        for number, name in enumerate(["tar", format])
    )
    whole = Loader(tar, 4, shuffle=True, seed=0, num_workers=0)
    expected = [image for batch, _ in whole for image in batch]
    first, second = (
        Loader(tar, 4, shuffle=True, seed=0, num_workers=0),
        Loader(other, 4, shuffle=True, seed=0, num_workers=0),
    )
    found = list(next(iter(first))[0])
    second.load_state_dict(first.state_dict())
    found += [image for batch, _ in second for image in batch]
    assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
