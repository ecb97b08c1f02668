"""A filler that is killed at any change to the folder, and a restart, lose nothing that was published."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.harness import Action, FaultServer
from helpers.filling import assert_sound, blocks, drop, newest_store, numbered_sample

from packtrain._core.errors import GenerationGone
from packtrain._core.generations import SHARDS, TEMPORARY, generation_numbers
from packtrain._core.reader_reports import ReaderReport
from packtrain._filler.filler import fill
from packtrain._filler.options import FillOptions
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GenerationStore

BUDGET = 1_800_000
FILL = f"""
from pathlib import Path
from packtrain._filler.filler import fill
from packtrain._filler.options import FillOptions

from helpers.filling import numbered_sample

options = FillOptions(budget={BUDGET}, headroom=0.5, shard_size=args["shard_size"], format=args["format"])
samples = (numbered_sample(who) for who in range(args["first"], args["first"] + args["count"]))
fill(Path(args["root"]), lambda: samples, options)
"""
WARM_UP = f"""
import sys, tempfile
sys.path.insert(0, args["tests"])
for format in ("tar", "hdf5", "lmdb"):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        own = {{"root": folder + "/c", "first": 0, "count": 9, "format": format, "shard_size": 1 << 16}}
        exec({FILL!r}, {{"args": own}})
