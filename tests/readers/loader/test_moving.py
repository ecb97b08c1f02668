"""Laws of a loader that moves on with a growing cache: nothing of an older generation stays, in any process."""

from __future__ import annotations

import gc
import itertools
import os
import re
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.moving import BYTES, Cache, check, has_left, mapped, workers
from helpers.processes import stop
from helpers.support import START_METHODS
from helpers.waiting import wait_until
from torch.utils.data import default_collate

from packtrain import Loader
from packtrain._readers.dataset.growing import GrowingDataset
from packtrain._readers.loader.arena import Board, Changing
from packtrain.errors import CorruptRecord, LoaderError

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.fixture
def cache(memory_path: Path) -> Cache:
    return Cache(memory_path / "cache")


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def loader_of(dataset: GrowingDataset, batch_size: int = 4, **options: Any) -> Loader:
    fixed = {"shuffle": True, "seed": 1, "num_workers": 3, "multiprocessing_context": "fork"}
    return Loader(dataset, batch_size, **{**fixed, **options})


def board(loader: Loader) -> Board:
    pipeline: Any = loader._pipeline
    found: Board = pipeline._engine._board
    return found


def everybody_moved(cache: Cache, dataset: GrowingDataset) -> bool:
    """True if no process holds anything older than the present generation."""
    return cache.older_are_free() and all(has_left(process, dataset) for process in workers())


def wait_until_moved(cache: Cache, dataset: GrowingDataset) -> None:
    wait_until(lambda: everybody_moved(cache, dataset), "everybody has moved on")


@pytest.mark.complete
@pytest.mark.parametrize(("method", "count"), [("fork", 16), ("spawn", 2)])
def test_idle_workers_move_on_by_themselves(cache: Cache, method: str, count: int) -> None:
    """Each epoch is one batch, so that all workers but one have nothing to do. Nobody asks the loader for anything."""
    dataset = cache.dataset()
    with loader_of(dataset, 1000, num_workers=count, multiprocessing_context=method) as loader:
        started: set[int] = set()
        for _ in range(4):
            for batch in loader:
                assert len(check(batch, dataset)) == len(dataset)
            started |= set(workers())
            wait_until_moved(cache, dataset)
            cache.grow(8)
        assert len(started) == count


def test_a_stopped_worker_moves_on_when_it_continues(cache: Cache) -> None:
    dataset = cache.dataset()
    with loader_of(dataset, 1000) as loader:
        list(loader)
        stopped = workers()[1]
        cache.grow(16)
        stop(stopped)
        try:
            for batch in loader:
                check(batch, dataset)
            others = set(workers()) - {stopped}
            wait_until(lambda: all(has_left(process, dataset) for process in others), "the others have moved on")
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_until_moved(cache, dataset)


def go_through(loader: Loader, passes: int) -> None:
    for _ in range(passes):
        list(loader)


def test_a_worker_that_dies_without_work_leaves_nothing(cache: Cache) -> None:
    dataset = cache.dataset()
    with loader_of(dataset, 1000) as loader:
        list(loader)
        cache.grow(8)
        os.kill(workers()[0], signal.SIGKILL)
        with pytest.raises(LoaderError, match="was killed by SIGKILL"):
            # The other worker may have made the only batch before anybody waits for it.
            go_through(loader, 1000)
        for batch in loader:
            check(batch, dataset)
        wait_until_moved(cache, dataset)


@pytest.mark.complete
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("count", [0, 2])
def test_passes_that_are_kept_keep_no_generation(cache: Cache, count: int) -> None:
    """The consumer may still have an iterator of an earlier epoch."""
    dataset, kept = cache.dataset(), []
    with loader_of(dataset, num_workers=count) as loader:
        for _ in range(5):
            run = iter(loader)
            for _ in range(2):
                check(next(run), dataset)
            kept.append(run)
            if count:
                wait_until_moved(cache, dataset)
            assert cache.older_are_free()
            assert has_left(os.getpid(), dataset)
            cache.grow(8)


@pytest.mark.usefixtures("no_collector")
def test_an_error_in_a_worker_keeps_no_shard(cache: Cache) -> None:
    """Its traceback refers to the record."""
    dataset = cache.dataset()
    damage(cache, 7)
    with loader_of(dataset, shuffle=False, num_workers=1) as loader:
        run = iter(loader)
        for _ in range(2):
            check(next(run), dataset)
        with pytest.raises(CorruptRecord):
            list(run)
        (worker,) = workers()
        assert 7 in mapped(worker, cache.root)
        cache.grow(16)
        loader.set_epoch(1)
        for batch in loader:
            check(batch, dataset)
        assert workers() == [worker]
        wait_until_moved(cache, dataset)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("kind", [CorruptRecord, LoaderError])
def test_an_error_that_is_kept_keeps_no_generation(cache: Cache, count: int, kind: type[Exception]) -> None:
    """As interactive Python keeps the last one."""
    dataset = cache.dataset()
    if kind is CorruptRecord:
        damage(cache)
    collate = failing if kind is LoaderError else None
    with loader_of(dataset, num_workers=count, collate_fn=collate) as loader:
        with pytest.raises(kind) as kept:
            list(loader)
        cache.grow(16)
        for batch in loader:
            check(batch, dataset)
            del batch
        wait_until(
            lambda: cache.older_are_free() and all(has_left(each, dataset) for each in (os.getpid(), *workers())),
            "no process holds an older generation",
        )
        assert kept.value.__traceback__ is not None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("names", [True, False])
