"""Killed at any moment, staging leaves nothing to clean up, and the next call completes the work.

Real processes are killed by SIGKILL right before one of their changes to the folder, or after half of a write. With one
thread, every such point is tested (`make test` takes a sample); with several threads, random points are.
"""

from __future__ import annotations

import errno
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.faults.harness import Action, Call, FaultPoints, FaultServer
from helpers.staging.children import Child
from helpers.staging.laws import STAGE, assert_same, assert_tidy, big_dataset, root_of
from helpers.support import flip, tree

from packtrain import StageOptions, stage
from packtrain.staging import entries, evict, repair

KILLED = -signal.SIGKILL
CLEAN_ERROR = 3
ROUNDS = pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.stress)])

EVICT = """
from packtrain._storage.staging.eviction import evict

evict(args["place"])
"""
REPAIR = """
from packtrain._storage.staging.stager import repair

repair(args["place"], args["entry"], threads=1)
"""
CLEANLY = f"""
import sys
from packtrain._core.errors import NoSpace, StagingError

try:
    exec(args["code"])
except (NoSpace, StagingError) as error:
    print(error)
    sys.exit({CLEAN_ERROR})
"""


class Victim:
    """Code that changes a folder and is killed again and again.

    Args:
        server: Server that starts the processes.
        place: Folder that the code changes.
        code: Python code to run.
        args: Arguments of the code, in addition to the folder.
    """

    def __init__(self, server: FaultServer, place: Path, code: str, **args: object) -> None:
        self._server = server
        self._place = place
        self._code = code
        self._args = {**args, "place": str(place)}

    def calls(self) -> tuple[Call, ...]:
        """The changes that the code makes when nothing goes wrong."""
        outcome = self._server.run(self._code, self._args, self._place)
        assert outcome.returncode == 0, outcome.output
        return outcome.calls

    def dies(self, action: Action, at: int) -> bool:
        """True if the code was killed; False if it finished."""
        outcome = self._server.run(self._code, self._args, self._place, action, at)
        assert outcome.returncode in (0, KILLED), outcome.output
        return outcome.returncode == KILLED

    def fails(self, at: int, action: Action = Action.FAIL_FROM) -> str | None:
        """The error if the disk is full from the `at`-th change on; None if the code finished nevertheless."""
        args = {**self._args, "code": self._code}
        outcome = self._server.run(CLEANLY, args, self._place, action, at, errno.ENOSPC)
        assert outcome.returncode in (0, CLEAN_ERROR), outcome.output
        return outcome.output if outcome.returncode else None


def emptied(place: Path) -> None:
    shutil.rmtree(root_of(place), ignore_errors=True)


def assert_completes(dataset: Path, place: Path, case: object) -> None:
    """The next call gives a complete copy, and nothing else is left."""
    staged = stage(dataset, StageOptions(to=place))
    assert_same(staged.path, dataset)
    try:
        assert_tidy(place, staged.path)
    except AssertionError as error:
        raise AssertionError(f"after {case}: {error}") from error
    (entry,) = entries(place)
    assert (entry.state, entry.shards) == ("complete", entry.local_shards), case


@pytest.mark.complete
def test_the_copier_dies_anywhere(faulty: FaultServer, dataset: Path, place: Path, fault_points: FaultPoints) -> None:
    victim = Victim(faulty, place, STAGE, dataset=str(dataset), options={"threads": 1})
    calls = victim.calls()
    assert len(calls) > 60
    for case in fault_points(calls, Action.KILL, Action.TEAR):
        emptied(place)
        assert victim.dies(*case), case
        for path in root_of(place).glob("[!.]*"):
            assert_same(path, dataset)
        assert_completes(dataset, place, (case, calls[case[1] - 1]))


@pytest.mark.complete
def test_the_copier_of_a_partial_entry_dies_anywhere(
    faulty: FaultServer, dataset: Path, place: Path, fault_points: FaultPoints
) -> None:
    """First while it makes the entry, then while it adds shards; afterwards all of it is staged with more room."""
    budget = half_of(dataset, place)
    options = {"threads": 1, "budget": budget, "partial": True}
    begin = Victim(faulty, place, STAGE, dataset=str(dataset), options=options)
    calls = begin.calls()
    assert entries(place)[0].state == "partial"
    for case in fault_points(calls, Action.KILL):
        emptied(place)
        assert begin.dies(*case), case
        assert_completes(dataset, place, case)
    emptied(place)
    stage(dataset, StageOptions(to=place, budget=budget, partial=True))
    shutil.copytree(place, place / "model", symlinks=True)
    grow = Victim(faulty, place, STAGE, dataset=str(dataset), options={"threads": 1})
    for case in fault_points(grow.calls(), Action.KILL):
        emptied(place)
        shutil.copytree(place / "model" / root_of(place).name, root_of(place), symlinks=True)
        assert grow.dies(*case), case
        (path,) = root_of(place).glob("[!.]*")
        found = tree(path)
        assert {name: found[name] for name in tree(dataset)} == tree(dataset), case
        assert_completes(dataset, place, case)


