"""Laws of the schedule: every position once, and equally large steps on all ranks, whatever changes between steps."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import numpy as np
from helpers.batching import steps
from hypothesis import given
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
