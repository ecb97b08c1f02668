"""Laws of caches that jobs read from for epochs: the budget, what is fetched, and jobs that share, stall and die."""

from __future__ import annotations

import mmap
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from helpers.local_objects import STORE, LocalObjects
from helpers.streaming import (
    GaveUp,
    MiB,
    Remote,
    assert_whole,
    consume,
    fetcher_pid,
    impatient,
    kill_fetcher,
    read,
    taken,
    write_plain,
)
from helpers.waiting import wait_until

from packtrain._storage.streams import cutting, manager
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.manager import CacheManager
from packtrain._storage.streams.policy import Reading
from packtrain.errors import CorruptRecord, NoRoom, RemoteError, UsageError

CHUNKS = 100


@pytest.fixture(autouse=True)
def large_dataset(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset of `CHUNKS` chunks of some 64 KiB."""
    monkeypatch.setattr(cutting, "ENOUGH", 63_000)
    monkeypatch.setattr(cutting, "MOST", 70_000)
    write_plain(remote.dataset, [[16_000] * 4 * 25] * 4, gap=128)


def budget_for(remote: Remote, chunks: int) -> int:
    """A budget that holds so many chunks."""
    cache = remote.open(64 * MiB)
    state = cache.state()
    assert state["chunks"] == CHUNKS
    budget = int(state["overhead"]) + chunks * -(-int(cache.table.bytes.max()) // 4096) * 4096
    # Its connection would allow the cache to take more.
    cache.close()
    return budget


@contextmanager
def watched(cache: ChunkCache, budget: int) -> Iterator[list[int]]:
    """Makes sure that the cache never takes more than its budget."""
    seen, end = [0], threading.Event()

    def watch() -> None:
        while not end.is_set():
            seen.append(taken(cache.entry))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        end.set()
        watcher.join()
    assert max(seen) <= budget


class TestBudget:
    @pytest.mark.complete
    @pytest.mark.parametrize("share", [0.4, 0.7])
    def test_it_is_kept_and_little_is_fetched(self, share: float, remote: Remote) -> None:
        """The bytes that a simulation fetches, and no more: one minus the share of the dataset that is cached."""
        budget = budget_for(remote, int(share * CHUNKS))
        cache = remote.open(budget)
        counts = []
        with watched(cache, budget):
            before = 0
            for epoch in range(3):
                for chunk, data in consume(cache, "job", [epoch, epoch + 1], epochs=1):
                    assert data == remote.expected(cache, chunk)
                counts.append(cache.state()["fetched"] - before)
                before += counts[-1]
        assert counts[0] >= CHUNKS * 0.95
        # Each epoch registers again, so the windows at its borders count twice.
        assert max(counts[1:]) <= (1 - share + 0.15) * CHUNKS
        assert_whole(remote, cache)

    @pytest.mark.complete
    def test_maps_count(self, remote: Remote) -> None:
        """Bytes of chunks that went stay in the budget as long as somebody has them mapped."""
        budget = budget_for(remote, 10)
        cache = remote.open(budget)
        maps = []
        with watched(cache, budget):
            for chunk in range(10):
                descriptor = cache.open(chunk)
                maps.append(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
                os.close(descriptor)
            with pytest.raises(GaveUp):
                cache.open(50, impatient(2))
            for chunk, kept in enumerate(maps):
                assert bytes(kept) == remote.expected(cache, chunk), "bytes stay as long as they are mapped"
            while maps:
                maps.pop().close()
            for chunk in range(50, 60):
                assert read(cache, chunk) == remote.expected(cache, chunk)

    @pytest.mark.complete
    def test_a_smaller_budget_lets_chunks_go(self, remote: Remote) -> None:
        small, large = budget_for(remote, 5), budget_for(remote, 50)
        cache = remote.open(large)
        for chunk in range(40):
            read(cache, chunk)
        assert cache.state()["present"] == 40
        other = remote.open(small)
        assert other.state()["present"] == 40, "the largest budget counts"
        cache.close()
        wait_until(lambda: other.state()["budget"] == small, "the larger job has left")
        assert read(other, 40) == remote.expected(other, 40)
        wait_until(lambda: other.state()["present"] == 5, "the others are gone")
        assert taken(other.entry) <= small

    def test_nothing_goes_for_a_job_that_is_refused(self, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(manager, "_GATHER_SECONDS", 0.0)
        small, large = budget_for(remote, 5), budget_for(remote, 50)
        cache = remote.open(large)
        for chunk in range(40):
            read(cache, chunk)
        kill_fetcher(cache)
        found = CacheManager(cache.entry, LocalObjects())

        def present() -> int:
            found.reclaim()
            found.decide()
            count: int = found.figures()["present"]
            return count

        for budgets in [(small,), (large, small)]:
            for budget in budgets:
                found.allow(budget)
            assert found.figures()["budget"] == small
            with pytest.raises(UsageError, match="raise the budget"):
                found.register("rank", Reading(0, 1, 8, 4, 1, (1, 2)), ())
            assert present() == 40
        found.ask(0)
        assert present() == 5
        found.close()

    def test_a_chunk_larger_than_the_budget(self, remote: Remote) -> None:
        cache = remote.open(budget_for(remote, 1) - 40_000)
        with pytest.raises(NoRoom, match=r"chunk 3 takes 6\d\.\d KiB.*raise the budget"):
            read(cache, 3)

    def test_windows_that_do_not_fit_are_refused(self, remote: Remote) -> None:
        cache = remote.open(budget_for(remote, 30))
        with pytest.raises(UsageError, match=r"needs .* raise the budget by \d+ MiB or more, or use fewer lanes="):
            cache.register("job", Reading(0, 1, 8, 32, 2, (1, 2)))
        cache.register("job", Reading(0, 1, 8, 2, 1, (1, 2))).close()
        cache.close()
        with pytest.raises(UsageError, match=r"raise the budget by \d+ MiB or more$"):
            remote.open(budget_for(remote, 12)).register("job", Reading(0, 1, 8, 32, 2, (1, 2)))

    def test_everything_that_fits_is_fetched_in_the_background(self, remote: Remote) -> None:
        cache = remote.open(budget_for(remote, CHUNKS))
        filling = cache.fill()
        wait_until(lambda: cache.state()["present"] == CHUNKS, "every chunk is there")
        kill_fetcher(cache)
        filling.renew()
        filling.close()
        assert cache.state()["fetched"] == 0
        assert_whole(remote, cache)

    def test_a_full_disk(self, remote: Remote, mounted: Callable[[str], Path]) -> None:
        remote.place = mounted("size=40m")
        reserve = remote.place / "others"
        cache = remote.open(budget_for(remote, CHUNKS))
        read(cache, 0)
        free = os.statvfs(remote.place)
        reserve.write_bytes(bytes(free.f_bavail * free.f_frsize - 300_000))
        for chunk in range(1, 20):
            assert read(cache, chunk) == remote.expected(cache, chunk), "others make room for it"
        assert cache.state()["present"] < 20
        taken_by_all = [cache.open(chunk) for chunk in range(15, 20) if cache.present[chunk]]
        assert_whole(remote, cache)
        for descriptor in taken_by_all:
            os.close(descriptor)
        reserve.unlink()
        for chunk in range(30, 60):
            assert read(cache, chunk) == remote.expected(cache, chunk)
        wait_until(lambda: cache.state()["present"] >= 30, "chunks stay again")

    def test_a_disk_without_room_for_a_line_of_the_log(self, remote: Remote, mounted: Callable[[str], Path]) -> None:
        """A fetcher that cannot say what is wrong lives on."""
        remote.place = mounted("size=40m")
        cache = remote.open(budget_for(remote, CHUNKS))
        fetcher = fetcher_pid(cache)
        with (remote.place / "others").open("wb", buffering=0) as others, suppress(OSError):
            while True:
                others.write(bytes(4096))
        for _ in range(3):
            with pytest.raises(
                NoRoom, match=r"is full: .* of its budget of .*Make room there.*as soon as there is room"
            ):
                read(cache, 3)
        (remote.place / "others").unlink()
        assert read(cache, 3) == remote.expected(cache, 3)
        assert fetcher_pid(cache) == fetcher


class TestJobs:
    @pytest.mark.complete
    def test_one_that_stalls_stops_no_other(self, remote: Remote) -> None:
        cache = remote.open(budget_for(remote, 60))
        stalled = consume(cache, "stalled", range(7, 9))
        first = next(stalled)
        for chunk, data in consume(cache, "running", range(2)):
            assert data == remote.expected(cache, chunk)
        assert cache.state()["readers"] == 1
        before = cache.state()["fetched"]
        assert next(stalled)[1] and first[1] == remote.expected(cache, first[0])
        assert cache.state()["fetched"] <= before + 1


@pytest.mark.complete
def test_a_fetcher_killed_at_random_times(remote: Remote) -> None:
    disturbed(remote, 2.0, seed=0)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
def test_a_fetcher_killed_at_random_times_for_long(seed: int, remote: Remote) -> None:
    disturbed(remote, 20.0, seed)


def disturbed(remote: Remote, seconds: float, seed: int) -> None:
    """Processes read through a small cache while fetcher and processes are killed and the store misbehaves."""
    chance = random.Random(seed)
    budget = budget_for(remote, 70)
    cache = remote.open(budget)
    children = set[int]()

    def start() -> None:
        number = chance.randrange(1 << 20)
        child = os.fork()
        if not child:
            try:
                for chunk, data in consume(cache, f"job {number}", range(number, number + 50)):
                    if data != remote.expected(cache, chunk):
                        os._exit(3)
                os._exit(0)
            except (RemoteError, CorruptRecord):
                # Of a fault that came twice.
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(4)
        children.add(child)

    until = time.monotonic() + seconds
    with watched(cache, budget):
        while time.monotonic() < until:
            while len(children) < 2:
                start()
            match chance.randrange(4):
                case 0:
                    with suppress(RemoteError):
                        kill_fetcher(cache)
                case 1:
                    child = chance.choice(sorted(children))
                    os.kill(child, signal.SIGKILL)
                    children.remove(child)
                    assert os.waitpid(child, 0)[1] in (0, 9)
                case 2:
                    remote.store.fault(chance.choice(["wrong", "zeros", "slow", "error", "shifted"]), 1)
                case 3:
                    time.sleep(chance.random() / 10)
            assert_whole(remote, cache)
            for child in list(children):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    children.remove(child)
                    assert status == 0
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    remote.store.sound()
    for chunk in range(CHUNKS):
        assert read(cache, chunk) == remote.expected(cache, chunk)
    assert STORE in os.environ
