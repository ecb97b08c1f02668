"""Laws of a cache whose fetcher, or the process that makes it, dies at any change to its files, or cannot make it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.faults.campaign import Campaign, Program, renewed
from helpers.faults.harness import Action, FaultServer
from helpers.local_objects import LocalObjects
from helpers.streaming import URL, MiB, Remote, assert_whole, fetcher_pid, read, write_plain
from helpers.support import tree

from packtrain._storage.staging.entries import entries
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.layout import CHUNKS
from packtrain._storage.streams.manager import CacheManager

# Code for a separate process: one fetcher's whole life, without its socket.
FETCH = """
import json
import os
from pathlib import Path
from helpers.local_objects import STORE, LocalObjects
from packtrain._storage.streams.manager import CacheManager

os.environ[STORE] = args["store"]
manager = CacheManager(Path(args["entry"]), LocalObjects())
workers = manager._workers
workers.sync = workers.sync_now
problems = []
for chunk in range(4):
    manager.policy.begin(chunk)
    workers.fetch_now(chunk)
    problems += [type(result.problem).__name__ for result in workers._results if result.problem is not None]
    manager.results()
    if chunk == 2:
        manager._evict(0)
print(json.dumps(problems))
"""
OPEN = """
import os
from packtrain._storage.staging.options import StageOptions
from packtrain._storage.streams.opening import open_stream
from helpers.local_objects import SPEC, STORE, LocalObjects
from helpers.streaming import URL

os.environ[STORE] = args["store"]
cache = open_stream(URL, StageOptions(args["place"]), 4 << 20, LocalObjects(), fetch_with=SPEC)
print(cache.entry)
"""
WARM_UP = """
import sys
sys.path.insert(0, args["tests"])
import packtrain._storage.streams.opening, packtrain._storage.streams.fetcher, helpers.streaming
"""


@pytest.fixture(scope="module")
def faulty(fault_library: Path) -> Iterator[FaultServer]:
    """Starts processes with injected faults."""
    with FaultServer(fault_library, WARM_UP, {"tests": str(Path(__file__).parents[2])}) as server:
        yield server


@pytest.fixture
def cache(remote: Remote, small_chunks: None) -> ChunkCache:
    """A cache of five chunks, none of which is there."""
    write_plain(remote.dataset, [[3000] * 20], order=False)
    return remote.open(4 * MiB)


@pytest.fixture
def fetcher(remote: Remote, cache: ChunkCache, faulty: FaultServer) -> Program:
    """Fetches chunks into the cache, which is empty when it begins."""
    args = {"entry": str(cache.entry), "store": str(remote.store.folder)}
    # A chunk is shown before it is on the medium, and counts after a power cut only if it was.
    return Program(faulty, FETCH, args, cache.entry, without_chunks, lost=("chunks/*",))


def without_chunks(entry: Path) -> None:
    """Takes all chunks of a cache away, as if there had never been any."""
    for path in (entry / CHUNKS).iterdir():
        path.unlink()
    (entry / "boot").unlink(missing_ok=True)
    with (entry / "present").open("r+b") as file:
        file.write(bytes(os.fstat(file.fileno()).st_size))


def assert_sound(remote: Remote, cache: ChunkCache) -> None:
    """What is visible is whole; the next fetcher tidies up; and then the bytes say what is there."""
    assert_whole(remote, cache)
    CacheManager(cache.entry, LocalObjects()).close()
    names = {path.name for path in (cache.entry / CHUNKS).iterdir()}
    assert names == {f"{chunk:08d}" for chunk in range(len(cache.table)) if cache.present[chunk]}


def test_a_fetcher_killed_at_any_step(remote: Remote, cache: ChunkCache, fetcher: Program, campaign: Campaign) -> None:
    calls = fetcher.undisturbed()
    assert {call.name for call in calls} >= {"writev", "fsync", "rename", "unlink"}
    for _ in campaign(fetcher, calls, Action.KILL, Action.TEAR):
        assert_sound(remote, cache)


@pytest.mark.complete
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_step_that_fails(code: int, remote: Remote, cache: ChunkCache, fetcher: Program, campaign: Campaign) -> None:
    for trial in campaign(fetcher, fetcher.undisturbed(), Action.FAIL, error=code):
        if trial.call.name in ("writev", "open") and trial.call.path.startswith(CHUNKS):
            assert trial.outcome.returncode == 0, trial.outcome.output
            assert len(json.loads(trial.outcome.output.splitlines()[-1])) == 1
            assert not list((cache.entry / CHUNKS).glob(".*tmp*")), "nothing is left of it"
        assert_sound(remote, cache)


@pytest.mark.complete
def test_a_cache_whose_maker_is_killed_at_any_step(remote: Remote, faulty: FaultServer, campaign: Campaign) -> None:
    write_plain(remote.dataset, [[3000] * 20])
    place = remote.place / "new"

    def prepare(place: Path) -> None:
        renewed(place).mkdir()

    # In memory nothing is synced.
    args = {"store": str(remote.store.folder), "place": str(place)}
    maker = Program(faulty, OPEN, args, place, prepare, lost=("*",))
    calls = maker.undisturbed()
    (entry,) = entries(place)
    expected = tree(entry.path)
    for _ in campaign(maker, calls, Action.KILL):
        assert not [found for found in entries(place) if found.finished and found.state != "stream"]
        again = maker.run()
        assert again.returncode == 0, again.output
        (entry,) = entries(place)
        assert entry.state == "stream"
        assert tree(entry.path) == expected
    assert str(URL) in (entry.path / "origin.json").read_text()
    assert fetcher_pid(remote.open(4 * MiB)) and read(remote.open(4 * MiB), 0)
