"""Campaigns: a program is killed, or a call of it fails, at one point of its run after the other.

The test says what must hold after each of them::

    program = Program(server, CODE, {"out": str(out)}, out)
    calls = program.undisturbed()
    for trial in campaign(program, calls, Action.KILL, Action.TEAR):
        ...

If it does not hold, the last line of the test's captured output is the point. The end of a run of pytest says how many
points of which kind there were.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from helpers.faults.harness import Action, Call, FaultServer, Outcome, points, sample
from helpers.faults.medium import unsynced

KILLED: Final = -signal.SIGKILL


def renewed(folder: Path, model: Path | None = None) -> Path:
    """Replaces `folder` by a copy of `model`, or removes it. Returns `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    if model is not None:
        shutil.copytree(model, folder, symlinks=True)
    return folder


@dataclass(frozen=True)
class Program:
    """A program that changes a folder.

    Attributes:
        server: Runs the program.
        code: Python source.
        args: Arguments of the code.
        folder: Folder that is watched; the code gets its path by an argument.
        prepare: Makes the folder what it is before each run; by default, it is missing.
        lost: Patterns of what a power cut after its end may take: nothing rests on it.
    """

    server: FaultServer
    code: str
    args: dict[str, Any]
    folder: Path
    prepare: Callable[[Path], object] = renewed
    lost: Sequence[str] = ("*.packing", "*.failed", "*.packed")

    def starting_from(self, model: Path) -> Self:
        """The same program, each run of which begins with a copy of a folder."""
        return replace(self, prepare=partial(renewed, model=model))

    def run(self, action: Action = Action.COUNT, at: int = 0, error: int = 0) -> Outcome:
        """Runs the program in the folder as it is."""
        return self.server.run(self.code, self.args, self.folder, action, at, error)

    def undisturbed(self) -> tuple[Call, ...]:
        """Prepares the folder, runs the program, sees what is on the medium, and returns its calls."""
        self.prepare(self.folder)
        there = [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_dir()]
        outcome = self.run()
        assert outcome.returncode == 0, outcome.output
        *_, (_, files, names) = unsynced(outcome.calls, there)
        lost = [name for name in files | names if not any(fnmatch(name, pattern) for pattern in self.lost)]
        assert not lost, f"a power cut would take {sorted(lost)}"
        return outcome.calls


@dataclass(frozen=True)
class Trial:
    """A run in which something went wrong: `action` at `call`, which is number `at`."""

    action: Action
    at: int
    call: Call
    outcome: Outcome

    def __str__(self) -> str:
        return f"{self.action.name} at {self.at}: {self.call.name} {self.call.path} {self.call.target}".rstrip()


class Campaign:
    """Runs programs in which something goes wrong, and counts in how many places.

    Args:
        every: Takes one in so many of the points that a test asks for.
        most: Takes at most so many of these, spread over the run; None for all.
    """

    def __init__(self, every: int, most: int | None) -> None:
        self._every, self._most = every, most
        self.counts = Counter[str]()

    def __call__(
        self, program: Program, calls: Sequence[Call], *actions: Action, error: int = 0, every: int = 1
    ) -> Iterator[Trial]:
        """Prepares the folder and runs the program, once for each point.

        Args:
            program: The program.
            calls: Calls of the program when nothing goes wrong.
            actions: What goes wrong.
            error: See `FaultServer.run`.
            every: Takes one point in so many of each kind of call, see `sample`.
        """
        chosen = sample(calls, list(points(calls, *actions)), self._every * every)
        count = min(len(chosen), self._most or len(chosen))
        for action, at in (chosen[number * len(chosen) // count] for number in range(count)):
            program.prepare(program.folder)
            trial = self._trial(program, calls, action, at, error)
            assert (trial.outcome.returncode == KILLED) == (action in (Action.KILL, Action.TEAR)), trial.outcome.output
            yield trial
        assert self.counts, "nothing can go wrong"

    def again_and_again(
        self, program: Program, calls: Sequence[Call], chance: random.Random, most: int = 1000
    ) -> Iterator[Trial]:
        """Runs the program and kills it at random points, each run in the folder that the last one left, until it ends.

        Args:
            program: The program.
            calls: Calls of the program when nothing goes wrong.
            chance: Chooses the points.
            most: Number of runs after which it is enough.
        """
        program.prepare(program.folder)
        for _ in range(most):
            trial = self._trial(
                program, calls, chance.choice((Action.KILL, Action.TEAR)), chance.randint(1, len(calls))
            )
            assert trial.outcome.returncode in (0, KILLED), trial.outcome.output
            yield trial
            if trial.outcome.returncode == 0:
                return

    def _trial(self, program: Program, calls: Sequence[Call], action: Action, at: int, error: int = 0) -> Trial:
        trial = Trial(action, at, calls[at - 1], program.run(action, at, error))
        print(trial)
        self.counts[action.name] += 1
        return trial
