"""Laws of the files that tell a cache which chunks of an order are its own."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.streaming import MiB, Remote, kill_fetcher, write_plain
from helpers.waiting import wait_until
from hypothesis import given
from hypothesis import strategies as st

from packtrain._storage.streams.layout import ORDERS
from packtrain._storage.streams.order import ChunkOrder
from packtrain._storage.streams.order_files import OrderChunks, OrderFiles, OrderLease
from packtrain._storage.streams.policy import Reading
from packtrain.errors import CorruptFile, UsageError

CHUNKS = 9
RUNS = st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(-1, CHUNKS - 1)), max_size=20)


def order_of(runs: list[tuple[int, int]]) -> OrderChunks:
    """Chunks of an order: the records of each, and the chunk of the cache that they are a part of."""
    sizes, chunks = zip(*runs, strict=True) if runs else ((), ())
    return OrderChunks(np.cumsum([0, *sizes], dtype=np.int64), np.array(chunks, np.int64))


@given(RUNS)
def test_what_is_written_is_read(runs: list[tuple[int, int]]) -> None:
    order = order_of(runs)
    again = OrderChunks.parse(order.dump(), order.digest, CHUNKS)
    assert again.bounds.tolist() == order.bounds.tolist() and again.chunk.tolist() == order.chunk.tolist()
    assert again.digest == order.digest == order_of(list(runs)).digest
    assert order.used.tolist() == sorted({chunk for _, chunk in runs} - {-1})


@given(RUNS.filter(bool), st.data())
def test_a_byte_that_changes_is_noticed(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    order = order_of(runs)
    content = bytearray(order.dump())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="not what its name says"):
        OrderChunks.parse(bytes(content), order.digest, CHUNKS)


@pytest.mark.parametrize("runs", [[(3, CHUNKS)], [(3, -2)], [(0, 1)], [(-4, 1)]])
def test_what_cannot_be_is_refused(runs: list[tuple[int, int]]) -> None:
    order = order_of(runs)
    with pytest.raises(ValueError, match="names what is not among 9 chunks"):
        OrderChunks.parse(order.dump(), order.digest, CHUNKS)


@given(RUNS, st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_uses_are_those_of_the_records(runs: list[tuple[int, int]], lanes: int, window: int, key: int) -> None:
    """By going through the positions one by one."""
    chunks = order_of([(1 + size % 5, chunk) for size, chunk in runs])
    order = ChunkOrder(chunks.bounds, lanes, window)
    expected = set()
    for position, place in enumerate(order.places(key, 0, len(order)).tolist()):
        chunk = chunks.chunk[np.searchsorted(chunks.bounds, place, side="right") - 1]
        if chunk >= 0:
            expected.add((int(chunk), position % lanes, order.window_of(position // lanes)))
    visits = chunks.in_cache(order.visits(key))
    assert set(zip(*(column.tolist() for column in visits), strict=True)) >= expected


class TestLease:
    def test_a_file_stays_as_long_as_somebody_needs_it(self, tmp_path: Path) -> None:
        order, files = order_of([(3, 1), (2, -1)]), OrderFiles(tmp_path, CHUNKS)
        files.remove_unused()
        assert files.bytes == 0
        one, two = OrderLease(tmp_path, order), OrderLease(tmp_path, order)
        for lease in (one, two):
            files.remove_unused()
            assert files.load(order.digest).chunk.tolist() == [1, -1] and files.bytes >= 4096
            lease.close()
        files.remove_unused()
        assert os.listdir(tmp_path / ORDERS) == []
        with pytest.raises(CorruptFile, match="missing or damaged"):
            files.load(order.digest)

    def test_whatever_is_there_is_replaced(self, tmp_path: Path) -> None:
        order = order_of([(3, 1)])
        path = tmp_path / ORDERS / f"{order.digest}.npy"
        makers: list[Callable[[], object]] = [
            partial(path.write_bytes, b"x" * len(order.dump())),
            path.mkdir,
            partial(path.symlink_to, "/dev/zero"),
            partial(os.mkfifo, path),
        ]
        for make in makers:
            OrderLease(tmp_path, order).close()
            path.unlink()
            make()
            lease = OrderLease(tmp_path, order)
            assert path.read_bytes() == order.dump() and not path.is_symlink()
            lease.close()
        path.unlink()
        os.mkfifo(path)
        OrderFiles(tmp_path, CHUNKS).remove_unused()
        assert os.listdir(tmp_path / ORDERS) == []

    def test_a_file_that_goes_before_it_is_locked_is_written_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fetcher comes between opening and locking, two times."""
        order, files, flock, calls = order_of([(3, 1)]), OrderFiles(tmp_path, CHUNKS), fcntl.flock, list[int]()

        def late(descriptor: int, operation: int) -> None:
            calls.append(operation)
            if operation == fcntl.LOCK_SH and calls.count(operation) <= 2:
                files.remove_unused()
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        lease = OrderLease(tmp_path, order)
        files.remove_unused()
        assert files.load(lease.digest).chunk.tolist() == [1] and calls.count(fcntl.LOCK_SH) == 3


class TestFetcher:
    def test_a_rank_is_told_and_forgotten_with_its_file(self, remote: Remote, small_chunks: None) -> None:
        write_plain(remote.dataset, [[4000] * 30])
        cache = remote.open(50 * MiB)
        bounds = np.array(cache.table.bounds)
        order = OrderChunks(np.cumsum([0, 2, 5, 3]), np.array([1, -1, 2]))
        rank = cache.register("job", Reading(0, 1, 4, 2, 1, (1, 2)), order)
        wait_until(lambda: cache.present[1] and cache.present[2], "what it needs is there")
        assert cache.state()["present"] == 2 < len(bounds) - 1
        assert cache.state()["orders"] > 0
        kill_fetcher(cache)
        rank.progress((1, 2), 4)
        assert cache.state()["readers"] == 1
        rank.close()
        wait_until(lambda: not os.listdir(cache.entry / ORDERS), "the file is gone")
        assert cache.state()["readers"] == 0

    def test_an_order_that_names_other_chunks_is_refused(self, remote: Remote) -> None:
        write_plain(remote.dataset, [[4000] * 3])
        cache = remote.open(50 * MiB)
        with pytest.raises(CorruptFile, match="names what is not among 1 chunks"):
            cache.register("job", Reading(0, 1, 4, 2, 1, (1, 2)), OrderChunks(np.array([0, 3]), np.array([1])))
        assert cache.state()["readers"] == 0

    def test_files_count_in_the_budget(self, remote: Remote, small_chunks: None) -> None:
        write_plain(remote.dataset, [[4000] * 30])
        cache = remote.open(50 * MiB)
        long = OrderChunks(np.arange(200_001), np.zeros(200_000, np.int64))
        tight = remote.open(cache.state()["overhead"] + int(cache.table.allocated.sum()))
        cache.close()
        wait_until(lambda: tight.state()["budget"] == tight.budget, "the larger budget has gone")
        with pytest.raises(UsageError, match="raise the budget"):
            tight.register("job", Reading(0, 1, 4, 2, 1, (1, 2)), long)
