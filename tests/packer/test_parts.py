"""Laws of parts: every shard is in exactly one of N, and what Slurm says of a task is read, or refused, by name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Part
from packtrain._packer.parts import array_list
from packtrain.errors import UsageError


def array(task: int, first: int, last: int, step: int, count: int) -> dict[str, str]:
    """The variables that Slurm 22.05 gives a task of an array."""
    values = {"ID": task, "MIN": first, "MAX": last, "STEP": step, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def tasks_of(text: str) -> list[int]:
    """The tasks of an ``--array``, as sbatch(1) defines it."""
    found: list[int] = []
    for item in text.split(",") if text else ():
        bounds, _, step = item.partition(":")
        first, _, last = bounds.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


@given(parts=st.integers(1, 40), shards=st.integers(0, 200))
def test_every_shard_is_in_exactly_one_part(parts: int, shards: int) -> None:
    found = [list(Part(number, parts).shards(shards)) for number in range(1, parts + 1)]
    assert sorted(shard for part in found for shard in part) == list(range(shards))
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize(("text", "part"), [("1/1", Part(1, 1)), (" 03/16 ", Part(3, 16)), ("16/16", Part(16, 16))])
def test_a_part_is_read_as_it_is_written(text: str, part: Part) -> None:
    assert Part.parse(text, {}) == part
    assert Part.parse(str(part), {}) == part
    assert part.origin == ""


@pytest.mark.parametrize(
    "text", ["", "3", "3/", "/4", "-1/4", "1.5/4", "auto/", "auto/x", "automatic", "3/16/2", "٣/٤"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"part=.*: expected I/N with I from 1 to N, such as 3/16"):
        Part.parse(text, array(1, 1, 4, 1, 4))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0/4", "--part auto finds the part"),
        ("5/4", "1/4 to 4/4"),
        ("1/0", "parts=0: expected a whole number, at least 1"),
    ],
)
def test_parts_that_do_not_exist_are_refused(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(hint)):
        Part.parse(text)


@pytest.mark.parametrize(
    ("tasks", "step"),
    [([0, 1, 2, 3], 1), ([1, 2, 3], 1), ([0, 3, 6, 9], 3), ([0, 4, 8], 4), ([5], 1), ([1000, 2000], 1000)],
    ids=["0-3", "1-3", "0-9:3", "0-10:4%2", "5", "1000-2000:1000"],
)
def test_the_tasks_of_an_array_are_its_parts_in_order(tasks: list[int], step: int) -> None:
    """The values are those that a real cluster has given for these arrays."""
    found = [Part.parse("auto", array(task, tasks[0], tasks[-1], step, len(tasks))) for task in tasks]
    assert found == [Part(number, len(tasks)) for number in range(1, len(tasks) + 1)]
    assert f"task {tasks[-1]} of a Slurm array of {len(tasks)} task(s)" in found[-1].origin


@pytest.mark.parametrize("tasks", [[1, 5, 7], [1, 2, 9], [1, 2, 3, 7], [2, 4], [1, 5, 9]], ids=str)
def test_a_list_of_tasks_needs_the_number_of_parts(tasks: list[int]) -> None:
    """Slurm gives step 1 for a list, and neither the list nor the place of a task in it."""
    for task in tasks:
        environment = array(task, tasks[0], tasks[-1], 1, len(tasks))
        with pytest.raises(
            UsageError, match=f"task {task} of a Slurm array of {len(tasks)}.* with gaps.* --part auto/64"
        ):
            Part.parse("auto", environment)
        part = Part.parse("auto/64", environment)
        assert (part, f"the number of task {task} of" in part.origin) == (Part(task, 64), True)


def test_a_task_that_its_array_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"task 5 of a Slurm array of 4 task\(s\) from 0 to 9 by 3, which is a list"):
        Part.parse("auto", array(5, 0, 9, 3, 4))


def test_outside_of_an_array_there_is_nothing_to_read() -> None:
    with pytest.raises(UsageError, match=r"SLURM_ARRAY_TASK_ID .*not set.* such as --part 3/16"):
        Part.parse("auto", {"SLURM_JOB_ID": "7"})
    with pytest.raises(UsageError, match="SLURM_ARRAY_TASK_MIN is not set,"):
        Part.parse("auto", {"SLURM_ARRAY_TASK_ID": "3"})
    with pytest.raises(UsageError, match="SLURM_ARRAY_TASK_MAX is many,"):
        Part.parse("auto", array(1, 1, 4, 1, 4) | {"SLURM_ARRAY_TASK_MAX": "many"})
    with pytest.raises(UsageError, match="parts are counted from 1"):
        Part.parse("auto/4", array(0, 0, 3, 1, 4))


@given(st.sets(st.integers(0, 60)) | st.sets(st.integers(0, 5000), max_size=30))
def test_a_list_of_tasks_says_which_they_are(numbers: set[int]) -> None:
    text = array_list(sorted(numbers))
    assert tasks_of(text) == sorted(numbers)


def test_a_list_of_tasks_is_short() -> None:
    assert array_list([*range(1, 500)]) == "1-499"
    assert array_list([2, 3, 5]) == "2-3,5"
