"""Parts may be killed at any moment, any number of them beside each other, and so may merges: nothing is lost.

Each run is a real process, killed by SIGKILL right before one of its changes to the output folder, or after half of a
write. What is left is packed by other parts of another number, and the result has the bytes of one local run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.faults.campaign import KILLED, Campaign, renewed
from helpers.faults.cases import (
    CLEAN_ERROR,
    DONE,
    MERGE,
    NO_LOCKS,
    PACK,
    WARM_UP,
    Job,
    assert_same,
    assert_sound_if_finished,
    finished_shards,
    written,
)
from helpers.faults.harness import Action, FaultServer
from helpers.support import ONE_FORMAT

from packtrain import merge, pack_status

SHARDS = 3


@pytest.fixture
def content() -> str:
    """Images and labels: what samples hold makes no difference to parts."""
    return "images"


@pytest.fixture(scope="module")
def machines(fault_library: Path, small_jobs: dict[str, Job]) -> Iterator[tuple[FaultServer, ...]]:
    """Processes that pack beside each other."""
    with ExitStack() as stack:
        args = small_jobs["images"].args(Path())
        yield tuple(stack.enter_context(FaultServer(fault_library, WARM_UP, args)) for _ in range(3))


def finish(job: Job, out: Path, parts: int) -> None:
    """Packs all parts and merges them."""
    for number in range(1, parts + 1):
        replace(job, part=f"{number}/{parts}").run(out)
    merge(out, max_rejects="1")


@pytest.mark.complete
@ONE_FORMAT
@pytest.mark.parametrize("locks", [True, False])
def test_a_part_that_is_killed_anywhere_is_packed_by_others(
    packer: FaultServer, job: Job, memory_path: Path, campaign: Campaign, locks: bool
) -> None:
    expected = job.packed(memory_path / "local")
    out = memory_path / "out"
    program = replace(job, part="1/2").program(packer, out, PACK if locks else NO_LOCKS + PACK)
    # The writers are those of `pack`, which dies at each of their calls elsewhere.
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=4):
        assert not (out / "manifest.json").exists()
        finished = finished_shards(out)
        if (out / "plan.json").exists():
            status = pack_status(out)
            assert (status.under_way, status.failed) == ((), ())
            assert status.done == len(finished) == SHARDS - len(status.missing)
        finish(job, out, 3)
        assert {name: written(out / name) for name in finished} == finished
        assert_same(out, expected)


@pytest.mark.complete
def test_a_run_that_is_killed_while_it_retries_refused_lines_of_parts_leaves_nothing_wrong(
    packer: FaultServer, small_job: Job, mended_job: Job, memory_path: Path, campaign: Campaign
) -> None:
    """A shard of LMDB may have the same size with one record more, so that a note of before would seem to fit it."""
    before, again = replace(small_job, format="lmdb"), replace(mended_job, format="lmdb")
    replace(before, part="1/1").run(memory_path / "parts")
    out = memory_path / "out"
    program = again.program(packer, out).starting_from(memory_path / "parts")
    for _ in campaign(program, program.undisturbed(), Action.KILL, Action.TEAR, every=4):
        finish(replace(again, retry_rejects=False), out, 1)
        assert_sound_if_finished(out)


@pytest.mark.complete
def test_a_merge_that_is_killed_anywhere_can_be_repeated(
    packer: FaultServer, small_job: Job, memory_path: Path, campaign: Campaign
) -> None:
    expected = small_job.packed(memory_path / "local")
    parts, out = memory_path / "parts", memory_path / "out"
    for number in (1, 2):
        replace(small_job, part=f"{number}/2").run(parts)
    program = small_job.program(packer, out, MERGE).starting_from(parts)
    calls = program.undisturbed()
    assert_same(out, expected)
    for _ in campaign(program, calls, Action.KILL, Action.TEAR, every=2):
        assert_sound_if_finished(out)
        merge(out, max_rejects="1")
        assert_same(out, expected)


@pytest.mark.complete
@pytest.mark.parametrize("rounds", [4, pytest.param(150, marks=pytest.mark.stress)])
@pytest.mark.parametrize("locks", [True, False])
def test_any_parts_beside_each_other_and_killed(
    machines: tuple[FaultServer, ...], small_job: Job, memory_path: Path, rounds: int, locks: bool
) -> None:
    """Parts of several numbers, the same ones too, and merges: all at the same time, some of them killed."""
    expected = small_job.packed(memory_path / "local")
    chance = random.Random(rounds + locks)
    prefix = "" if locks else NO_LOCKS
    for number in range(rounds):
        out, history = renewed(memory_path / "out"), []
        for _ in range(chance.randint(1, 4)):
            running = []
            for machine in machines:
                parts = chance.randint(1, 4)
                part = f"{chance.randint(1, parts)}/{parts}"
                code = PACK if chance.random() < 0.8 else MERGE
                action = chance.choice((Action.COUNT, Action.KILL, Action.TEAR))
                at = chance.randint(1, 60)
                history.append((code is MERGE, part, action, at))
                print(number, *history[-1])
                args = replace(small_job, part=part).args(out)
                running.append(machine.start(prefix + code, args, out, action, at))
            outcomes = [end() for end in running]
            for (merges, *_), outcome in zip(history[-3:], outcomes, strict=True):
                assert outcome.returncode in (DONE, KILLED, 1 if merges else DONE), outcome.output
                assert merges or outcome.returncode != CLEAN_ERROR, outcome.output
                assert (
                    "shards are missing" in outcome.output
                    or "no plan.json" in outcome.output
                    or (outcome.returncode != 1)
                ), outcome.output
            assert_sound_if_finished(out)
            if (out / "plan.json").exists():
                pack_status(out)
        finish(small_job, out, chance.randint(1, 4))
        assert_same(out, expected)


@pytest.mark.complete
def test_merges_at_the_same_time_write_the_same(
    machines: tuple[FaultServer, ...], small_job: Job, memory_path: Path
) -> None:
    expected = small_job.packed(memory_path / "local")
    for number in (1, 2):
        replace(small_job, part=f"{number}/2").run(memory_path / "parts")
    for _ in range(10):
        out = renewed(memory_path / "out", memory_path / "parts")
        running = [machine.start(MERGE, small_job.args(out), out) for machine in machines]
        outcomes = [end() for end in running]
        assert [outcome.returncode for outcome in outcomes] == [DONE] * 3, outcomes
        assert_same(out, expected)
