"""Killed at any moment, staging leaves nothing to clean up, and the next call completes the work.

Real processes are killed by SIGKILL right before one of their changes to the folder, or after half of a write. With one
thread, every such point is tested (`make test` takes a sample); with several threads, random points are.
"""

from __future__ import annotations

import errno
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.faults.campaign import KILLED, Campaign, Program, renewed
from helpers.faults.harness import Action, FaultServer
from helpers.local_objects import STORE, LocalObjects
from helpers.staging.children import Child
from helpers.staging.laws import STAGE, assert_same, assert_tidy, big_dataset, root_of
from helpers.staging.unused import room_for, staged
from helpers.support import flip, held, tree

from packtrain import StageOptions, append, compact, drop_rows, open_dataset, purge, stage, verify
from packtrain._core.files import is_temporary
from packtrain._readers.dataset.image_dataset import caches_of
from packtrain._storage.remote import client
from packtrain._storage.streams import opening
from packtrain.errors import UsageError
from packtrain.staging import entries, evict, repair

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


def emptied(place: Path) -> None:
    shutil.rmtree(root_of(place), ignore_errors=True)


def program(server: FaultServer, place: Path, source: str, /, **args: object) -> Program:
    """Code that changes a place, which is empty when it begins."""
    # In memory nothing is synced.
    return Program(server, source, {**args, "place": str(place)}, place, emptied, lost=("*",))


def starting_from_here(victim: Program) -> Program:
    """The same program, each run of which begins with what the place holds now."""
    root = root_of(victim.folder)
    model = shutil.copytree(root, victim.folder / "model", symlinks=True)
    return replace(victim, prepare=lambda _: renewed(root, model))


def assert_completes(dataset: Path, place: Path) -> None:
    """The next call gives a complete copy, and nothing else is left."""
    path = staged(dataset, place)
    assert_same(path, dataset)
    assert_tidy(place, path)
    (entry,) = entries(place)
    assert (entry.state, entry.shards) == ("complete", entry.local_shards)


@pytest.mark.complete
def test_the_copier_dies_anywhere(faulty: FaultServer, dataset: Path, place: Path, campaign: Campaign) -> None:
    copier = program(faulty, place, STAGE, dataset=str(dataset), options={"threads": 1})
    calls = copier.undisturbed()
    assert len(calls) > 60
    for _ in campaign(copier, calls, Action.KILL, Action.TEAR):
        for path in root_of(place).glob("[!.]*"):
            assert_same(path, dataset)
        assert_completes(dataset, place)


@pytest.mark.complete
def test_the_copier_of_a_partial_entry_dies_anywhere(
    faulty: FaultServer, dataset: Path, place: Path, campaign: Campaign
) -> None:
    """First while it makes the entry, then while it adds shards; afterwards all of it is staged with more room."""
    budget = half_of(dataset, place)
    options = {"threads": 1, "budget": budget, "partial": True}
    begin = program(faulty, place, STAGE, dataset=str(dataset), options=options)
    calls = begin.undisturbed()
    assert entries(place)[0].state == "partial"
    for _ in campaign(begin, calls, Action.KILL, every=2):
        assert_completes(dataset, place)
    emptied(place)
    staged(dataset, place, budget=budget, partial=True)
    grow = starting_from_here(program(faulty, place, STAGE, dataset=str(dataset), options={"threads": 1}))
    for _ in campaign(grow, grow.undisturbed(), Action.KILL, every=2):
        (path,) = root_of(place).glob("[!.]*")
        found = tree(path)
        assert {name: found[name] for name in tree(dataset)} == tree(dataset)
        assert_completes(dataset, place)


@pytest.mark.complete
def test_the_evictor_dies_anywhere(
    faulty: FaultServer, datasets: tuple[Path, ...], place: Path, campaign: Campaign
) -> None:
    for dataset in datasets[:2]:
        staged(dataset, place)
    evictor = starting_from_here(program(faulty, place, EVICT))
    for _ in campaign(evictor, evictor.undisturbed(), Action.KILL):
        left = sorted(root_of(place).glob("[!.]*"))
        for path in left:
            assert_same(path, next(dataset for dataset in datasets if path.name.startswith(dataset.name)))
        assert_tidy(place, staged(datasets[2], place), *left)


