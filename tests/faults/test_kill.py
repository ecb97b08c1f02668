"""A packer may be killed at any moment: nothing is damaged, and the same command then gives the very same bytes.

Each case is a real process, killed by SIGKILL right before one of its changes to the output folder, or after half of a
write. A plain pack of images dies at every one of its calls in every format; `make test` takes a sample of the calls.
A pack of many fields, or one that starts from a finished dataset, is killed at a sample of them. The torn writes of the
latter, and other formats than tar, are left to `make stress`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePath

import pytest
from helpers.faults.campaign import Campaign, Program, renewed
from helpers.faults.cases import PACK, Job, assert_same, assert_sound_if_finished, assert_survives, written
from helpers.faults.harness import Action, Call, FaultServer
from helpers.faults.medium import unsynced
from helpers.support import ONE_FORMAT, tree

from packtrain._packer.markers import FAILED, PACKED, PACKING

FROM_FINISHED = [
    pytest.param("tar", Action.KILL, id="tar"),
    pytest.param("tar", Action.TEAR, id="tar-torn", marks=pytest.mark.stress),
    pytest.param("hdf5", Action.KILL, id="hdf5", marks=pytest.mark.stress),
    pytest.param("lmdb", Action.KILL, id="lmdb", marks=pytest.mark.stress),
]


@ONE_FORMAT
@pytest.mark.parametrize("content", ["images", pytest.param("many fields", marks=pytest.mark.complete)], indirect=True)
def test_killed_anywhere_and_run_again_gives_the_same_bytes(
    packer: FaultServer, job: Job, memory_path: Path, campaign: Campaign
) -> None:
    program = job.program(packer, memory_path / "out")
    assert_survives(campaign, program, job.run, Action.KILL, Action.TEAR, every=job.every)


@pytest.mark.complete
@pytest.mark.parametrize(("format", "action"), FROM_FINISHED)
def test_killed_while_retrying_rejects(
    packer: FaultServer,
    small_job: Job,
    mended_job: Job,
    memory_path: Path,
    campaign: Campaign,
    format: str,
    action: Action,
) -> None:
    refused, mended = replace(small_job, format=format), replace(mended_job, format=format)
    finished, out = memory_path / "finished", memory_path / "out"
    refused.run(finished)
    program = mended.program(packer, out).starting_from(finished)
    calls = program.undisturbed()
    expected = tree(out)
    assert expected != tree(finished)
    for _ in campaign(program, calls, action, every=2 * refused.every):
        assert_sound_if_finished(out)
        mended.run(out)
        assert_same(out, expected)


@pytest.mark.complete
@pytest.mark.parametrize(("format", "action"), FROM_FINISHED)
def test_killed_while_packing_a_lost_shard_again(
    packer: FaultServer, small_job: Job, memory_path: Path, campaign: Campaign, format: str, action: Action
) -> None:
    job = replace(small_job, format=format)
    finished, out = memory_path / "finished", memory_path / "out"
    job.run(finished)
    expected = tree(finished)
    (lost,) = finished.glob("*-000001.[!i]*")
    lost.unlink()
    kept = {path.name for path in finished.glob(f"*-00000[02]{lost.suffix}")}
    before: dict[str, object] = {}

    def prepare(folder: Path) -> None:
        renewed(folder, finished)
        before.update({name: written(folder / name) for name in kept})

    program = replace(job.program(packer, out), prepare=prepare)
    for _ in campaign(program, program.undisturbed(), action, every=2 * job.every):
        job.run(out)
        assert {name: written(out / name) for name in kept} == before
        assert_same(out, expected)


@pytest.mark.complete
def test_killed_while_looking_at_a_finished_dataset(
    packer: FaultServer, job: Job, memory_path: Path, campaign: Campaign
) -> None:
    """Also one whose notes are still there, because its packer was killed before it could remove them."""
    out = memory_path / "out"
    program = job.program(packer, out)
    calls = program.undisturbed()
    expected = tree(out)
    before_the_end = next(at for at, call in enumerate(calls, 1) if call.target == "manifest.json") + 1
    finished, with_notes = out.rename(memory_path / "finished"), memory_path / "with notes"
    program.run(Action.KILL, before_the_end)
    out.rename(with_notes)
    # There is nothing to kill in a run that finds nothing to do.
    assert not program.starting_from(finished).undisturbed()
    assert_same(out, expected)
    again = program.starting_from(with_notes)
    for _ in campaign(again, again.undisturbed(), Action.KILL, every=2 * job.every):
        assert_sound_if_finished(out)
        assert job.run(out).complete_before
        assert_same(out, expected)


@pytest.mark.stress
def test_killed_again_and_again(packer: FaultServer, job: Job, memory_path: Path, campaign: Campaign) -> None:
    out = memory_path / "out"
    program = job.program(packer, out)
    calls = program.undisturbed()
    expected = tree(out)
    chance = random.Random(0)
    for _ in range(100):
        for _ in campaign.again_and_again(program, calls, chance):
            assert_sound_if_finished(out)
        assert_same(out, expected)


def watched_calls(packer: FaultServer, job: Job, folder: Path, model: Path | None = None) -> list[Call]:
    """The calls of a run into folder/out, those in `folder` itself included; but not markers, which may get lost."""
    folder.mkdir()
    calls = Program(
        packer, PACK, job.args(folder / "out"), folder, lambda _: renewed(folder / "out", model)
    ).undisturbed()
    markers = (PACKING, FAILED, PACKED)
    return [call for call in calls if not any(kind in f"{call.path} {call.target}" for kind in markers)]


def parents(names: Iterable[str]) -> set[str]:
    """The folders that these names are in."""
    return {str(PurePath(name).parent) for name in names}


def test_what_has_a_name_is_on_the_medium(packer: FaultServer, job: Job, memory_path: Path) -> None:
    calls = watched_calls(packer, job, memory_path / "watched")
    given = []
    for call, files, names in unsynced(calls):
        if call is None or not call.name.startswith(("rename", "link")):
            continue
        given.append(call.target)
        assert call.path not in files, f"{call.target} is named before its content is on the medium"
        if call.target.startswith("out/parts/"):
            assert "out" not in parents(names), f"{call.target} is named while its shard might lose its name"
        if call.target == "out/manifest.json":
            assert not names, "the dataset is finished while these names might get lost"
            assert not files
    assert given[-1] == "out/manifest.json"
    assert len(given) > 20


def test_a_finished_dataset_is_unmade_in_order(
    packer: FaultServer, small_job: Job, mended_job: Job, memory_path: Path
) -> None:
    """The notes are on the medium before the manifest goes, and that is, before anything else changes."""
    small_job.run(memory_path / "finished")
    calls = watched_calls(packer, mended_job, memory_path / "watched", model=memory_path / "finished")
    (gone,) = (at for at, call in enumerate(calls) if (call.name, call.path) == ("unlink", "out/manifest.json"))
    assert parents(call.target for call in calls[:gone] if call.target) == {"out/parts"}
    *_, last = unsynced(calls[:gone], ["out", "out/index"])
    assert last == (None, set(), set())
    assert (calls[gone + 1].name, calls[gone + 1].path) == ("fsync", "out")
    shards = [at for at, call in enumerate(calls) if call.target.endswith(".tar")]
    assert shards
    assert min(shards) > gone