def test_an_epoch_whose_first_batch_fails_chooses_anew(cache: Cache, count: int, names: bool) -> None:
    dataset = cache.dataset()
    for number in range(6):
        damage(cache, number)
    with loader_of(dataset, 1000, num_workers=count) as loader:
        with pytest.raises(CorruptRecord) as kept:
            list(loader)
        cache.grow(32)
        if names:
            loader.set_epoch(1)
        (batch,) = loader
        assert len(check(batch, dataset)) == len(dataset) and dataset.generation == cache.last().number
        del batch
        wait_until(cache.older_are_free, "nobody holds an older generation")
        assert kept.value.__traceback__ is not None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("steps", [0, 1, 1000])
def test_a_closed_loader_keeps_no_generation(cache: Cache, count: int, steps: int) -> None:
    dataset = cache.dataset()
    loader = loader_of(dataset, num_workers=count)
    loader.sample(3)
    run = iter(loader)
    for batch in itertools.islice(run, steps):
        check(batch, dataset)
        del batch
    loader.close()
    cache.grow(16)
    dataset.advance()
    assert cache.older_are_free() and has_left(os.getpid(), dataset)
    assert sorted(number for batch in loader for number in check(batch, dataset)) == cache.last_numbers()
    loader.close()


def failing(samples: list[Any]) -> Any:
    """Fails in the first generation."""
    if any(sample.label == 0 for sample in samples):
        raise ValueError("no")
    return default_collate(samples)


def damage(cache: Cache, number: int = 0) -> None:
    """Damages all records of a shard of the first generation."""
    shard = sorted((cache.root / "shards").glob("*.tar"))[number]
    data = bytearray(shard.read_bytes())
    for at in range(2048, len(data), 4096):
        data[at] ^= 1
    shard.write_bytes(data)


@START_METHODS
def test_forked_workers_need_no_lease_of_the_consumer(cache: Cache, method: str) -> None:
    """Each takes its own, which lasts as long as it reads, even if the consumer's process gives its lease up."""
    dataset = cache.dataset()
    with loader_of(dataset, multiprocessing_context=method, num_workers=2) as loader:
        run = iter(loader)
        check(next(run), dataset)
        present = dataset.generation
        dataset.store.release()
        cache.grow(3)
        cache.older_are_free()
        assert present in [int(path.stem) for path in (cache.root / "generations").iterdir()]
        for batch in run:
            check(batch, dataset)


def test_bytes_are_counted_over_all_generations(cache: Cache) -> None:
    dataset, wanted = cache.dataset(), 0
    with loader_of(dataset, 1000, num_workers=1) as loader:
        for _ in range(4):
            list(loader)
            # Behind the values stands the header of an .npy file.
            found = loader.stats.present.read_bytes
            assert found // len(dataset) in range(BYTES, BYTES + 512)
            wanted += found
            cache.grow(8)
        assert loader.stats.total.read_bytes == wanted


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.complete
def test_batches_grow_with_the_first_generations(tmp_path: Path, count: int) -> None:
    """Slots that were made for a generation of a few samples are made anew."""
    cache = Cache(tmp_path / "cache", shards=1)
    dataset = cache.dataset()
    with loader_of(dataset, 32, num_workers=count) as loader:
        sizes = []
        for _ in range(5):
            sizes.append(max(len(check(batch, dataset)) for batch in loader))
            cache.grow(4)
        assert sizes == [4, 20, 32, 32, 32]


def test_nothing_is_announced_for_the_same_generation(cache: Cache) -> None:
    dataset = cache.dataset()
    with loader_of(dataset) as loader:
        list(loader)
        before = board(loader).edition()
        list(loader)
        assert board(loader).edition() == before
        cache.grow(1)
        list(loader)
        assert board(loader).edition() == before + 1


def test_workers_may_have_more_shards_open_than_the_consumer(tmp_path: Path) -> None:
    """They raise the number of descriptors that they may have. Each mapped shard takes one, and its index another."""
    cache = Cache(tmp_path / "cache", shards=20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The worker is forked from a process that may have few indexes open: 8 of them if it has nothing else open.
    few = max(64, 40 + len(os.listdir("/proc/self/fd")))
    assert few < 160, "too much is open for this test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        with loader_of(cache.dataset(), num_workers=1) as loader:
            list(loader)
            (worker,) = workers()
            wanted = (1 << 16) if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
            assert resource.prlimit(worker, resource.RLIMIT_NOFILE) == (wanted, hard)
            maps = Path(f"/proc/{worker}/maps").read_text()
            assert len(set(re.findall(r"cache-\d+\.index\.npy", maps))) == 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.complete
def test_whoever_reads_the_board_without_a_ticket_sees_one_announcement() -> None:
    """While another is written, it sees that one changes; it never sees parts of two."""
    board, stop = Board(2), threading.Event()
    seen, wrong = set(), []

    def content(number: int) -> bytes:
        return bytes([number % 251]) * (1 + number % 5000)

    def read() -> None:
        while not stop.is_set():
            with suppress(Changing):
                edition = board.edition()
                found = board.announced(edition)
                seen.add(edition)
                if found != content(edition):
                    wrong.append(edition)

    board.announce(content(1))
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 500):
        board.announce(content(number))
    stop.set()
    reader.join()
    assert len(seen) > 1
    assert not wrong
