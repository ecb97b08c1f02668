"""A packer may be killed at any moment: nothing is damaged, and the same command then gives the very same bytes.

Each case is a real process, killed by SIGKILL right before one of its changes to the output folder, or after half of a
write. A plain pack of images dies at every one of its calls in every format; `make test` takes a sample of the calls.
A pack of many fields, or one that starts from a finished dataset, is killed at a sample of them. The torn writes of the
latter, and other formats than tar, are left to `make stress`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import pytest
from helpers.faults.campaign import Campaign, Program, renewed
from helpers.faults.cases import PACK, Job, assert_same, assert_sound_if_finished, assert_survives, written
from helpers.faults.harness import Action, Call, FaultServer
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


def names_given(calls: Sequence[Call]) -> Iterator[tuple[str, Call, set[str], set[str]]]:
    """For every call that gives a file its final name: that name, the call, and what is not yet on the medium then.

    That is: files whose content is not, and folders in which names (not those of temporary files) are not.
    """
    files: set[str] = set()
    folders: set[str] = set()
    for call in calls:
        name = call.target or call.path
        if call.name in ("rename", "link"):
            yield name, call, set(files), set(folders)
        if call.name in ("rename", "link", "mkdir"):
            folders.add(str(PurePath(name).parent))
        elif call.name == "fsync":
            files.discard(name)
            folders.discard(name)
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            files.discard(name)
        elif not name.endswith(" (deleted)"):  # a file without a name is gone after a crash, as it should be
            files.add(name)
    yield "the end", calls[-1], files, folders


def test_what_has_a_name_is_on_the_medium(packer: FaultServer, job: Job, memory_path: Path) -> None:
    calls = watched_calls(packer, job, memory_path / "watched")
    names = []
    for name, call, files, folders in names_given(calls):
        names.append(name)
        assert call.path not in files, f"{name} is named before its content is on the medium"
        if name.startswith("out/parts/"):
            assert "out" not in folders, f"{name} is named while its shard might lose its name"
        if name in ("out/manifest.json", "the end"):
            assert folders == set(), f"{name} comes while names in these folders might get lost"
            assert files == set()
    assert names[-2:] == ["out/manifest.json", "the end"]
    assert len(names) > 20


def test_a_finished_dataset_is_unmade_in_order(
    packer: FaultServer, small_job: Job, mended_job: Job, memory_path: Path
) -> None:
    """The notes are on the medium before the manifest goes, and that is, before anything else changes."""
    small_job.run(memory_path / "finished")
    calls = watched_calls(packer, mended_job, memory_path / "watched", model=memory_path / "finished")
    (gone,) = (at for at, call in enumerate(calls) if (call.name, call.path) == ("unlink", "out/manifest.json"))
    *notes, last = names_given(calls[:gone])
    assert {PurePath(name).parent for name, *_ in notes} == {PurePath("out/parts")}
    assert last[2:] == (set(), set())
    assert (calls[gone + 1].name, calls[gone + 1].path) == ("fsync", "out")
    shards = [at for at, call in enumerate(calls) if call.target.endswith(".tar")]
    assert shards
    assert min(shards) > gone
