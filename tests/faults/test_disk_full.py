"""A full or failing disk ends in an error of packtrain's own, costs no finished shard, and the next run completes."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

import pytest
from helpers.faults.cases import (
    CLEAN_ERROR,
    DONE,
    PACK,
    Job,
    assert_same,
    assert_sound_if_finished,
    finished_shards,
    renewed,
    written,
)
from helpers.faults.harness import Action, Call, FaultPoints, FaultServer, Outcome
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

Mount = Callable[[str], None]


def undisturbed(packer: FaultServer, job: Job, out: Path) -> tuple[dict[str, bytes], tuple[Call, ...]]:
    """What a run leaves when nothing goes wrong, and its calls."""
    outcome = job.run_under(packer, out)
    assert outcome.returncode == DONE, outcome.output
    return tree(out), outcome.calls


def assert_no_space(outcome: Outcome, out: Path, case: object) -> None:
    """The run says that there is no space and leaves no half of a file behind."""
    assert outcome.returncode == CLEAN_ERROR, (case, outcome.returncode, outcome.output)
    assert outcome.output.startswith(f"NoSpace: no space left for {out}"), (case, outcome.output)
    assert "run the same command again" in outcome.output
    if out.exists():
        assert [path for path in out.rglob("*") if is_temporary(path)] == [], case
        assert_sound_if_finished(out, case)


def assert_completed(job: Job, out: Path, expected: dict[str, bytes], case: object) -> None:
    """The same command completes the dataset and writes no finished shard again."""
    finished = finished_shards(out)
    report = job.run(out)
    assert report.complete_before or report.resumed >= len(finished), case
    assert {name: written(out / name) for name in finished} == finished, case
    assert_same(out, expected, case)


@pytest.mark.complete
@ONE_FORMAT
def test_full_from_any_call_on(packer: FaultServer, job: Job, memory_path: Path, fault_points: FaultPoints) -> None:
    expected, calls = undisturbed(packer, job, memory_path / "undisturbed")
    cases = fault_points(calls, Action.FAIL_FROM)
    for (_, at), out, outcome in job.runs_under(packer, memory_path, cases, errno.ENOSPC):
        # All that is left to do after the manifest is to remove things.
        if outcome.returncode == DONE:
            assert "manifest.json" in {call.target for call in calls[: at - 1]}, at
            continue
        assert_no_space(outcome, out, at)
        notes = {PurePath(call.target).stem for call in calls[: at - 1] if call.target.endswith(".npz")}
        assert notes <= finished_shards(out).keys() or (out / "manifest.json").exists(), at
        assert_completed(job, out, expected, at)


@pytest.mark.complete
@ONE_FORMAT
def test_one_failing_call(packer: FaultServer, job: Job, memory_path: Path, fault_points: FaultPoints) -> None:
    """A shard is tried once more; whatever fails outside of shards ends the run."""
    expected, calls = undisturbed(packer, job, memory_path / "undisturbed")
    for (_, at), out, outcome in job.runs_under(packer, memory_path, fault_points(calls, Action.FAIL), errno.EIO):
        assert outcome.returncode in (DONE, CLEAN_ERROR), (at, calls[at - 1], outcome.output)
        assert_sound_if_finished(out, at)
        if is_temporary(Path(calls[at - 1].path)) and PurePath(calls[at - 1].path).name.startswith(".train-"):
            assert outcome.returncode == DONE, (at, calls[at - 1], outcome.output)
            assert_same(out, expected, at)
        elif outcome.returncode == CLEAN_ERROR:
            assert "Input/output error" in outcome.output, (at, calls[at - 1])
            assert "run the same command again" in outcome.output, (at, calls[at - 1])
        assert_completed(job, out, expected, at)


@pytest.mark.complete
def test_short_writes_change_nothing(
    packer: FaultServer, job: Job, memory_path: Path, fault_points: FaultPoints
) -> None:
    """The kernel may write less than it is asked to. LMDB takes that for a failure, or for a full disk."""
    expected, calls = undisturbed(packer, job, memory_path / "undisturbed")
    for case, out, outcome in job.runs_under(packer, memory_path, fault_points(calls, Action.SHORT)):
        if calls[case[1] - 1].name == "pwrite" and job.format == "lmdb" and outcome.returncode != DONE:
            assert_no_space(outcome, out, case)
            job.run(out)
        else:
            assert outcome.returncode == DONE, (case, calls[case[1] - 1], outcome.output)
        assert_same(out, expected, case)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a tmpfs with the given options at tmp_path/disk, or gives the mounted one these options."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount_or_remount(options: str) -> None:
        if disk.is_mount():
            options += ",remount"
        command = ["mount", "-t", "tmpfs", "-o", options, "packtrain-test", str(disk)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"cannot mount a tmpfs here: {getattr(error, 'stderr', '') or error}")

    yield mount_or_remount
    if disk.is_mount():
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.complete
@ONE_FORMAT
def test_small_file_system(packer: FaultServer, job: Job, tmp_path: Path, mount: Mount, complete: bool) -> None:
    """Every size from one page up to what the dataset needs; in a sample, every fifth."""
    step = 1 if complete else 5
    expected, _ = undisturbed(packer, job, tmp_path / "undisturbed")
    out = tmp_path / "disk" / "out"
    done = False
    full = 0
    for pages in range(1, 400, step):
        mount(f"size={4 * pages}k")
        outcome = job.run_under(packer, renewed(out))
        done = outcome.returncode == DONE
        if done:
            break
        assert_no_space(outcome, out, pages)
        full += 1
        mount("size=64m")
        assert_completed(job, out, expected, pages)
        renewed(out)
    assert done
    assert_same(out, expected, "the size that is enough")
    assert full * step > 20


@pytest.mark.complete
def test_file_system_out_of_inodes(packer: FaultServer, small_job: Job, tmp_path: Path, mount: Mount) -> None:
    expected, _ = undisturbed(packer, small_job, tmp_path / "undisturbed")
    out = tmp_path / "disk" / "out"
    for inodes in (1, 2, 3, 5, 8, 13, 21):
        mount(f"nr_inodes={inodes}")
        assert_no_space(small_job.run_under(packer, renewed(out)), out, inodes)
        mount("nr_inodes=1000")
        assert_completed(small_job, out, expected, inodes)
        renewed(out)


def test_the_room_that_a_dead_packer_took_is_free_again(
    packer: FaultServer, job: Job, tmp_path: Path, mount: Mount
) -> None:
    expected, calls = undisturbed(packer, job, tmp_path / "undisturbed")
    mount("size=1m")
    out = tmp_path / "disk" / "out"
    half = next(at for at, call in enumerate(calls, 1) if call.target.startswith("parts/"))
    assert job.run_under(packer, out, Action.KILL, half).returncode == -signal.SIGKILL
    # Of a shard that comes later: its own temporary files a shard removes itself.
    with temporary_path(out / "train-000002.tar").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(out).free)
    assert shutil.disk_usage(out).free == 0
    assert_completed(job, out, expected, "a disk full of nothing")


@ONE_FORMAT
def test_limited_file_size(packer: FaultServer, job: Job, memory_path: Path, complete: bool) -> None:
    expected, _ = undisturbed(packer, job, memory_path / "undisturbed")
    largest = max(map(len, expected.values()))
    (memory_path / "elsewhere").mkdir()
    for limit in (100, 500, 1000, 2500, 5000, *range(6000, largest, 3000 if complete else 9000), largest - 1, largest):
        out = renewed(memory_path / "out")
        # The harness watches another folder: its log of calls would be cut by the limit, too.
        outcome = packer.run(LIMITED, {**job.args(out), "limit": limit}, memory_path / "elsewhere")
        if outcome.returncode == DONE:
            break
        assert_no_space(outcome, out, limit)
        assert_completed(job, out, expected, limit)
    assert limit == largest
    assert_same(out, expected, limit)


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
