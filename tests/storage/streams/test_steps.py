"""Laws of a cache whose fetcher, or the process that makes it, dies at any change to its files, or cannot make it."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.faults.harness import Action, FaultPoints, FaultServer
from helpers.local_objects import LocalObjects
from helpers.streaming import URL, MiB, Remote, assert_whole, fetcher_pid, read, write_plain

from packtrain._storage.staging.entries import entries
from packtrain._storage.streams import cutting
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
def cache(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> ChunkCache:
    """A cache of five chunks, none of which is there."""
    monkeypatch.setattr(cutting, "ENOUGH", 12_000)
    monkeypatch.setattr(cutting, "MOST", 16_000)
    write_plain(remote.dataset, [[3000] * 20], order=False)
    return remote.open(4 * MiB)


def emptied(cache: ChunkCache) -> None:
    """Takes all chunks away, as if there had never been any."""
    for path in (cache.entry / CHUNKS).iterdir():
        path.unlink()
    (cache.entry / "boot").unlink(missing_ok=True)
    with (cache.entry / "present").open("r+b") as file:
        file.write(bytes(len(cache.table)))


def assert_sound(remote: Remote, cache: ChunkCache) -> None:
    """What is visible is whole; the next fetcher tidies up; and then the bytes say what is there."""
    assert_whole(remote, cache)
    CacheManager(cache.entry, LocalObjects()).close()
    names = {path.name for path in (cache.entry / CHUNKS).iterdir()}
    assert names == {f"{chunk:08d}" for chunk in range(len(cache.table)) if cache.present[chunk]}


def test_a_fetcher_killed_at_any_step(
    remote: Remote, cache: ChunkCache, faulty: FaultServer, fault_points: FaultPoints
) -> None:
    arguments = {"entry": str(cache.entry), "store": str(remote.store.folder)}
    done = faulty.run(FETCH, arguments, cache.entry)
    assert done.returncode == 0, done.output
    assert {call.name for call in done.calls} >= {"writev", "fsync", "rename", "unlink"}
    for action, at in fault_points(done.calls, Action.KILL, Action.TEAR):
        emptied(cache)
        died = faulty.run(FETCH, arguments, cache.entry, action, at)
        assert died.returncode == -9, died.output
        assert_sound(remote, cache)


@pytest.mark.complete
@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.complete)])
def test_a_step_that_fails(
    code: int, remote: Remote, cache: ChunkCache, faulty: FaultServer, fault_points: FaultPoints
) -> None:
    arguments = {"entry": str(cache.entry), "store": str(remote.store.folder)}
    done = faulty.run(FETCH, arguments, cache.entry)
    for action, at in fault_points(done.calls, Action.FAIL):
        emptied(cache)
        failed = faulty.run(FETCH, arguments, cache.entry, action, at, code)
        if done.calls[at - 1].name in ("writev", "open") and done.calls[at - 1].path.startswith(CHUNKS):
            assert failed.returncode == 0, failed.output
            assert len(json.loads(failed.output.splitlines()[-1])) == 1
            assert not list((cache.entry / CHUNKS).glob(".*tmp*")), "nothing is left of it"
        assert_sound(remote, cache)


@pytest.mark.complete
def test_a_cache_whose_maker_is_killed_at_any_step(
    remote: Remote, faulty: FaultServer, fault_points: FaultPoints, complete: bool
) -> None:
    write_plain(remote.dataset, [[3000] * 20])
    arguments = {"store": str(remote.store.folder), "place": str(remote.place)}
    done = faulty.run(OPEN, arguments, remote.place)
    assert done.returncode == 0, done.output
    entry = Path(done.output.strip())
    for number, (action, at) in enumerate(fault_points(done.calls, Action.KILL)[:: 1 if complete else 5]):
        place = remote.place / str(number)
        place.mkdir()
        died = faulty.run(OPEN, {**arguments, "place": str(place)}, place, action, at)
        assert died.returncode == -9, died.output
        assert not [found for found in entries(place) if found.finished and found.state != "stream"]
        again = faulty.run(OPEN, {**arguments, "place": str(place)}, place)
        assert again.returncode == 0, again.output
        assert [found.state for found in entries(place)] == ["stream"]
        made = Path(again.output.strip())
        assert made.name == entry.name
        for path in sorted(entry.rglob("*")):
            if path.is_file():
                assert (made / path.relative_to(entry)).read_bytes() == path.read_bytes(), path
    assert str(URL) in (entry / "origin.json").read_text()
    assert fetcher_pid(remote.open(4 * MiB)) and read(remote.open(4 * MiB), 0)