@pytest.mark.complete
def test_the_repairer_dies_anywhere(faulty: FaultServer, dataset: Path, place: Path, campaign: Campaign) -> None:
    """Readers find every file at any time, and intact files stay as they are."""
    copy = staged(dataset, place)
    damaged = copy / "index" / "line.npy", sorted(copy.glob("*.tar"))[1]
    for path in damaged:
        path.chmod(0o644)
        flip(path, 600 if path.suffix == ".tar" else -1)
    repairer = starting_from_here(program(faulty, place, REPAIR, entry=str(copy)))
    for _ in campaign(repairer, repairer.undisturbed(), Action.KILL):
        assert set(tree(copy)) == {*tree(dataset), "staged.json"}
        repair(copy.parents[1], copy.name)
        staged(dataset, place)
        assert_same(copy, dataset)
        assert_tidy(place, copy)


@pytest.mark.complete
def test_a_full_medium_is_a_clean_error_anywhere(
    faulty: FaultServer, dataset: Path, place: Path, campaign: Campaign
) -> None:
    options = {"threads": 1}
    copier = program(faulty, place, CLEANLY, code=STAGE, dataset=str(dataset), options=options)
    said = set()
    for trial in campaign(copier, copier.undisturbed(), Action.FAIL_FROM, error=errno.ENOSPC, every=4):
        assert trial.outcome.returncode in (0, CLEAN_ERROR), trial.outcome.output
        if trial.outcome.returncode == CLEAN_ERROR:
            said.add(trial.outcome.output)
            assert "no space left" in trial.outcome.output.lower()
        assert_completes(dataset, place)
    assert len(said) > 3


@pytest.mark.complete
@ROUNDS
def test_threads_die_again_and_again(
    faulty: FaultServer, dataset: Path, place: Path, campaign: Campaign, count: int
) -> None:
    chance = random.Random(count)
    copier = program(faulty, place, STAGE, dataset=str(dataset), options={})
    calls = copier.undisturbed()
    for _ in range(count):
        # Each run needs fewer changes, because it continues where the last one stopped.
        for _ in campaign.again_and_again(copier, calls, chance, most=5):
            pass
        assert_completes(dataset, place)


@pytest.mark.complete
@ROUNDS
def test_killed_at_any_time(
    tmp_path_factory: pytest.TempPathFactory, start: Callable[[], Child], place: Path, count: int
) -> None:
    """After a random time, while threads copy; finished pieces are not copied again."""
    chance = random.Random(count)
    source = big_dataset(tmp_path_factory.mktemp("big") / "big", [20 << 20] * 4)
    begun = time.monotonic()
    whole = start().do("stage", dataset=source, to=place)["copied"]
    seconds = time.monotonic() - begun
    resumed = 0
    for _ in range(count):
        emptied(place)
        child = start()
        child.send("stage", dataset=source, to=place)
        time.sleep(chance.uniform(0, seconds))
        child.kill()
        again = stage(source, StageOptions(to=place))
        resumed += 0 < again.copied < whole
        assert_same(again.path, source)
        assert_tidy(place, again.path)
        again.lease.close()
    assert resumed, "no copy was hit in its middle"


def half_of(dataset: Path, place: Path) -> int:
    """A budget for half of a dataset's shards."""
    shards = sum(path.stat().st_blocks * 512 for path in dataset.glob("*.tar"))
    return room_for(dataset, place) - shards // 2


AT_ADDRESS = """
import os
import sys
from pathlib import Path
sys.path.append(args["tests"])
from helpers.local_objects import STORE, LocalObjects
from packtrain._storage.remote import client
from packtrain._storage.remote.urls import Url
from packtrain._storage.staging.options import StageOptions
from packtrain._storage.staging.stager import stage
from packtrain._storage.streams import opening

os.environ[STORE] = args["store"]
client.ObjectStore = lambda **_: LocalObjects()
options = StageOptions(to=Path(args["place"]), threads=1 if args["budget"] is None else None)
if args["budget"] is None:
    stage("s3://bucket/set", options)
else:
    opening.MOST = 1
    opening.open_version(Url.parse("s3://bucket/set"), options, args["budget"], LocalObjects())
"""