"""
TESTS = os.fspath(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def server(fault_library: Path) -> Iterator[FaultServer]:
    with FaultServer(fault_library, WARM_UP, {"tests": TESTS}) as found:
        yield found


def _again(root: Path, first: int, count: int, format: str) -> None:
    options = FillOptions(budget=BUDGET, headroom=0.5, shard_size=1 << 16, format=format)
    fill(root, lambda: (numbered_sample(who) for who in range(first, first + count)), options)


def test_a_kill_at_any_change_loses_nothing_that_was_published(
    format_name: str, memory_path: Path, server: FaultServer, complete: bool
) -> None:
    model = memory_path / "model"
    # As full as it gets, so that the next shards evict.
    _again(model, 0, 220, format_name)
    published: dict[int, int] = {}
    full = newest_store(model)
    assert_sound(full, published)
    drop(full)
    args = {"first": 1000, "count": 25, "format": format_name, "shard_size": 1 << 16}
    root = memory_path / "cache"
    shutil.copytree(model, root)
    calls = server.run(FILL, {**args, "root": os.fspath(root)}, root).calls
    assert len(calls) > 30
    points = range(1, len(calls) + 1) if complete else random.Random(0).sample(range(1, len(calls) + 1), 12)
    for at in points:
        shutil.rmtree(root)
        shutil.copytree(model, root)
        outcome = server.run(FILL, {**args, "root": os.fspath(root)}, root, Action.KILL, at)
        assert outcome.returncode == -signal.SIGKILL
        known = dict(published)
        before = newest_store(root)
        assert_sound(before, known)
        drop(before)
        assert blocks(root) <= BUDGET
        _again(root, 2000, 3, format_name)
        after = newest_store(root)
        assert after.generation.end_sample == before.generation.end_sample + 3
        assert_sound(after, known)
        drop(after)
        assert list((root / TEMPORARY).iterdir()) == []
        files = list((root / SHARDS).iterdir())
        assert len(files) == len(after.generation.records) * (3 if format_name == "tar" else 2), at


def fill_for_ever(root: Path, format: str, first: int) -> None:
    """A filler whose samples begin at a number."""
    _again(root, first, 10_000_000, format)


def read_for_ever(root: Path, workers: int) -> None:
    """A reader that goes through the newest generation again and again, each time with new forked workers."""
    while not generation_numbers(root):
        time.sleep(0.01)
    report = ReaderReport(root)
    while True:
        store = newest_store(root)
        report.begin(store.generation.number)
        started = [
            multiprocessing.get_context("fork").Process(target=assert_sound, args=(store,)) for _ in range(workers)
        ]
        for worker in started:
            worker.start()
        assert_sound(store)
        assert_sound(store)
        for worker in started:
            worker.join()
            assert worker.exitcode in (0, -signal.SIGKILL)
        report.take(len(store))
        report.finish(store.generation.end_sample)
        drop(store)


class Campaign:
    """A filler and readers in processes of their own, which are killed at random times, and what is known of them.

    Attributes:
        kills: Number of kills.
        looks: How often the laws were checked.
        most: The most bytes that were seen.
        end: One past the number of the last sample that was published.
    """

    def __init__(self, root: Path, format: str, seed: int) -> None:
        self.root = root
        self.format = format
        self.random = random.Random(seed)
        self.published: dict[int, int] = {}
        self.kills = {"filler": 0, "reader": 0, "worker": 0}
        self.looks = self.most = self.begun = self.end = 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__, "helpers.filling", "packtrain._filler.filler"])
        self.fillers = [self.filler()]
        self.readers = [self.reader(), self.reader(), self.reader()]

    def filler(self) -> BaseProcess:
        self.begun += 1
        return self._started(fill_for_ever, self.root, self.format, 20_000_000 * self.begun)

    def reader(self) -> BaseProcess:
        return self._started(read_for_ever, self.root, self.random.choice((0, 2)))

    def _started(self, target: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = self._context.Process(target=target, args=arguments)
        process.start()
        return process

    def look(self) -> None:
        """The laws, as they must hold at any moment."""
        self.looks += 1
        self.most = max(self.most, blocks(self.root))
        assert self.most <= BUDGET
        for process in (*self.fillers, *self.readers):
            # They end only by being killed: an error of their own would end them with an exit status.
            assert process.exitcode is None
        if numbers := generation_numbers(self.root):
            with suppress(GenerationGone):
                store = GenerationStore.open(CacheFiles(self.root), numbers[-1])
                assert store.generation.end_sample >= self.end
                self.end = store.generation.end_sample
                if self.looks % 10 == 0:
                    assert_sound(store, self.published)
                drop(store)

    def kill(self) -> None:
        """Kills something, and starts another one like it."""
        what = self.random.choice(("filler", "filler", "reader", "worker"))
        victims = self.fillers if what == "filler" else self.readers
        at = self.random.randrange(len(victims))
        victim = victims[at]
        if what == "worker":
            children = Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split()
            with suppress(ProcessLookupError):
                for child in children[:1]:
                    os.kill(int(child), signal.SIGKILL)
                    self.kills[what] += 1
            return
        victim.kill()
        victim.join()
        self.kills[what] += 1
        victims[at] = self.filler() if what == "filler" else self.reader()

    def close(self) -> None:
        """Kills all of them."""
        for process in (*self.fillers, *self.readers):
            process.kill()
            process.join()


def _campaign(root: Path, format: str, seed: int, kills: int) -> Campaign:
    # Nearly full, so that the next shards evict.
    _again(root, 0, 100, format)
    found = Campaign(root, format, seed)
    try:
        while sum(found.kills.values()) < kills:
            # At a random sample, wherever that is in a shard; or a bit later, if the filler waits for readers.
            wanted, end = found.end + found.random.randrange(60), time.monotonic() + 3
            while found.end < wanted and time.monotonic() < end:
                found.look()
                # Others want the processor as well.
                time.sleep(0.005)
            time.sleep(found.random.uniform(0, 0.05))
            found.kill()
    finally:
        found.close()
    assert found.end > 100
    _again(root, 5, 20, format)
    assert_sound(newest_store(root), found.published)
    return found


def test_a_few_kills_of_fillers_and_readers(memory_path: Path) -> None:
    _campaign(memory_path / "cache", "tar", 0, 4)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_kills_of_fillers_readers_and_workers(seed: int, memory_path: Path) -> None:
    """Each case is twenty of them, and the formats take turns."""
    found = _campaign(memory_path / "cache", ("tar", "hdf5", "lmdb")[seed % 3], seed, 20)
    print(f"{found.kills}, {found.looks} looks, {found.end} samples, at most {found.most / BUDGET:.1%} of the budget")
