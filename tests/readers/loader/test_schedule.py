"""Laws of the schedule: every position once, and equally large steps on all ranks, whatever changes between steps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from helpers.batching import steps
from hypothesis import example, given
from hypothesis import strategies as st

from packtrain._readers.loader.schedule import Dealing, Schedule, Step

LENGTH = st.integers(0, 60)
BATCH = st.integers(1, 12)
WORLD = st.integers(1, 7)
LANES = st.integers(1, 9)
DEALINGS = st.sampled_from(get_args(Dealing))


def step_of_all(
    length: int,
    consumed: int,
    batch: int,
    world: int,
    drop_last: bool,
    dealing: Dealing = "blocks",
    lanes: int = 1,
    nodes: int = 1,
) -> list[Step] | None:
    """The next step of every rank; None if the epoch has ended for all ranks."""
    found = [
        Schedule(length, batch, rank, world, drop_last, dealing, lanes, nodes).step(consumed) for rank in range(world)
    ]
    if None in found:
        assert found == [None] * world
        return None
    return [step for step in found if step is not None]


@given(LENGTH, BATCH, WORLD, st.booleans(), st.data())
@example(1, 12, 7, False, None)
@example(0, 1, 1, False, None)
def test_a_step_takes_the_next_positions_and_ranks_share_them(
    length: int, batch: int, world: int, drop_last: bool, data: Any
) -> None:
    consumed = data.draw(st.integers(0, length)) if data is not None else 0
    left = length - consumed
    found = step_of_all(length, consumed, batch, world, drop_last)
    if found is None:
        assert left == 0 or (drop_last and left < world * batch)
        return
    positions = np.concatenate([step.positions for step in found])
    assert positions.dtype == np.int64
    sizes = {len(step.positions) for step in found}
    assert len(sizes) == 1 and 0 < sizes.pop() <= batch
    # New positions come first and in order. Those that fill up the step come from the beginning of the epoch.
    new = min(left, world * batch)
    assert positions[:new].tolist() == list(range(consumed, consumed + new))
    padding = positions[new:].tolist()
    assert padding == [number % length for number in range(len(padding))]
    assert len(padding) < world and (not padding or (left < world * batch and not drop_last))
    assert {step.consumed for step in found} == {consumed + new}


@given(LENGTH, BATCH, WORLD, st.booleans(), DEALINGS, LANES, st.data())
def test_steps_are_counted_and_are_those_of_plain_python(
    length: int, batch: int, world: int, drop_last: bool, dealing: Dealing, lanes: int, data: st.DataObject
) -> None:
    consumed = start = data.draw(st.integers(0, length))
    nodes = data.draw(st.sampled_from([nodes for nodes in range(1, world + 1) if world % nodes == 0]))
    expected = list(
        steps(length, start, batch=batch, world=world, drop_last=drop_last, dealing=dealing, lanes=lanes, nodes=nodes)
    )
    for rank in range(world):
        assert Schedule(length, batch, rank, world, drop_last).steps(start) == len(expected)
    for positions, consumed_then in expected:
        found = step_of_all(length, consumed, batch, world, drop_last, dealing, lanes, nodes)
        assert found is not None
        assert [step.positions.tolist() for step in found] == positions
        consumed = found[0].consumed
        assert consumed == consumed_then
    assert step_of_all(length, consumed, batch, world, drop_last) is None


@given(
    LENGTH,
    st.lists(st.tuples(BATCH, WORLD, st.booleans(), st.integers(0, 4)), max_size=8),
    BATCH,
    WORLD,
    DEALINGS,
    LANES,
)
def test_an_epoch_whose_ranks_and_batches_change_is_without_gap_or_repetition(
    length: int, parts: list[tuple[int, int, bool, int]], batch: int, world: int, dealing: Dealing, lanes: int
) -> None:
    consumed = 0
    for batch_size, ranks, drop_last, count in [*parts, (batch, world, False, length + 1)]:
        for _ in range(count):
            # Each rank a node, or all of them one.
            nodes = ranks if batch_size % 2 else 1
            found = step_of_all(length, consumed, batch_size, ranks, drop_last, dealing, lanes, nodes)
            if found is None:
                break
            new = found[0].consumed - consumed
            positions = np.concatenate([step.positions for step in found]).tolist()
            # Whichever rank takes which. Only the last step may be filled up.
            padding = Counter(positions) - Counter(range(consumed, consumed + new))
            assert padding == Counter(number % length for number in range(len(positions) - new))
            assert len(positions) - new < (ranks if consumed + new == length else 1)
            consumed += new
    assert consumed == length


@given(BATCH, st.integers(1, 6), st.integers(1, 3), st.integers(1, 40), st.integers(0, 100))
def test_a_node_takes_its_positions_from_as_few_lanes_as_can_be(
    batch: int, nodes: int, ranks: int, lanes: int, consumed: int
) -> None:
    world = nodes * ranks
    found = step_of_all(10_000, consumed, batch, world, True, "lanes", lanes, nodes)
    assert found is not None
    of_nodes = [found[node * ranks : (node + 1) * ranks] for node in range(nodes)]
    positions = [np.concatenate([step.positions for step in steps]) for steps in of_nodes]
    if nodes > 1:
        taken = [np.unique(mine % lanes) for mine in positions]
        every = np.unique(np.arange(consumed, consumed + world * batch) % lanes)
        for mine in taken:
            # They follow each other, and of most lanes nobody else has any.
            assert mine.tolist() == every[(mine[0] <= every) & (every <= mine[-1])].tolist()
            assert len(mine) <= -(-batch * ranks // max(1, world * batch // lanes)) + 1
        assert all(low[-1] <= high[0] for low, high in pairwise(taken))
    for mine in positions:
        # Each of its ranks takes a block in the order of the epoch.
        assert (np.diff(mine) > 0).all()


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_nodes_share_no_lane_if_lanes_divide_the_step(
    nodes: int, ranks: int, lanes_each: int, turns: int, consumed: int
) -> None:
    lanes, world = nodes * lanes_each, nodes * ranks
    batch = lanes_each * turns
    found = step_of_all(10_000, consumed, batch, world, True, "lanes", lanes, nodes)
    assert found is not None
    for rank, step in enumerate(found):
        assert nodes == 1 or set(step.positions % lanes // lanes_each) == {rank // ranks}


def test_an_epoch_in_numbers() -> None:
    """20 positions, 3 ranks, batches of 4: one whole step, then 8 positions for 3 ranks, one more than there are."""
    found = []
    consumed = 0
    while step := Schedule(20, 4, 2, 3).step(consumed):
        consumed = step.consumed
        found.append((step.positions.tolist(), consumed))
    assert found == [([8, 9, 10, 11], 12), ([18, 19, 0], 20)]
    assert Schedule(20, 4, 2, 3, drop_last=True).step(12) is None
    assert [Schedule(20, 4, 2, 3, drop_last).steps() for drop_last in (True, False)] == [1, 2]
    alone = Schedule(20, 8).step(16)
    assert alone is not None and (alone.positions.tolist(), alone.consumed) == ([16, 17, 18, 19], 20)
