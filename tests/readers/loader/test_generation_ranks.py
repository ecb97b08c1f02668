"""Laws of several ranks over growing caches, each in a process of its own: they agree, and share what there is."""

from __future__ import annotations

import multiprocessing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from helpers.batching import through_json
from helpers.filling import fill
from helpers.generations import BUDGET, HEADROOM, SHARD, grow, last, loader_of, numbers, of, opened, sample
from helpers.ranks import in_ranks
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.errors import GenerationGone, LoaderError, UsageError
from packtrain._core.generations import generation_numbers, retire
from packtrain._growing.options import FillOptions
from packtrain._readers.loader.order import CacheOrder
from packtrain._readers.loader.schedule import Schedule
from packtrain.orders import Shuffled


def fill_for_ever(root: Path) -> None:
    fill(root, lambda: map(sample, range(60, 10**9)), FillOptions(budget=BUDGET, shard_size=SHARD, headroom=HEADROOM))


def epochs(rank: int, world: int, root: Path, count: int) -> list[tuple[int, int, list[int]]]:
    """Generation, steps and samples of each epoch."""
    loader, found = loader_of(opened(root), 4, seed=None), []
    for _ in range(count):
        batches = iter(loader)
        found.append((loader.dataset.generation, len(loader), numbers(batches)))
    return found