@pytest.mark.complete
@pytest.mark.parametrize("budget", [pytest.param(None, marks=pytest.mark.stress), 1 << 26])
def test_who_takes_a_version_from_an_address_dies_anywhere(
    faulty: FaultServer,
    datasets: tuple[Path, ...],
    place: Path,
    tmp_path: Path,
    campaign: Campaign,
    monkeypatch: pytest.MonkeyPatch,
    budget: int | None,
) -> None:
    """As copies of its segments, or as caches of them."""
    changed = shutil.copytree(datasets[0], tmp_path / "store" / "bucket" / "set")
    append(changed, datasets[1])
    drop_rows(changed, [0])
    expected = open_dataset(changed).targets.tolist()
    monkeypatch.setenv(STORE, str(tmp_path / "store"))
    monkeypatch.setattr(client, "ObjectStore", lambda **_: LocalObjects())
    monkeypatch.setattr(opening, "MOST", 1)
    args = {"store": str(tmp_path / "store"), "tests": str(Path(__file__).parents[2]), "budget": budget}
    copier = program(faulty, place, AT_ADDRESS, **args)
    for _ in campaign(copier, copier.undisturbed(), Action.KILL, every=8):
        for path in root_of(place).glob("*-version-*[!m]"):
            assert verify(path).problems == ()
        dataset = open_dataset("s3://bucket/set", stage=place, budget=budget)
        assert dataset.targets.tolist() == expected
        assert len(caches_of(dataset)) == (0 if budget is None else 2)
        found = sorted(entry.state for entry in entries(place))
        assert found == ["complete", "complete", "version"] if budget is None else ["stream"] * 3
        assert_tidy(place, *(entry.path for entry in entries(place)))


MEANWHILE: dict[str, Callable[[Path, Path], object]] = {
    "appended to": append,
    "joined": lambda changed, more: compact(changed),
    "purged, with every version that there was": lambda changed, more: purge(changed, [0, 20]),
}


@pytest.mark.complete
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("count", [2, pytest.param(25, marks=pytest.mark.stress)])
def test_who_copies_a_version_dies_and_then_it_is(
    faulty: FaultServer,
    datasets: tuple[Path, ...],
    place: Path,
    tmp_path: Path,
    campaign: Campaign,
    meanwhile: str,
    count: int,
) -> None:
    """The newest version is copied, from what was copied of the one before and what is new."""
    model = shutil.copytree(datasets[0], tmp_path / "model")
    append(model, datasets[1])
    drop_rows(model, [0])
    changed = renewed(tmp_path / "changed", model)
    copier = program(faulty, place, STAGE, dataset=str(changed), options={"threads": 1})
    calls = copier.undisturbed()
    for at in random.Random(meanwhile).sample(range(1, len(calls) + 1), count):
        print(at, calls[at - 1])
        copier.prepare(place)
        assert copier.run(Action.KILL, at).returncode == KILLED
        campaign.counts[Action.KILL.name] += 1
        for path in root_of(place).glob("*-version-*"):
            assert verify(path).problems == ()
        MEANWHILE[meanwhile](changed, datasets[2])
        assert held(open_dataset(changed, stage=place)) == held(open_dataset(changed))
        assert verify(next(root_of(place).glob("*-version-*"))).problems == ()
        assert not [path for path in root_of(place).glob("*-version-*/**/*") if is_temporary(path)]
        if meanwhile.startswith("purged"):
            with pytest.raises(UsageError, match="version 3 was dropped"):
                stage(changed, place, version=3)
        # Of what was purged, a whole copy may be the last one.
        evict(place, [entry.id for entry in entries(place)], force=True)
        assert_tidy(place)
        renewed(changed, model)
