"""Laws of several ranks, each in a process of its own: together they hand out the epoch exactly once."""

from __future__ import annotations

import random
import warnings
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from helpers.batching import steps, through_json
from helpers.ranks import in_ranks
from helpers.resuming import FIELDS, ORDERS, ROWS, SEED, Model, Topology, content, go_on, loader_of, numbers

from packtrain import Loader
from packtrain.orders import ChunkShuffled


def flat(parts: list[list[list[int]]]) -> list[int]:
    """Positions of all ranks [rank][step][position], step by step."""
    return [position for step in zip(*parts, strict=True) for block in step for position in block]


def test_ranks_come_from_the_process_group(tmp_path: Path) -> None:
    world = 3
    results = in_ranks(world, go_on, None, None, 4, 2, group=tmp_path / "group")
    expected = list(steps(ROWS, 0, batch=4, world=world, drop_last=False))
    for rank, (found, _, length) in enumerate(results):
        assert found == [positions[rank] for positions, _ in expected]
        assert length == len(expected)
    together = flat([found for found, *_ in results])
    assert together[:ROWS] == list(range(ROWS)) and len(together) - ROWS < world
    assert [state for _, state, _ in results] == [{**results[0][1], "epoch": 1, "consumed": 0}] * world


def in_chunks(rank: int, world: int) -> tuple[list[int], dict[str, int]]:
    dataset = numbers(100)
    with Loader(dataset, 8, sampler=ChunkShuffled(dataset), seed=1, num_workers=0, fields=("position",)) as loader:
        positions = [batch[-1].tolist() for batch in loader]
        loader.set_epoch(0)
        assert sorted(loader.sample(position)[1] for position in range(100)) == list(range(100))
        return flat([positions]), loader.state_dict()["parameters"]


def test_ranks_agree_on_an_order_in_chunks(tmp_path: Path) -> None:
    results = in_ranks(2, in_chunks, group=tmp_path / "group")
    # They run on one machine, so each takes what it would take of any order.
    steps_of = zip(*(each for each, _ in results), strict=True)
    assert sorted(position for pair in steps_of for position in pair) == list(range(100))
    assert results[0][1] == results[1][1]
    assert results[0][0][:16] == [*range(8), *range(16, 24)]


def save(rank: int, world: int, folder: Path) -> list[list[int]]:
    loader = loader_of()
    found = [positions.tolist() for _, _, positions, _ in islice(loader, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("torch.distributed.checkpoint").save({"loader": loader}, checkpoint_id=folder)
    return found


def restore(rank: int, world: int, folder: Path) -> list[list[int]]:
    loader = loader_of(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("torch.distributed.checkpoint").load({"loader": loader}, checkpoint_id=folder)
    return [batch[2].tolist() for batch in loader]


@pytest.mark.complete
def test_a_distributed_checkpoint_of_two_ranks_loads_in_three(tmp_path: Path) -> None:
    import_module("torch.distributed.checkpoint")  # here, and not in each rank
    before = flat(in_ranks(2, save, tmp_path / "saved", group=tmp_path / "first"))
    after = flat(in_ranks(3, restore, tmp_path / "saved", group=tmp_path / "second"))
    assert (before + after)[:ROWS] == list(range(ROWS))


def part(rank: int, world: int, rows: int, order: str, topology: Topology, state: Any, count: int) -> Any:
    """Up to `count` steps in one process: epoch, images, labels, positions and rows of each; and the state then."""
    loader = Loader(
        numbers(rows),
        topology.batch,
        seed=SEED,
        drop_last=topology.drop_last,
        sampler=ORDERS[order](numbers(rows)),
        num_workers=topology.workers,
        multiprocessing_context="fork",
        fields=FIELDS,
        rank=rank,
        world_size=world,
    )
    with loader:
        if state is not None:
            loader.load_state_dict(state)
        found: list[Any] = []
        batches = iter(loader)
        for _ in range(count):
            epoch = loader.state_dict()["epoch"]
            batch = next(batches, None)
            if batch is None:
                found.append(None)
                batches = iter(loader)
            else:
                images, *columns = batch
                found.append((epoch, images.numpy().tobytes(), *(column.tolist() for column in columns)))
        return found, through_json(loader.state_dict())


def run_schedule(chance: random.Random, parts: int) -> int:
    """Compares a run in several parts, each in new processes, with the model. Returns the number of batches."""
    rows, order = chance.choice([1, 7, 23, 40]), chance.choice(sorted(ORDERS))
    model, state, batches = Model.of(numbers(rows), order), None, 0
    for _ in range(parts):
        topology = Topology(chance.randint(1, 3), chance.randint(1, 6), chance.random() < 0.3, chance.randint(0, 2))
        count = chance.randint(1, 9)
        results = in_ranks(topology.world, part, rows, order, topology, state, count)
        model.begin(topology)
        for number in range(count):
            epoch, expected = model.epoch, model.take()
            if expected is None:
                assert all(found[number] is None for found, _ in results)
                model.begin(topology)
                continue
            for (found, _), positions in zip(results, expected, strict=True):
                images, labels, drawn = content(numbers(rows), order, epoch, positions)
                assert found[number] == (epoch, images.numpy().tobytes(), labels.tolist(), positions, drawn)
                batches += 1
        state = results[0][1]
        assert [each for _, each in results] == [model.state] * topology.world
        model.move(model.epoch, model.consumed)
    return batches


@pytest.mark.complete
@pytest.mark.parametrize("seed", [0, 3])
def test_runs_whose_every_part_is_new_processes(seed: int) -> None:
    assert run_schedule(random.Random(seed), parts=4) > 0


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(4))
def test_hundreds_of_runs_in_processes(seed: int) -> None:
    chance = random.Random(1000 + seed)
    batches = sum(run_schedule(chance, chance.randint(2, 6)) for _ in range(50))
    print(seed, {"runs": 50, "batches": batches})
    assert batches > 500
