"""A state machine: for any sequence of operations by any processes, the root agrees with a model in a dict.

The rules stage, open, close, pin and evict datasets and hide their sources. Processes fork and are killed, even in the
middle of a copy, and time passes. For every entry, the model knows who uses it and when it was last used.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.harness import Action, FaultServer
from helpers.staging.children import Child, Children, Refused
from helpers.staging.laws import STAGE, root_of
from helpers.staging.unused import SLACK, room_for
from helpers.support import tree
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from packtrain.errors import Leased, StagingError
from packtrain.staging import entries, evict, pin

GRACE = 3600
NUMBERS = st.integers(0, 2)


@dataclass
class Known:
    """The facts that the model knows of an entry.

    Attributes:
        used: Time of last use on the model's clock.
        pinned: True if the entry is pinned.
        promised: True if the entry is in its grace period.
    """

    used: int
    pinned: bool = False
    promised: bool = False


@dataclass
class Actor:
    """A process, and the datasets it has open: numbers of datasets by the names they were opened under."""

    child: Child
    open: dict[str, int] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """See above.

    Args:
        children: Where processes come from.
        faulty: Where those come from that are killed while they copy.
        datasets: Datasets of one size or nearly so.
        budget: Bytes that hold two of them.
    """

    def __init__(self, children: Children, faulty: FaultServer, datasets: Sequence[Path], budget: int) -> None:
        super().__init__()
        self.children = children
        self.faulty = faulty
        self.budget = budget
        self.folder = Path(tempfile.mkdtemp(prefix="packtrain-test-", dir="/dev/shm"))
        self.place = self.folder / "place"
        self.place.mkdir()
        self.sources = [shutil.copytree(path, self.folder / path.name) for path in datasets]
        self.contents = [tree(path) for path in datasets]
        self.paths: dict[int, Path] = {}
        self.model: dict[int, Known] = {}
        self.hidden: set[int] = set()
        self.actors: list[Actor] = []
        self.clock = 0
        self.names = 0

    # ---- the model ----

    def leased(self, number: int) -> bool:
        return any(number in actor.open.values() for actor in self.actors)

    def may_go(self, number: int) -> bool:
        known = self.model[number]
        return not (self.leased(number) or known.pinned or known.promised or number in self.hidden)

    def queue(self, excluding: int | None = None) -> list[int]:
        """The entries that may be evicted, in the order of eviction."""
        return sorted(
            (number for number in self.model if number != excluding and self.may_go(number)),
            key=lambda number: self.model[number].used,
        )

    def lock(self, number: int, what: str) -> Path:
        return root_of(self.place) / ".locks" / f"{self.paths[number].name.rpartition('-')[2]}.{what}"

    def use(self, number: int) -> None:
        """Sets the time of last use from the model's clock, because the kernel's ticks are too long to order uses."""
        assert self.lock(number, "lease").stat().st_mtime > 1_000_000, "it counts as used"
        self.clock += 1
        os.utime(self.lock(number, "lease"), (self.clock, self.clock))
        self.model[number].used = self.clock

    def name(self) -> str:
        self.names += 1
        return f"open {self.names}"

    def an_actor(self, choice: int) -> Actor:
        """One of the processes, or a new one."""
        choice %= len(self.actors) + 1 if len(self.actors) < 4 else len(self.actors)
        if choice == len(self.actors):
            self.actors.append(Actor(self.children.start()))
        return self.actors[choice]

    # ---- the rules ----

    @rule(choice=st.integers(0, 9), number=NUMBERS, tight=st.booleans(), promise=st.booleans())
    def stage(self, choice: int, number: int, tight: bool, promise: bool) -> None:
        if number in self.hidden:
            return
        actor, name = self.an_actor(choice), self.name()
        options: dict[str, Any] = {"budget": self.budget if tight else None, "grace": GRACE if promise else 0}
        line = self.queue(excluding=number)
        going = line[: max(0, len(self.model) - 1)] if tight and number not in self.model else []
        fits = number in self.model or not tight or len(self.model) - len(going) < 2
        fresh = not list(root_of(self.place).glob(".tmp/*"))
        reply = actor.child.attempt("stage", dataset=self.sources[number], to=self.place, name=name, **options)
        if isinstance(reply, Refused):
            assert reply.kind == "NoRoom", reply
            assert not fits, reply
            return
        assert fits
        if number in self.model or fresh:
            assert (reply["copied"] == 0) == (number in self.model)
        assert reply["local"] == reply["shards"]
        self.paths[number] = Path(reply["path"])
        for other in going:
            del self.model[other]
        known = self.model.setdefault(number, Known(0))
        known.pinned = self.lock(number, "pin").exists()
        known.promised = known.promised or promise or self.is_promised(number)
        actor.open[name] = number
        self.use(number)

    def is_promised(self, number: int) -> bool:
        promise = self.lock(number, "promise")
        return promise.exists() and promise.stat().st_mtime > time.time()

    @precondition(lambda self: self.paths)
    @rule(choice=st.integers(0, 9), number=NUMBERS)
    def open(self, choice: int, number: int) -> None:
        """Opens a path that staging returned, perhaps long ago."""
        if number not in self.paths:
            return
        actor, name = self.an_actor(choice), self.name()
        reply = actor.child.attempt("open_store", path=self.paths[number], name=name)
        if isinstance(reply, Refused):
            assert number not in self.model, reply
            assert "has been evicted: stage it again" in reply.message
            return
        assert number in self.model
        actor.open[name] = number
        self.use(number)

    @precondition(lambda self: any(actor.open for actor in self.actors))
    @rule(choice=st.integers(0, 9), which=st.integers(0, 9))
    def let_go(self, choice: int, which: int) -> None:
        actors = [actor for actor in self.actors if actor.open]
        actor = actors[choice % len(actors)]
        name = list(actor.open)[which % len(actor.open)]
        actor.child.do("drop", name=name)
        del actor.open[name]

    @precondition(lambda self: 0 < len(self.actors) < 6)
    @rule(choice=st.integers(0, 9))
    def fork(self, choice: int) -> None:
        parent = self.actors[choice % len(self.actors)]
        self.actors.append(Actor(self.children.fork(parent.child), dict(parent.open)))

    @precondition(lambda self: self.actors)
    @rule(choice=st.integers(0, 9), how=st.sampled_from(["kill", "end"]))
    def ends(self, choice: int, how: str) -> None:
        actor = self.actors.pop(choice % len(self.actors))
        getattr(actor.child, how)()

    @rule(number=NUMBERS, at=st.integers(1, 140), tight=st.booleans())
    def copier_dies(self, number: int, at: int, tight: bool) -> None:
        """How far it got is read from the folder; only entries that may be evicted can be missing."""
        if number in self.hidden:
            return
        args = {
            "dataset": str(self.sources[number]),
            "place": str(self.place),
            "options": {"budget": self.budget if tight else None},
        }
        known = number in self.model
        outcome = self.faulty.run(STAGE, args, self.place, Action.KILL, at)
        if outcome.returncode not in (0, -signal.SIGKILL):
            assert tight and not known and "NoRoom" in outcome.output, outcome.output
        line = self.queue(excluding=number)
        for other in list(self.model):
            if not self.paths[other].exists():
                assert tight and other == line.pop(0)
                del self.model[other]
        for path in root_of(self.place).glob(f"{self.sources[number].name}-*"):
            self.paths[number] = path
            self.model.setdefault(number, Known(0, self.lock(number, "pin").exists()))
            if self.lock(number, "lease").stat().st_mtime > 1_000_000:
                self.use(number)

    @rule(force=st.booleans())
    def evict_all(self, force: bool) -> None:
        going = {
            number
            for number, known in self.model.items()
            if not (self.leased(number) or known.pinned or number in self.hidden or (known.promised and not force))
        }
        gone = {entry.path for entry in evict(self.place, force=force) if entry.finished}
        assert gone == {self.paths[number] for number in going}
        for number in going:
            del self.model[number]

    @precondition(lambda self: self.model)
    @rule(choice=st.integers(0, 9))
    def evict_one(self, choice: int) -> None:
        number = list(self.model)[choice % len(self.model)]
        try:
            evict(self.place, [self.paths[number].name])
        except Leased:
            assert self.leased(number)
        except StagingError:
            assert not self.leased(number) and not self.may_go(number)
        else:
            assert self.may_go(number)
            del self.model[number]

    @precondition(lambda self: self.model)
    @rule(choice=st.integers(0, 9), pinned=st.booleans())
    def pin(self, choice: int, pinned: bool) -> None:
        number = list(self.model)[choice % len(self.model)]
        assert pin(self.place, self.paths[number].name, pinned).pinned is pinned
        self.model[number].pinned = pinned

    @precondition(lambda self: any(known.promised for known in self.model.values()))
    @rule()
    def time_passes(self) -> None:
        for number in self.paths:
            if self.lock(number, "promise").exists():
                os.utime(self.lock(number, "promise"), (1, 1))
        for known in self.model.values():
            known.promised = False

    @rule(number=NUMBERS)
    def hide_or_show_source(self, number: int) -> None:
        source = self.sources[number]
        away = source.with_name(f"{source.name}-away")
        source.rename(away) if number not in self.hidden else away.rename(source)
        self.hidden ^= {number}

    # ---- the invariant ----

    @invariant()
    def the_root_is_what_the_model_says(self) -> None:
        found = {entry.path: entry for entry in entries(self.place) if entry.finished}
        assert found.keys() == {self.paths[number] for number in self.model}
        for number, known in self.model.items():
            entry = found[self.paths[number]]
            assert entry.state == "complete"
            assert entry.leased == self.leased(number)
            assert (entry.pinned, entry.promised, entry.last_used) == (known.pinned, known.promised, known.used)
            content = tree(entry.path)
            content.pop("staged.json")
            assert content == self.contents[number]
        if root_of(self.place).exists():
            assert {entry.state for entry in entries(self.place)} <= {"complete", "interrupted"}

    def teardown(self) -> None:
        self.children.kill_all()
        self.actors = []
        for number in self.hidden:
            source = self.sources[number]
            source.with_name(f"{source.name}-away").rename(source)
        for number in list(self.model):
            pin(self.place, self.paths[number].name, False)
        if self.model or root_of(self.place).exists():
            evict(self.place, force=True)
            assert entries(self.place) == []
            assert not [path for path in root_of(self.place).rglob("*") if path.is_file() and path.stat().st_size]
        shutil.rmtree(self.folder)


@pytest.mark.complete
@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no memory to stage to")
@pytest.mark.parametrize(
    ("examples", "steps"), [(4, 20), pytest.param(100, 50, marks=pytest.mark.stress)], ids=["short", "long"]
)
def test_the_root_is_what_a_dict_says(
    children: Children, faulty: FaultServer, datasets: tuple[Path, ...], place: Path, examples: int, steps: int
) -> None:
    sizes = [room_for(dataset, place) - SLACK for dataset in datasets[:3]]
    budget = 2 * max(sizes) + 48 * 1024
    assert budget < 3 * min(sizes)
    machine: Any = partial(Machine, children, faulty, datasets[:3], budget)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
