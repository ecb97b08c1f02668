"""A full or failing disk ends in an error of packtrain's own, costs no finished shard, and the next run completes."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

import pytest
from helpers.faults.campaign import KILLED, Campaign, renewed
from helpers.faults.cases import (
    CLEAN_ERROR,
    DONE,
    PACK,
    Job,
    assert_completed,
    assert_same,
    assert_sound_if_finished,
    finished_shards,
)
from helpers.faults.harness import Action, FaultServer, Outcome
from helpers.support import ONE_FORMAT, tree

from packtrain._core.files import is_temporary, temporary_path

LIMITED = f"""
import contextlib, io, resource
before, said = resource.getrlimit(resource.RLIMIT_FSIZE), io.StringIO()
resource.setrlimit(resource.RLIMIT_FSIZE, (args["limit"], before[1]))
try:
    with contextlib.redirect_stdout(said):
        exec({PACK!r}, {{"args": args}})
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    print(said.getvalue())  # to a file
"""


def assert_no_space(outcome: Outcome, out: Path) -> None:
    """The run says that there is no space and leaves no half of a file behind."""
    assert outcome.returncode == CLEAN_ERROR, outcome.output
    assert outcome.output.startswith(f"NoSpace: no space left for {out}"), outcome.output
    assert "run the same command again" in outcome.output
    if out.exists():
        assert [path for path in out.rglob("*") if is_temporary(path)] == []
        assert_sound_if_finished(out)


@pytest.mark.complete
@ONE_FORMAT
def test_full_from_any_call_on(packer: FaultServer, job: Job, memory_path: Path, campaign: Campaign) -> None:
    out = memory_path / "out"
    program = job.program(packer, out)
    calls = program.undisturbed()
    expected = tree(out)
    for trial in campaign(program, calls, Action.FAIL_FROM, error=errno.ENOSPC, every=4 * job.every):
        before = [call.target for call in calls[: trial.at - 1]]
        # All that is left to do after the manifest is to remove things.
        if trial.outcome.returncode == DONE:
            assert "manifest.json" in before
            continue
        assert_no_space(trial.outcome, out)
        notes = {PurePath(target).stem for target in before if target.endswith(".npz")}
        assert notes <= finished_shards(out).keys() or (out / "manifest.json").exists()
        assert_completed(out, expected, job.run)


@pytest.mark.complete
@ONE_FORMAT
def test_one_failing_call(packer: FaultServer, job: Job, memory_path: Path, campaign: Campaign) -> None:
    """A shard is tried once more; whatever fails outside of shards ends the run."""
    out = memory_path / "out"
    program = job.program(packer, out)
    calls = program.undisturbed()
    expected = tree(out)
    for trial in campaign(program, calls, Action.FAIL, error=errno.EIO, every=4 * job.every):
        outcome, path = trial.outcome, Path(trial.call.path)
        assert outcome.returncode in (DONE, CLEAN_ERROR), outcome.output
        assert_sound_if_finished(out)
        if is_temporary(path) and path.name.startswith(".train-"):
            assert outcome.returncode == DONE, outcome.output
            assert_same(out, expected)
        elif outcome.returncode == CLEAN_ERROR:
            assert "Input/output error" in outcome.output
            assert "run the same command again" in outcome.output
        assert_completed(out, expected, job.run)


@pytest.mark.complete
def test_short_writes_change_nothing(packer: FaultServer, job: Job, memory_path: Path, campaign: Campaign) -> None:
    """The kernel may write less than it is asked to. LMDB takes that for a failure, or for a full disk."""
    out = memory_path / "out"
    program = job.program(packer, out)
    calls = program.undisturbed()
    expected = tree(out)
    for trial in campaign(program, calls, Action.SHORT, every=2 * job.every):
        if trial.call.name == "pwrite" and job.format == "lmdb" and trial.outcome.returncode != DONE:
            assert_no_space(trial.outcome, out)
            job.run(out)
        else:
            assert trial.outcome.returncode == DONE, trial.outcome.output
        assert_same(out, expected)


def give(disk: Path, options: str) -> None:
    """Gives a tmpfs other options."""
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


@pytest.mark.complete
@ONE_FORMAT
def test_small_file_system(packer: FaultServer, job: Job, tmp_path: Path, mounted: Callable[[str], Path]) -> None:
    """Every third size from one page up to what the dataset needs."""
    expected = job.packed(tmp_path / "undisturbed")
    out = mounted("size=4k") / "out"
    for pages in range(1, 400, 3):
        give(out.parent, f"size={4 * pages}k")
        outcome = job.program(packer, renewed(out)).run()
        if outcome.returncode == DONE:
            break
        print(pages, "pages")
        assert_no_space(outcome, out)
        give(out.parent, "size=64m")
        assert_completed(out, expected, job.run)
        renewed(out)
    assert_same(out, expected)
    assert pages > 20


def test_the_room_that_a_dead_packer_took_is_free_again(
    packer: FaultServer, job: Job, mounted: Callable[[str], Path]
) -> None:
    out = mounted("size=1m") / "out"
    program = job.program(packer, out)
    calls = program.undisturbed()
    expected = tree(out)
    half = next(at for at, call in enumerate(calls, 1) if call.target.startswith("parts/"))
    renewed(out)
    assert program.run(Action.KILL, half).returncode == KILLED
    # Of a shard that comes later: its own temporary files a shard removes itself.
    with temporary_path(out / "train-000002.tar").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(out).free)
    assert shutil.disk_usage(out).free == 0
    assert_completed(out, expected, job.run)


@pytest.mark.complete
@ONE_FORMAT
def test_limited_file_size(packer: FaultServer, job: Job, memory_path: Path) -> None:
    expected = job.packed(memory_path / "undisturbed")
    largest = max(map(len, expected.values()))
    (memory_path / "elsewhere").mkdir()
    for limit in (100, 500, 1000, 2500, 5000, *range(6000, largest, 3000), largest - 1, largest):
        out = renewed(memory_path / "out")
        # The harness watches another folder: its log of calls would be cut by the limit, too.
        outcome = packer.run(LIMITED, {**job.args(out), "limit": limit}, memory_path / "elsewhere")
        if outcome.returncode == DONE:
            break
        print("limit", limit)
        assert_no_space(outcome, out)
        assert_completed(out, expected, job.run)
    assert limit == largest
    assert_same(out, expected)


@pytest.mark.complete
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("content", ["images"], indirect=True)
def test_the_command_line_says_it_in_one_line(small_job: Job, tmp_path: Path, workers: int) -> None:
    @contextmanager
    def file_size(limit: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    command = [sys.executable, "-m", "packtrain", "pack", str(small_job.source), str(tmp_path / "out")]
    command += ["--format", "tar", "--shard-size", str(small_job.shard_bytes), "--max-rejects", "1", "--json"]
    # Python would publish cut .pyc files: it does not look at how much of one was written.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command += ["--workers", str(workers)]
    with file_size(4000):
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: no space left for {tmp_path / 'out'} (File too large")
    assert "raise the limit of file sizes (`ulimit -f`)" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert json.loads(ended.stdout)["error"] == "NoSpace"
    assert [path for path in (tmp_path / "out").rglob("*") if is_temporary(path)] == []