@pytest.mark.complete
def test_the_evictor_dies_anywhere(
    faulty: FaultServer, datasets: tuple[Path, ...], place: Path, fault_points: FaultPoints
) -> None:
    victim = Victim(faulty, place, EVICT)
    emptied(place)
    for dataset in datasets[:2]:
        stage(dataset, StageOptions(to=place))
    shutil.copytree(place, place / "model")
    for case in fault_points(victim.calls(), Action.KILL):
        emptied(place)
        shutil.copytree(place / "model" / root_of(place).name, root_of(place))
        assert victim.dies(*case), case
        left = sorted(root_of(place).glob("[!.]*"))
        for path in left:
            assert_same(path, next(dataset for dataset in datasets if path.name.startswith(dataset.name)))
        staged = stage(datasets[2], StageOptions(to=place))
        assert_tidy(place, staged.path, *left)


@pytest.mark.complete
def test_the_repairer_dies_anywhere(faulty: FaultServer, dataset: Path, place: Path, fault_points: FaultPoints) -> None:
    """Readers find every file at any time, and intact files stay as they are."""
    staged = stage(dataset, StageOptions(to=place))
    staged.lease.close()
    damaged = staged.path / "index" / "line.npy", sorted(staged.path.glob("*.tar"))[1]
    for path in damaged:
        path.chmod(0o644)
        flip(path, 600 if path.suffix == ".tar" else -1)
    shutil.copytree(place, place / "model")
    victim = Victim(faulty, place, REPAIR, entry=str(staged.path))
    for case in fault_points(victim.calls(), Action.KILL):
        emptied(place)
        shutil.copytree(place / "model" / root_of(place).name, root_of(place))
        assert victim.dies(*case), case
        assert set(tree(staged.path)) == {*tree(dataset), "staged.json"}
        repair(staged.path.parents[1], staged.id)
        stage(dataset, StageOptions(to=place)).lease.close()
        assert_same(staged.path, dataset)
        assert_tidy(place, staged.path)


@pytest.mark.complete
def test_a_full_medium_is_a_clean_error_anywhere(
    faulty: FaultServer, dataset: Path, place: Path, fault_points: FaultPoints
) -> None:
    victim = Victim(faulty, place, STAGE, dataset=str(dataset), options={"threads": 1})
    said = set()
    for _, at in fault_points(victim.calls(), Action.FAIL_FROM):
        emptied(place)
        message = victim.fails(at)
        if message is not None:
            said.add(message)
            assert "No space left" in message or "no space left" in message
        assert_completes(dataset, place, at)
    assert len(said) > 3


@pytest.mark.complete
@ROUNDS
def test_threads_die_again_and_again(faulty: FaultServer, dataset: Path, place: Path, count: int) -> None:
    chance = random.Random(count)
    victim = Victim(faulty, place, STAGE, dataset=str(dataset), options={})
    calls = len(victim.calls())
    for number in range(count):
        emptied(place)
        history: list[tuple[Action, int]] = []
        # Each run needs fewer changes, because it continues where the last one stopped.
        while len(history) < 5:
            history.append((chance.choice((Action.KILL, Action.TEAR)), chance.randint(1, calls)))
            if not victim.dies(*history[-1]):
                break
        assert_completes(dataset, place, (number, history))


@ROUNDS
def test_killed_at_any_time(
    tmp_path_factory: pytest.TempPathFactory, start: Callable[[], Child], place: Path, count: int
) -> None:
    """After a random time, while threads copy; finished pieces are not copied again."""
    chance = random.Random(count)
    source = big_dataset(tmp_path_factory.mktemp("big") / "big", [20 << 20] * 4)
    expected = tree(source)
    begun = time.monotonic()
    whole = start().do("stage", dataset=source, to=place)["copied"]
    seconds = time.monotonic() - begun
    resumed = 0
    for number in range(count):
        emptied(place)
        child = start()
        child.send("stage", dataset=source, to=place)
        time.sleep(chance.uniform(0, seconds))
        child.kill()
        again = stage(source, StageOptions(to=place))
        resumed += 0 < again.copied < whole
        found = tree(again.path)
        assert found.pop("staged.json") and found == expected, number
        assert_tidy(place, again.path)
        again.lease.close()
    assert resumed, "no copy was hit in its middle"


@ROUNDS
def test_the_evictor_dies_at_any_time(
    datasets: tuple[Path, ...], start: Callable[[], Child], place: Path, count: int
) -> None:
    chance = random.Random(count)
    for _ in range(count):
        for dataset in datasets:
            stage(dataset, StageOptions(to=place))
        child = start()
        child.send("evict", to=place)
        time.sleep(chance.uniform(0, 0.01))
        child.kill()
        staged = [stage(dataset, StageOptions(to=place)) for dataset in datasets]
        for one, dataset in zip(staged, datasets, strict=True):
            assert_same(one.path, dataset)
        assert_tidy(place, *(one.path for one in staged))


def half_of(dataset: Path, place: Path) -> int:
    """A budget for half of a dataset's shards."""
    with_all = stage(dataset, StageOptions(to=place))
    with_all.lease.close()
    (entry,) = evict(place)
    shards = sum(path.stat().st_blocks * 512 for path in dataset.glob("*.tar"))
    return entry.bytes - shards // 2 + 40_960
