"""A packer may be killed at any moment: nothing is damaged, and the same command then gives the very same bytes.

Each case is a real process, killed by SIGKILL right before one of its changes to the output folder, or after half of a
write. A plain pack dies at every one of its calls in every format; `make test` takes a sample of the calls. A pack that
starts from a finished dataset is killed for tar; its torn writes and the other formats are left to `make stress`.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import pytest
from helpers.faults.cases import (
    DONE,
    PACK,
    Job,
    assert_same,
    assert_sound_if_finished,
    finished_shards,
    renewed,
    written,
)
from helpers.faults.harness import Action, Call, FaultPoints, FaultServer
from helpers.support import ONE_FORMAT, tree

from packtrain._packer.traces import FAILED, PACKED, PACKING

KILLED = -signal.SIGKILL
FROM_FINISHED = [
    pytest.param("tar", Action.KILL, id="tar"),
    pytest.param("tar", Action.TEAR, id="tar-torn", marks=pytest.mark.stress),
    pytest.param("hdf5", Action.KILL, id="hdf5", marks=pytest.mark.stress),
    pytest.param("lmdb", Action.KILL, id="lmdb", marks=pytest.mark.stress),
]


def calls_of(packer: FaultServer, job: Job, out: Path, model: Path | None = None) -> tuple[Call, ...]:
    """The calls of an undisturbed run, whose result stays in `out`."""
    outcome = job.run_under(packer, renewed(out, model))
    assert outcome.returncode == DONE, outcome.output
    return outcome.calls


@ONE_FORMAT
@pytest.mark.parametrize("content", ["images", pytest.param("many fields", marks=pytest.mark.complete)], indirect=True)
def test_killed_anywhere_and_run_again_gives_the_same_bytes(
    packer: FaultServer, job: Job, memory_path: Path, fault_points: FaultPoints
) -> None:
    calls = calls_of(packer, job, memory_path / "undisturbed")
    expected = tree(memory_path / "undisturbed")
    for case, out, died in job.runs_under(packer, memory_path, fault_points(calls, Action.KILL, Action.TEAR)):
        assert died.returncode == KILLED, case
        assert_sound_if_finished(out, case)
        finished = finished_shards(out)
        report = job.run(out)
        assert report.complete_before or report.resumed >= len(finished), case
        assert {name: written(out / name) for name in finished} == finished, case
        assert_same(out, expected, case)


@pytest.mark.complete
@pytest.mark.parametrize(("format", "action"), FROM_FINISHED)
def test_killed_while_retrying_rejects(
    packer: FaultServer,
    small_job: Job,
    mended_job: Job,
    memory_path: Path,
    fault_points: FaultPoints,
    format: str,
    action: Action,
) -> None:
    refused, mended = replace(small_job, format=format), replace(mended_job, format=format)
    calls_of(packer, refused, memory_path / "finished")
    calls = calls_of(packer, mended, memory_path / "undisturbed", model=memory_path / "finished")
    expected = tree(memory_path / "undisturbed")
    assert expected != tree(memory_path / "finished")
    finished = memory_path / "finished"
    for case, out, died in mended.runs_under(packer, memory_path, fault_points(calls, action), model=finished):
        assert died.returncode == KILLED, case
        assert_sound_if_finished(out, case)
        mended.run(out)
        assert_same(out, expected, case)


@pytest.mark.complete
@pytest.mark.parametrize(("format", "action"), FROM_FINISHED)
def test_killed_while_packing_a_lost_shard_again(
    packer: FaultServer, small_job: Job, memory_path: Path, fault_points: FaultPoints, format: str, action: Action
) -> None:
    job = replace(small_job, format=format)
    calls_of(packer, job, memory_path / "finished")
    expected = tree(memory_path / "finished")
    (lost,) = (memory_path / "finished").glob("*-000001.[!i]*")
    lost.unlink()
    kept = {path.name for path in lost.parent.glob(f"*-00000[02]{lost.suffix}")}
    calls = calls_of(packer, job, memory_path / "undisturbed", model=memory_path / "finished")
    for case in fault_points(calls, action):
        out = renewed(memory_path / "out", memory_path / "finished")
        before = {name: written(out / name) for name in kept}
        assert job.run_under(packer, out, *case).returncode == KILLED, case
        job.run(out)
        assert {name: written(out / name) for name in kept} == before, case
        assert_same(out, expected, case)


@pytest.mark.complete
def test_killed_while_looking_at_a_finished_dataset(
    packer: FaultServer, job: Job, memory_path: Path, fault_points: FaultPoints
) -> None:
    """Also one whose notes are still there, because its packer was killed before it could remove them."""
    calls = calls_of(packer, job, memory_path / "undisturbed")
    expected = tree(memory_path / "undisturbed")
    before_the_end = next(at for at, call in enumerate(calls, 1) if call.target == "manifest.json") + 1
    job.run_under(packer, memory_path / "with notes", Action.KILL, before_the_end)
    for model in (memory_path / "undisturbed", memory_path / "with notes"):
        cases = fault_points(calls_of(packer, job, memory_path / "again", model), Action.KILL)
        for case, out, died in job.runs_under(packer, memory_path, cases, model=model):
            assert died.returncode == KILLED, case
            assert_sound_if_finished(out, case)
            assert job.run(out).complete_before, case
            assert_same(out, expected, case)


@pytest.mark.stress
def test_killed_again_and_again(packer: FaultServer, job: Job, memory_path: Path) -> None:
    calls = calls_of(packer, job, memory_path / "undisturbed")
    expected = tree(memory_path / "undisturbed")
    chance = random.Random(0)
    for number in range(100):
        out = renewed(memory_path / "out")
        history = []
        while True:
            case = chance.choice((Action.KILL, Action.TEAR)), chance.randint(1, len(calls))
            history.append(case)
            outcome = job.run_under(packer, out, *case)
            assert_sound_if_finished(out, history)
            if outcome.returncode != KILLED:
                break
        assert outcome.returncode == DONE, (number, history, outcome.output)
        assert_same(out, expected, (number, history))


def watched_calls(packer: FaultServer, job: Job, folder: Path, model: Path | None = None) -> list[Call]:
    """The calls of a run into folder/out, those in `folder` itself included; but not traces, which may get lost."""
    folder.mkdir()
    outcome = packer.run(PACK, job.args(renewed(folder / "out", model)), folder)
    assert outcome.returncode == DONE, outcome.output
    traces = (PACKING, FAILED, PACKED)
    return [call for call in outcome.calls if not any(kind in f"{call.path} {call.target}" for kind in traces)]


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
