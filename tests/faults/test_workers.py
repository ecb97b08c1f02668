"""Packing with several processes: any of them may be killed, Ctrl-C leaves none behind, and the bytes are the same."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.faults.campaign import renewed
from helpers.faults.cases import assert_same, finished_shards, written
from helpers.processes import Session, read_proc
from helpers.support import ONE_FORMAT, encoded, packed, picture, shard_bytes, tree
from helpers.waiting import wait_until

from packtrain import PackOptions, pack, pack_status
from packtrain._core.files import is_temporary
from packtrain._core.options import StoreOptions
from packtrain.errors import TooManyRejects
from packtrain.reports import PackProgress

SHARDS, LINES_PER_SHARD = 4, 6
DEADLINE = 60.0
"""Seconds after which a test gives up waiting; what is waited for takes a second or two."""


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large images, several times each: a shard takes a tenth of a second or more where all of them are decoded."""
    folder = tmp_path_factory.mktemp("large")
    for number in range(4):
        (folder / f"{number}.jpg").write_bytes(encoded(picture(number, 800, 600)))
    lines = [f"{number % 4}.jpg {number}\n" for number in range(SHARDS * LINES_PER_SHARD)]
    (folder / "train.txt").write_text("".join(lines))
    return folder / "train.txt"


@pytest.fixture(scope="module")
def expected(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """The dataset that one process packs, by format."""
    known: dict[str, dict[str, bytes]] = {}

    def pack_once(format: str) -> dict[str, bytes]:
        if format not in known:
            out = tmp_path_factory.mktemp(format) / "out"
            size = shard_bytes(listing, LINES_PER_SHARD)
            known[format] = tree(packed(listing, out, format, store=StoreOptions(check=True), shard_size=size))
        return known[format]

    return pack_once


class Run(Session):
    """`packtrain pack` with two workers.

    Args:
        listing: What to pack.
        out: Where to.
        format: Format of the shards.
        records: Number of records in a shard.
    """

    def __init__(self, listing: Path, out: Path, format: str = "tar", records: int = LINES_PER_SHARD) -> None:
        options = ["--check", "--json", "--format", format, "--workers", "2"]
        options += ["--shard-size", str(shard_bytes(listing, records))]
        super().__init__([sys.executable, "-m", "packtrain", "pack", str(listing), str(out), *options])
        self.listing, self.out, self.format = listing, out, format

    def end(self) -> tuple[int, str, str]:
        """Waits for the end. Returns exit status, stdout and stderr."""
        return self.process.wait(DEADLINE), self.stdout, self.stderr

    def workers(self) -> list[int]:
        """The living workers, newly started ones included."""
        children = read_proc(self.process.pid, f"task/{self.process.pid}/children").split()
        return [pid for pid in map(int, children) if b"spawn_main" in read_proc(pid, "cmdline")]

    def at_work(self) -> tuple[int, str] | None:
        """A worker that has a shard half written, frozen there, and the shard's name."""
        assert self.process.poll() is None, f"the run has ended: {self.end()}"
        for pid in self.workers():
            if shard := self.shard_of(pid):
                kill(pid, signal.SIGSTOP)
                if self.shard_of(pid) == shard:
                    return pid, shard
                kill(pid, signal.SIGCONT)
        return None

    def shard_of(self, pid: int) -> str | None:
        """The shard that a process has open for writing."""
        try:
            targets = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            return None
        for target in map(Path, targets):
            if target.parent == self.out and is_temporary(target) and not target.name.startswith(".plan"):
                return target.name[1:].partition(".tmp-")[0]
        return None


def kill(pid: int, number: signal.Signals) -> bool:
    """Sends a signal; whether there was still somebody to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def temporaries(out: Path) -> list[Path]:
    return [path for path in out.rglob("*") if is_temporary(path)]


def assert_completed(run: Run, expected: dict[str, bytes]) -> None:
    """The same command continues from here, keeps what is finished, and ends with the same bytes."""
    finished = finished_shards(run.out)
    with Run(run.listing, run.out, run.format) as again:
        status, stdout, stderr = again.end()
        assert status == 0, stderr
        assert json.loads(stdout)["resumed"] >= len(finished)
        again.require_nothing_left(DEADLINE)
    assert {name: written(run.out / name) for name in finished} == finished
    assert_same(run.out, expected)


@pytest.mark.complete
@ONE_FORMAT
def test_a_killed_worker_costs_nothing(
    listing: Path, expected: Callable[[str], dict[str, bytes]], memory_path: Path, format_name: str
) -> None:
    with Run(listing, memory_path / "out", format_name) as run:
        pid, _ = wait_until(run.at_work, "a worker has begun a shard")
        assert kill(pid, signal.SIGKILL)
        status, _, stderr = run.end()
        assert (status, stderr) == (0, "")
        run.require_nothing_left(DEADLINE)
    assert_same(run.out, expected(format_name))


@pytest.mark.complete
def test_a_worker_killed_before_it_begins_costs_nothing(
    listing: Path, expected: Callable[[str], dict[str, bytes]], memory_path: Path
) -> None:
    with Run(listing, memory_path / "out") as run:
        pid, *_ = wait_until(run.workers, "a worker has been started")
        kill(pid, signal.SIGKILL)
        status, _, stderr = run.end()
        assert (status, stderr) == (0, "")
    assert_same(run.out, expected("tar"))


@pytest.mark.complete
def test_a_shard_that_kills_twice_is_named(
    listing: Path, expected: Callable[[str], dict[str, bytes]], memory_path: Path
) -> None:
    with Run(listing, memory_path / "out") as run:
        victim, shard = wait_until(run.at_work, "a worker has begun a shard")
        kill(victim, signal.SIGKILL)

        def at_it_again() -> int | None:
            return next((pid for pid in run.workers() if pid != victim and run.shard_of(pid) == shard), None)

        kill(wait_until(at_it_again, f"{shard} has been begun again"), signal.SIGKILL)
        status, stdout, stderr = run.end()
        assert status == 1
        assert stderr == f"error: {shard} failed twice: its worker was killed by SIGKILL; out of memory?\n"
        assert json.loads(stdout)["error"] == "ShardFailed"
        run.require_nothing_left(DEADLINE)
        assert temporaries(run.out) == []
        assert not list((run.out / "parts").glob("*.packing")), "another machine would take them to be at work"
        assert shard not in tree(run.out)
        assert any("killed by SIGKILL" in one.why for one in pack_status(run.out).failed if one.shard == shard)
    assert_completed(run, expected("tar"))


@pytest.mark.complete
@pytest.mark.parametrize(
    ("number", "stopped"),
    [
        (signal.SIGKILL, True),
        (signal.SIGHUP, False),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.stress),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.stress),
    ],
)
def test_no_worker_outlives_its_parent(
    listing: Path, expected: Callable[[str], dict[str, bytes]], memory_path: Path, number: signal.Signals, stopped: bool
) -> None:
    with Run(listing, memory_path / "out") as run:
        worker, _ = wait_until(run.at_work, "a worker has begun a shard")
        kill(run.process.pid, number)
        if not stopped:
            kill(worker, signal.SIGCONT)
        run.process.wait(DEADLINE)
        run.require_nothing_left(DEADLINE)
        assert run.process.returncode == -number
    assert_completed(run, expected("tar"))


@pytest.mark.complete
def test_ctrl_c_also_ends_a_worker_that_is_stopped(listing: Path, memory_path: Path) -> None:
    with Run(listing, memory_path / "out") as run:
        wait_until(run.at_work, "a worker has begun a shard")
        kill(run.process.pid, signal.SIGINT)
        assert run.end()[0] == 130
        run.require_nothing_left(DEADLINE)


@pytest.mark.complete
def test_a_worker_begins_nothing_once_its_parent_is_gone(images: Path, memory_path: Path) -> None:
    """Its first task may still wait in the pipe; meanwhile, the next run may be at work on that shard."""
    with Run(images, memory_path / "out", records=3) as run:

        def both_frozen() -> list[int] | None:
            for pid in run.workers():
                kill(pid, signal.SIGSTOP)
            return found if len(found := run.workers()) == 2 else None

        workers = wait_until(both_frozen, "both workers have been started")
        assert [run.shard_of(pid) for pid in workers] == [None, None]
        # Its tasks are on their way when it waits for news.
        wait_until(lambda: b"poll" in read_proc(run.process.pid, "wchan"), "the parent waits")
        before = tree(run.out)
        kill(run.process.pid, signal.SIGKILL)
        run.process.wait(DEADLINE)
        for pid in workers:
            kill(pid, signal.SIGCONT)
        run.require_nothing_left(DEADLINE)
        assert tree(run.out) == before
        assert set(before) == {"plan.json"}


@pytest.mark.parametrize("how", ["done", "rejects", "interrupted"])
def test_a_call_leaves_no_worker_to_its_caller(images: Path, memory_path: Path, how: str) -> None:
    """A caller may live on for long after packing, however that ended."""
    shutil.copytree(images.parent, memory_path / "images")
    if how == "rejects":
        for name in ("image 3.jpg", "image 7.jpg"):
            (memory_path / "images" / name).write_bytes(b"")

    def interrupt(_: PackProgress) -> None:
        if how == "interrupted":
            raise KeyboardInterrupt

    ending = {"rejects": TooManyRejects, "interrupted": KeyboardInterrupt}
    with pytest.raises(ending[how]) if how in ending else nullcontext():
        pack(
            memory_path / "images" / "train.txt",
            memory_path / "out",
            PackOptions(shard_size=shard_bytes(images, 2)),
            num_workers=2,
            max_rejects="1",
            on_progress=interrupt,
        )
    assert multiprocessing.active_children() == []
    assert temporaries(memory_path / "out") == []


@pytest.mark.complete
@pytest.mark.parametrize(
    ("begun", "whole_group"),
    [
        pytest.param(True, True, id="at work-group"),
        pytest.param(False, False, id="starting-parent"),
        pytest.param(True, False, id="at work-parent"),
        pytest.param(False, True, id="starting-group"),
    ],
)
def test_ctrl_c_leaves_nothing_behind(
    listing: Path,
    expected: Callable[[str], dict[str, bytes]],
    memory_path: Path,
    whole_group: bool,
    begun: bool,
) -> None:
    """Also not a word of workers that were still starting when it came."""
    with Run(listing, memory_path / "out") as run:
        if begun:
            worker, _ = wait_until(run.at_work, "a worker has begun a shard")
            kill(worker, signal.SIGCONT)
        else:
            wait_until(lambda: len(run.workers()) == 2, "both workers have been started")
        (os.killpg if whole_group else os.kill)(run.process.pid, signal.SIGINT)
        status, stdout, stderr = run.end()
        assert (status, stdout) == (130, "")
        assert stderr.strip() == "stopped; run the same command to continue"
        run.require_nothing_left(DEADLINE)
        assert temporaries(run.out) == []
    assert_completed(run, expected("tar"))


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_at_any_time(
    listing: Path, expected: Callable[[str], dict[str, bytes]], memory_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    stopped = 0
    while stopped < 10:
        out = renewed(memory_path / "out")
        with Run(listing, out) as run:
            wait_until((out / "plan.json").exists, "it has begun")
            time.sleep(chance.uniform(0, 1.5))
            os.killpg(run.process.pid, signal.SIGINT)
            status, _, stderr = run.end()
            run.require_nothing_left(DEADLINE)
        if (out / "manifest.json").exists():
            # Python's own end is not protected.
            assert status in (0, 130, -signal.SIGINT), stderr
        else:
            assert (status, stderr.strip()) == (130, "stopped; run the same command to continue")
            stopped += 1
        assert temporaries(out) == []
        assert_completed(run, expected("tar"))


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(8))
def test_random_kills(
    listing: Path, expected: Callable[[str], dict[str, bytes]], memory_path: Path, format_name: str, seed: int
) -> None:
    """Nine kills, 216 in all. A run that has lost its parent is started again at once, beside workers that live on."""
    chance = random.Random(seed)
    kills = Counter[str]()
    out = memory_path / "out"
    while kills.total() < 9:
        with Run(listing, out, format_name) as run:
            time.sleep(chance.uniform(0, 1.5))
            while run.process.poll() is None and kills.total() < 9:
                victim = chance.choice([run.process.pid, *run.workers()])
                if kill(victim, signal.SIGKILL):
                    kills["parent" if victim == run.process.pid else "worker"] += 1
                time.sleep(chance.uniform(0, 0.6))
            status, _, stderr = run.end()
            run.left_alone = True  # whoever lives on is the next run's neighbour
        if status == 0:
            assert_same(out, expected(format_name))
            renewed(out)
        elif status != -signal.SIGKILL:
            assert (status, "failed twice: its worker was killed by SIGKILL" in stderr) == (1, True), stderr
    with Run(listing, out, format_name) as run:
        assert run.end()[0] == 0
    assert_same(out, expected(format_name))
    print(f"killed: {dict(kills)}")
