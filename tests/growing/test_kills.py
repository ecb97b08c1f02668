"""A filler that is killed at any change to the folder, and a restart, lose nothing that was published."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.campaign import Campaign, Program
from helpers.faults.harness import Action, FaultServer
from helpers.fillers import numbered_sample
from helpers.filling import assert_sound, blocks, drop, fill, newest_store
from helpers.processes import children
from helpers.support import ONE_FORMAT

from packtrain import GrowingCache, Loader
from packtrain._core.errors import GenerationGone, LoaderError
from packtrain._core.generations import SHARDS, TEMPORARY, Generation, generation_numbers
from packtrain._core.reader_reports import ReaderReport
from packtrain._growing.options import FillOptions

BUDGET = 1_800_000
FILL = f"""
from pathlib import Path
from helpers.filling import fill
from packtrain._growing.options import FillOptions

from helpers.fillers import numbered_sample

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


@pytest.mark.complete
@ONE_FORMAT
def test_a_kill_at_any_change_loses_nothing_that_was_published(
    format_name: str, memory_path: Path, server: FaultServer, campaign: Campaign
) -> None:
    model, root = memory_path / "model", memory_path / "cache"
    # As full as it gets, so that the next shards evict.
    _again(model, 0, 220, format_name)
    published: dict[int, int] = {}
    full = newest_store(model)
    assert_sound(full, published)
    drop(full)
    args = {"first": 1000, "count": 25, "format": format_name, "shard_size": 1 << 16, "root": os.fspath(root)}
    filler = Program(server, FILL, args, root).starting_from(model)
    calls = filler.undisturbed()
    assert len(calls) > 30
    for _ in campaign(filler, calls, Action.KILL):
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
        assert len(files) == len(after.generation.records) * (3 if format_name == "tar" else 2)


def fill_for_ever(root: Path, format: str, first: int) -> None:
    """A filler whose samples begin at a number."""
    _again(root, first, 10_000_000, format)


def read_for_ever(root: Path, workers: int) -> None:
    """A reader that goes through the newest generation again and again, each time with new forked workers."""
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
        for worker in started:
            worker.join()
            assert worker.exitcode in (0, -signal.SIGKILL)
        report.take(len(store))
        report.finish(store.generation.end_sample)
        drop(store)


def load_for_ever(root: Path) -> None:
    """A loader whose workers live on from generation to generation, unless they are killed."""
    with Loader(GrowingCache(root).dataset(), 8, shuffle=True, num_workers=2, multiprocessing_context="fork") as loader:
        while True:
            try:
                for batch in loader:
                    for who, *values in zip(batch.who.tolist(), batch.data, batch.text, batch.label, strict=True):
                        wanted = numbered_sample(who)
                        assert values == [wanted[name] for name in ("data", "text", "label")], who
            except LoaderError as error:
                if "was killed by SIGKILL" not in str(error):
                    raise


class Crowd:
    """A filler and readers in processes of their own, which are killed at random times, and what is known of them.

    Attributes:
        kills: Number of kills.
        looks: How often the laws were checked.
        most: The most bytes that were seen.
        end: One past the number of the last sample that was published.
        evicted: Number of shards that were left out of the newest generation.
    """

    def __init__(self, root: Path, format: str, seed: int) -> None:
        self.root = root
        self.format = format
        self.random = random.Random(seed)
        self.published: dict[int, int] = {}
        self.kills = {"filler": 0, "reader": 0, "worker": 0}
        self.looks = self.most = self.begun = self.end = self.evicted = 0
        # Forked, because a new interpreter takes longer to start than it lives here.
        self._context = multiprocessing.get_context("fork")
        self.fillers = [self.filler()]
        self._kinds = ((read_for_ever, 0), (read_for_ever, 2), (load_for_ever,))
        self.readers = [self.reader(at) for at in range(len(self._kinds))]

    def filler(self) -> BaseProcess:
        self.begun += 1
        return self._started(fill_for_ever, self.root, self.format, 20_000_000 * self.begun)

    def reader(self, at: int) -> BaseProcess:
        target, *arguments = self._kinds[at]
        return self._started(target, self.root, *arguments)

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
        with suppress(GenerationGone):
            found = Generation.load(self.root, generation_numbers(self.root)[-1])
            assert found.end_sample >= self.end
            self.end, self.evicted = found.end_sample, found.first_shard
        if self.looks % 20 == 0:
            self.check()

    def check(self) -> None:
        """Each sample of the newest generation is right, and has the number that it was published with."""
        store = newest_store(self.root)
        assert_sound(store, self.published)
        drop(store)

    def kill(self) -> None:
        """Kills something, and starts another one like it."""
        what = self.random.choice(("filler", "filler", "reader", "worker"))
        if what == "worker":
            if workers := [worker for reader in self.readers for worker in children(reader.pid or 0)]:
                with suppress(ProcessLookupError):
                    os.kill(self.random.choice(workers), signal.SIGKILL)
                    self.kills[what] += 1
            return
        victims = self.fillers if what == "filler" else self.readers
        at = self.random.randrange(len(victims))
        victims[at].kill()
        victims[at].join()
        self.kills[what] += 1
        victims[at] = self.filler() if what == "filler" else self.reader(at)

    def close(self) -> None:
        """Kills all of them."""
        for process in (*self.fillers, *self.readers):
            process.kill()
            process.join()


def _campaign(root: Path, format: str, seed: int, kills: int, samples: int) -> Crowd:
    # As full as it gets, so that the next shards evict.
    _again(root, 0, 200, format)
    found = Crowd(root, format, seed)
    deadline = time.monotonic() + 60
    try:
        found.look()
        begin = found.end
        while sum(found.kills.values()) < kills or found.end < begin + samples:
            assert time.monotonic() < deadline, "the filler stands still"
            # At a random sample, wherever that is in a shard; or a bit later, if the filler waits for readers.
            wanted, end = found.end + found.random.randrange(60), time.monotonic() + 1
            while found.end < wanted and time.monotonic() < end:
                found.look()
                # Others want the processor as well.
                time.sleep(0.005)
            time.sleep(found.random.uniform(0, 0.05))
            if sum(found.kills.values()) < kills:
                found.kill()
    finally:
        found.close()
    found.check()
    _again(root, 5, 20, format)
    found.check()
    return found


@pytest.mark.complete
def test_a_few_kills_of_fillers_and_readers(memory_path: Path) -> None:
    _campaign(memory_path / "cache", "tar", 0, 4, 30)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_kills_of_fillers_readers_and_workers(seed: int, memory_path: Path) -> None:
    """Each case is twenty of them, and the formats take turns. What is written meanwhile fills the cache twice over."""
    found = _campaign(memory_path / "cache", ("tar", "hdf5", "lmdb")[seed % 3], seed, 20, 600)
    assert found.evicted > 20
    print(
        f"{found.kills}, {found.looks} looks, {found.end} samples, {found.evicted} shards evicted, at most "
        f"{found.most / BUDGET:.1%} of the budget"
    )
