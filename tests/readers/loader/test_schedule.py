"""Laws of the schedule: every position once, and equally large steps on all ranks, whatever changes between steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.batching import steps
from hypothesis import example, given
from hypothesis import strategies as st

from packtrain._readers.loader.schedule import Schedule, Step

LENGTH = st.integers(0, 60)
BATCH = st.integers(1, 12)
WORLD = st.integers(1, 7)


def step_of_all(length: int, consumed: int, batch: int, world: int, drop_last: bool) -> list[Step] | None:
    """The next step of every rank; None if the epoch has ended for all ranks."""
    found = [Schedule(length, batch, rank, world, drop_last).step(consumed) for rank in range(world)]
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


@given(LENGTH, BATCH, WORLD, st.booleans(), st.data())
def test_steps_are_counted_and_are_those_of_plain_python(
    length: int, batch: int, world: int, drop_last: bool, data: st.DataObject
) -> None:
    consumed = start = data.draw(st.integers(0, length))
    expected = list(steps(length, start, batch=batch, world=world, drop_last=drop_last))
    for rank in range(world):
        assert Schedule(length, batch, rank, world, drop_last).steps(start) == len(expected)
    for positions, consumed_then in expected:
        found = step_of_all(length, consumed, batch, world, drop_last)
        assert found is not None
        assert [step.positions.tolist() for step in found] == positions
        consumed = found[0].consumed
        assert consumed == consumed_then
    assert step_of_all(length, consumed, batch, world, drop_last) is None


@given(LENGTH, st.lists(st.tuples(BATCH, WORLD, st.booleans(), st.integers(0, 4)), max_size=8), BATCH, WORLD)
def test_an_epoch_whose_ranks_and_batches_change_is_without_gap_or_repetition(
    length: int, parts: list[tuple[int, int, bool, int]], batch: int, world: int
) -> None:
    consumed, taken = 0, []
    for batch_size, ranks, drop_last, count in [*parts, (batch, world, False, length + 1)]:
        for _ in range(count):
            found = step_of_all(length, consumed, batch_size, ranks, drop_last)
            if found is None:
                break
            taken += [step.positions.tolist() for step in found]
            consumed = found[0].consumed
    positions = [position for block in taken for position in block]
    assert consumed == length
    assert positions[:length] == list(range(length))
    # Only the last step may be filled up.
    assert len(positions) - length < max([world, *(other for _, other, _, _ in parts)])


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