@pytest.mark.complete
def test_ranks_agree_while_the_cache_grows(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    grow(root, 60)
    filler = multiprocessing.get_context("fork").Process(target=fill_for_ever, args=(root,), daemon=True)
    filler.start()
    try:
        results = in_ranks(3, epochs, root, 6, group=tmp_path / "group")
    finally:
        filler.kill()
        filler.join()
    for found in zip(*results, strict=True):
        assert len({(generation, steps) for generation, steps, _ in found}) == 1
        together = [number for *_, samples in found for number in samples]
        # At most two samples fill up the last step.
        assert len(together) - len(set(together)) < 3
        rows = sorted(set(together))
        assert rows == list(range(rows[0], rows[-1] + 1)) and found[0][1] == -(-len(rows) // 12)
    generations = [generation for generation, *_ in results[0]]
    assert generations == sorted(generations) and generations[-1] > generations[0]


def one_that_fails(rank: int, world: int, root: Path, failing: int) -> str:
    dataset = opened(root)
    loader = loader_of(dataset, 4)
    list(loader)
    torch.distributed.barrier()
    if rank == 0:
        grow(root, 60)
    torch.distributed.barrier()

    def fail(generation: int | None = None) -> int:
        raise GenerationGone("it is gone")

    if rank == failing:
        dataset.advance = fail  # type: ignore[method-assign]
    try:
        iter(loader)
    except (GenerationGone, LoaderError) as error:
        failed = str(error)
    if rank == failing:
        del dataset.advance
    # All of them can try again.
    assert sorted(set(numbers(loader))) and dataset.generation == last(root).number
    return failed


@pytest.mark.complete
@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_cannot_open_the_generation_keeps_no_other_waiting(failing: int, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    grow(root, 60)
    found = in_ranks(3, one_that_fails, root, failing, group=tmp_path / "group")
    assert found[failing] == "it is gone"
    others = [message for rank, message in enumerate(found) if rank != failing]
    assert all(message.startswith(f"rank {failing} cannot open the generation") for message in others)


def slow_to_open(rank: int, world: int, root: Path) -> int:
    dataset = opened(root)
    loader = loader_of(dataset, 4)
    torch.distributed.barrier()
    advance, chosen = dataset.advance, generation_numbers(root)[-1]

    def late(generation: int | None = None) -> int:
        if rank == 1 and generation is None:
            # This rank sees a newer one than rank 0, and nobody but rank 0 needs the one that it chose.
            while last(root).number == chosen:
                pass
            found = advance(None)
            assert not retire(root, chosen)
            return found
        return advance(generation)

    dataset.advance = late  # type: ignore[method-assign]
    batches = iter(loader) if rank else None
    if not rank:
        ranks = loader._ranks
        gather = ranks.gather

        def then_grow(values: Any) -> Any:
            ranks.gather = gather  # type: ignore[method-assign]
            grow(root, 60)
            return gather(values)

        ranks.gather = then_grow  # type: ignore[method-assign, assignment]
        batches = iter(loader)
    numbers(batches)
    return dataset.generation - chosen


def test_the_rank_that_chooses_keeps_the_generation_until_all_have_opened_it(tmp_path: Path) -> None:
    grow(tmp_path / "cache", 60)
    assert in_ranks(2, slow_to_open, tmp_path / "cache", group=tmp_path / "group") == [0, 0]


def begin(rank: int, world: int, root: Path, steps: int) -> tuple[list[int], dict[str, Any]]:
    loader = loader_of(opened(root), 4)
    return numbers(islice(loader, steps)), loader.state_dict()


def go_on(rank: int, world: int, root: Path, state: dict[str, Any], batch: int) -> list[int]:
    loader = loader_of(opened(root), batch, seed=0)
    loader.load_state_dict(state)
    return numbers(loader)


@pytest.mark.complete
@pytest.mark.parametrize("worlds", [(2, 3), (3, 1)])
def test_another_number_of_ranks_continues(worlds: tuple[int, int], tmp_path: Path) -> None:
    root = tmp_path / "cache"
    before = grow(root, 101)
    first = in_ranks(worlds[0], begin, root, 3, group=tmp_path / "first")
    states = [state for _, state in first]
    assert states == states[:1] * worlds[0] and states[0]["generations"] == [[before.number, worlds[0]]]
    grow(root, 400)
    rest = in_ranks(worlds[1], go_on, root, through_json(states[0]), 5, group=tmp_path / "second")
    found = [number for samples, _ in first for number in samples] + [number for each in rest for number in each]
    assert sorted(set(found)) == of(before) and len(found) - len(set(found)) < worlds[1]


def caches(rank: int, world: int, roots: list[Path]) -> Any:
    """Two epochs and a half over a cache for each node, and the rest of the third by another loader."""
    root = roots[rank]
    loader = loader_of(opened(root), 4)
    found = [numbers(loader)]
    if rank == roots.index(root):
        grow(root, 30)
    torch.distributed.barrier()
    found.append(numbers(loader))
    batches = iter(loader)
    length = len(loader)
    found.append(numbers(islice(batches, 3)))
    state = through_json(loader.state_dict())
    again = loader_of(opened(root), 6)
    again.load_state_dict(state)
    keys = [again.sample(position).n for position in range(rank, rank + 2 * world, world)]
    with pytest.raises(UsageError, match="another cache"):
        again.sample(next(other for other in range(world) if roots[other] != root))
    rest = numbers(again)
    assert rest == numbers(batches) and keys == found[2][:2]
    found[2] += rest
    again.load_state_dict(state)
    return found, state, length


@pytest.mark.complete
def test_a_cache_for_each_node(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    grow(small, 45)
    grow(large, 150)
    # Three ranks read the large one: 50 samples for each of them.
    roots = [large, small, large, large]
    results = in_ranks(4, caches, roots, group=tmp_path / "group")
    for epoch, turns in enumerate((45, 60, 60)):
        for root in (small, large):
            each = [found[epoch] for (found, *_), other in zip(results, roots, strict=True) if other == root]
            assert {len(samples) for samples in each} == {turns}
            together = [number for samples in each for number in samples]
            assert len(set(together)) == len(together) and set(together) <= set(of(last(root)))
    assert {length for *_, length in results} == {15}
    assert [state for _, state, _ in results] == [results[0][1]] * 4
    assert results[0][1]["generations"] == [[last(large).number, 3], [last(small).number, 1]]
    with pytest.raises(UsageError, match="saved by 4 ranks with 2 caches"):
        loader_of(opened(small)).load_state_dict(results[0][1])


def one_of_two_is_gone(rank: int, world: int, roots: list[Path]) -> tuple[int, int, int]:
    loader = loader_of(opened(roots[rank], keep=0), 4)
    numbers(islice(loader, 3))
    state = loader.state_dict()
    del loader
    if rank:
        grow(roots[1], 400)
    torch.distributed.barrier()
    again = loader_of(opened(roots[rank]), 4)
    with pytest.warns(RuntimeWarning, match="begins epoch 1"):
        again.load_state_dict(state)
    return again.epoch, len(numbers(again)), again.dataset.generation


def test_if_the_generation_of_one_node_is_gone_all_begin_the_next_epoch(tmp_path: Path) -> None:
    roots = [tmp_path / "first", tmp_path / "second"]
    for root in roots:
        grow(root, 45)
    found = in_ranks(2, one_of_two_is_gone, roots, group=tmp_path / "group")
    assert found == [(1, 45, last(root).number) for root in roots]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.lists(st.integers(0, 40), min_size=4, max_size=4),
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
)
def test_a_portion_gives_each_row_once_to_the_ranks_of_its_cache(
    which: list[int], rows: list[int], first: int, second: int, drop_last: bool
) -> None:
    members = {cache: [rank for rank, other in enumerate(which) if other == cache] for cache in which}
    turns = min(rows[cache] // len(ranks) for cache, ranks in members.items())
    found: dict[int, list[int]] = {cache: [] for cache in members}
    positions: list[int] = []
    lengths = set()
    for rank, cache in enumerate(which):
        order = CacheOrder(Shuffled(rows[cache]), members[cache], len(which), turns)
        consumed, sizes = 0, []
        # The batch size changes after the first step.
        for batch in (first, *[second] * (turns + 1)):
            step = Schedule(len(order), batch, rank, len(which), drop_last, order.dealing).step(consumed)
            if step is None:
                break
            consumed = step.consumed
            assert all(map(order.has, step.positions.tolist()))
            sizes.append(len(step.positions))
            positions += step.positions.tolist()
            taken = order.rows(9, int(step.positions[0]), int(step.positions[-1]) + 1)[:: len(which)]
            found[cache] += taken.tolist()
            again = [int(order.rows(9, position, position + 1)[0]) for position in step.positions.tolist()]
            assert taken.tolist() == again
        lengths.add(tuple(sizes))
    assert len(lengths) == 1
    assert len(set(positions)) == len(positions) and set(positions) <= set(range(turns * len(which)))
    if not drop_last:
        assert len(positions) == turns * len(which)
    for cache, together in found.items():
        assert len(set(together)) == len(together) and set(together) <= set(range(rows[cache]))
