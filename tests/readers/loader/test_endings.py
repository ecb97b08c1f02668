"""However a program with a loader ends, it ends soon, says why, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from helpers.processes import Session, read_proc
from helpers.support import START_METHODS
from helpers.waiting import wait_until

TESTS = Path(__file__).parents[2]
SHARED = Path("/dev/shm")
START, DEADLINE = 60.0, 20.0
"""Seconds allowed until a program has its first batch, and from a fault until everything has ended."""
KILLS = 200
# Few enough in one test that it stays within the time limit of a test.
KILLS_AT_A_TIME = 10


class Consumer(Session):
    """A run of ``helpers/consumer.py``."""

    def __init__(self, **options: Any) -> None:
        path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-P", str(TESTS / "helpers/consumer.py"), json.dumps(options)]
        super().__init__(command, {"PYTHONPATH": os.pathsep.join(path)})
        self._deed = options.get("deed")
        self._before = shared_files()

    def workers(self) -> list[int]:
        """The processes it started, without the resource tracker."""
        others = [pid for pid in self.processes() if pid != self.process.pid]
        return [pid for pid in others if b"resource_tracker" not in read_proc(pid, "cmdline")]

    def at_work(self) -> Self:
        """Waits until it has its first batch and, if there is a deed, until a worker does it."""
        said = ("working", "begun") if self._deed else ("working",)
        wait_until(
            lambda: self.process.poll() is not None or all(word in self.stdout for word in said),
            f"it says {said}",
            START,
        )
        assert self.process.poll() is None, self.stderr
        return self

    def end(self) -> tuple[int, str]:
        """Waits until no process of it is left. Returns exit status and stderr."""
        wait_until(lambda: self.process.poll() is not None, "it has ended", DEADLINE)
        self.require_nothing_left(DEADLINE)
        left = f"nothing is left of {shared_files() - self._before}"
        wait_until(lambda: not shared_files() - self._before, left, DEADLINE)
        return self.process.wait(), self.stderr


def shared_files() -> set[str]:
    """The files in /dev/shm, without what living processes of other programs may have there."""
    owners = [re.fullmatch(r"(?:torch_|packtrain-arena)(\d*).*", name) for name in os.listdir(SHARED)]
    return {owner[0] for owner in owners if owner and not (owner[1] and Path("/proc", owner[1]).exists())}


def deeds(first: str, *others: str) -> pytest.MarkDecorator:
    """The way in which workers start and what they are at when it ends: "search" keeps the interpreter.

    A sample has the first alone. What they do matters where they are forked, and hold what their siblings hold.
    """
    more = [*(("fork", each) for each in others), ("spawn", first)]
    return pytest.mark.parametrize(
        ("method", "deed"),
        [
            ("fork", first),
            *(pytest.param(*each, marks=pytest.mark.complete) for each in more),
            pytest.param("forkserver", first, marks=pytest.mark.stress),
        ],
    )


@deeds("sleep", "stop", "search")
def test_no_worker_outlives_a_killed_parent(method: str, deed: str) -> None:
    with Consumer(method=method, deed=deed, workers=2 if method == "fork" else 1) as run:
        run.at_work()
        run.process.kill()
        assert run.end() == (-signal.SIGKILL, "")


@pytest.mark.complete
@pytest.mark.parametrize("deed", ["sleep", "spin"])
def test_nor_do_those_that_were_forked_before_others(deed: str) -> None:
    """Processes that were forked later also hold the pipes of the earlier ones."""
    with Consumer(method="fork", deed=deed, second=True) as run:
        run.at_work()
        assert len(run.workers()) == 3
        run.process.kill()
        assert run.end() == (-signal.SIGKILL, "")


@pytest.mark.complete
@deeds("stop", "", "sleep", "search")
def test_ctrl_c_ends_everything(method: str, deed: str) -> None:
    with Consumer(method=method, deed=deed, workers=2 if method == "fork" else 1) as run:
        run.at_work()
        os.killpg(run.process.pid, signal.SIGINT)
        status, stderr = run.end()
        assert status == -signal.SIGINT
        assert stderr.endswith("KeyboardInterrupt\n")
        assert stderr.count("Traceback") == 1, "only the consumer has something to say"


@pytest.mark.complete
@START_METHODS
def test_workers_outlive_the_thread_that_started_them(method: str) -> None:
    with Consumer(method=method, thread=True, workers=1) as run:
        run.at_work()
        time.sleep(0.2)
        assert run.workers(), "they are still there"
        run.stop()
        assert run.end() == (0, "")


@pytest.mark.complete
@pytest.mark.parametrize(
    ("end", "status", "deed"),
    [("raise", 1, "sleep"), ("return", 0, "sleep"), ("sys.exit", 3, "")],
)
def test_an_exit_without_close_ends_the_workers(end: str, status: int, deed: str) -> None:
    with Consumer(method="fork", end=end, deed=deed) as run:
        run.at_work().stop()
        ended, stderr = run.end()
        assert ended == status, stderr
        assert stderr.count("Traceback") == stderr.count("ZeroDivisionError") == (end == "raise")


@pytest.mark.complete
def test_a_signal_handler_of_the_parent_is_not_that_of_its_workers() -> None:
    """A program that catches SIGTERM to save a checkpoint does not want its workers to do so, too."""
    with Consumer(method="fork", handler=True) as run:
        run.at_work()
        os.kill(run.workers()[0], signal.SIGTERM)
        status, stderr = run.end()
        assert status == 1
        assert "was killed by SIGTERM" in stderr


Outcome = tuple[int, str]


def wound(run: Consumer, chance: random.Random) -> str:
    """Sends a random signal to a random process of a run. Returns what it did."""
    number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
    target = chance.choice(["parent", "worker", "worker"])
    if number == signal.SIGINT and target == "parent":
        with_group = chance.random() < 0.5
        (os.killpg if with_group else os.kill)(run.process.pid, number)
        return "Ctrl-C" if with_group else "parent SIGINT"
    workers = run.workers() if target == "worker" else []
    if target == "worker" and not workers:
        target = "parent"
    try:
        os.kill(chance.choice(workers) if workers else run.process.pid, number)
    except ProcessLookupError:
        return "nobody"
    return f"{target} {number.name}"


def outcomes(wounds: Iterator[int]) -> Iterator[tuple[str, str, Outcome]]:
    """For one run after the other: start method, what was done to it, exit status and stderr."""
    for seed in wounds:
        chance = random.Random(seed)
        method = chance.choices(["fork", "forkserver", "spawn"], [8, 1, 1])[0]
        with Consumer(method=method, second=chance.random() < 0.2, workers=chance.randint(1, 3)) as run:
            if chance.random() < 0.7:
                run.at_work()
                time.sleep(chance.uniform(0, 0.1))
            else:
                # Most of this time the program imports torch; in the rest, workers start.
                time.sleep(chance.uniform(0.5, 4))
            done = wound(run, chance)
            if done in ("nobody", "worker SIGINT"):
                # Workers leave Ctrl-C to their parent.
                time.sleep(0.2)
                run.stop()
            yield method, done, run.end()


@pytest.mark.stress
@pytest.mark.parametrize("first", range(0, KILLS, KILLS_AT_A_TIME))
def test_random_kills_end_in_an_error_and_leave_nothing(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    for method, done, (status, stderr) in outcomes(iter(range(first, first + KILLS_AT_A_TIME))):
        target, _, name = done.partition(" ")
        named = re.search(r"LoaderError: loader worker \d", stderr)
        if target == "worker" and name != "SIGINT":
            assert status == 1, (method, done, stderr)
            assert named, (method, done, stderr)
        elif target == "parent":
            assert status == -signal.Signals[name], (method, done, stderr)
        elif target == "Ctrl-C":
            assert status == -signal.SIGINT, (method, done, stderr)
        else:
            assert status == 0 or (status == 1 and named), (method, done, stderr)
        counts[f"{method}: {done}, exit status {status}"] += 1
    with capsys.disabled():
        print("\n" + "\n".join(f"{count:4d} {what}" for what, count in sorted(counts.items())))
