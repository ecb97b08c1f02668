"""Laws of a loader over a dataset in an object store: each sample of a local copy once per epoch, whatever happens.

The fetching process is real, and so are its death and that of workers; the store is a folder in which faults are asked
for.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from helpers.batching import through_json
from helpers.processes import stop
from helpers.ranks import in_ranks
from helpers.reading import PLENTY, ROWS, TRANSFORM, URL, Streamed, cache_of, content, epoch_of, streamed_in
from helpers.streaming import fetcher_pid, kill_fetcher
from helpers.support import START_METHODS, flip, soon
from helpers.waiting import wait_until
from torch.utils.data import SequentialSampler

from packtrain import Loader, concat, open_dataset
from packtrain._core.errors import LoaderError, RemoteError, UsageError
from packtrain._core.manifest import Manifest
from packtrain._readers.dataset.image_dataset import ImageDataset
from packtrain._readers.loader.chunk_cache import ProgressReporter
from packtrain._readers.monitoring.stats import Meter
from packtrain._storage.streams import connections, cutting
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.client import RegisteredRank as Reader
from packtrain._storage.streams.policy import Reading
from packtrain.orders import BlockShuffled, ChunkShuffled, Shuffled, Weighted

BATCH = 12


@pytest.fixture
def streamed(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streamed]:
    """A dataset of many small chunks in a store."""
    with streamed_in(memory_path, monkeypatch) as found:
        yield found


def loader_of(dataset: ImageDataset, **options: Any) -> Loader:
    """A loader that shuffles."""
    options = {"shuffle": "sampler" not in options, "seed": 5, "num_workers": 2, "fields": ("row",), **options}
    return Loader(dataset, BATCH, **options)


class TestEpochs:
    @pytest.mark.complete
    @pytest.mark.parametrize(("share", "workers"), [(0.3, 2), (0.6, 0), (1.0, 2)])
    def test_each_sample_comes_once_and_is_that_of_a_local_copy(
        self, streamed: Streamed, share: float, workers: int
    ) -> None:
        expected = content(streamed.local())
        with loader_of(streamed.open(streamed.part(share)), num_workers=workers) as loader:
            first = epoch_of(loader)
            assert sorted(first) == expected and first != expected
            assert [sorted(epoch_of(loader)) for _ in range(2)] == [expected] * 2

    @pytest.mark.complete
    @pytest.mark.parametrize("fault", ["wrong", "slow", "shifted", "zeros", "kill"])
    def test_faults_change_nothing(self, streamed: Streamed, fault: str) -> None:
        expected = content(streamed.local())
        dataset = streamed.open(streamed.part(0.4))
        with loader_of(dataset) as loader:
            for _ in range(2):
                found: list[Any] = []
                for number, (images, labels, rows) in enumerate(loader):
                    found += zip(rows.tolist(), images, labels.tolist(), strict=True)
                    # One at a time: a chunk that arrives damaged twice is an error.
                    if number % 4 == 0 and not streamed.store.waiting():
                        streamed.store.fault(fault)
                assert sorted((row, image.numpy().tobytes(), label) for row, image, label in found) == expected
        streamed.store.sound()

    def test_ranks_that_are_given_go_through_one_order_or_are_refused(self, streamed: Streamed) -> None:
        budget = streamed.part(0.8)
        dataset, orders = streamed.open(budget), []
        loaders = [loader_of(dataset, rank=rank, world_size=2, num_workers=0) for rank in range(2)]
        for loader in loaders:
            with suppress(UsageError):
                next(iter(loader))
            orders.append(loader.state_dict()["parameters"])
        for loader in loaders:
            loader.close()
        assert orders[0] == orders[1]

    def test_the_order_has_as_many_chunks_at_once_as_there_is_room_for(self, streamed: Streamed) -> None:
        sizes = []
        for share in (0.3, 0.6, 1.0):
            with loader_of(streamed.open(streamed.part(share)), num_workers=0) as loader:
                next(iter(loader))
                parameters = loader.state_dict()["parameters"]
                sizes.append(parameters["lanes"] * parameters["window"])
            del loader
        assert sizes == sorted(sizes) and sizes[0] < sizes[-1] == 64


class TestOtherOrders:
    @pytest.mark.complete
    def test_everything_that_fits_may_be_read_in_any_order(self, streamed: Streamed) -> None:
        dataset, local = streamed.open(), streamed.local()
        orders: list[Callable[[Any], dict[str, Any]]] = [
            lambda data: {"shuffle": False},
            lambda data: {"sampler": Weighted(np.arange(ROWS))},
            lambda data: {"sampler": BlockShuffled(data, block=4, window=3)},
            lambda data: {"sampler": SequentialSampler(data)},
        ]
        for order in orders:
            with loader_of(dataset, **order(dataset)) as one, loader_of(local, **order(local)) as other:
                assert epoch_of(one) == epoch_of(other)

    def test_everything_is_fetched_in_the_background(self, streamed: Streamed) -> None:
        dataset = streamed.open()
        with loader_of(dataset, shuffle=False, num_workers=0) as loader:
            next(iter(loader))
            wait_until(lambda: all(cache_of(dataset).present), "every chunk is there")

    def test_a_part_is_refused_with_the_budget_that_would_do(self, streamed: Streamed) -> None:
        dataset = streamed.open(streamed.part(0.5))
        refused: list[tuple[ImageDataset, dict[str, Any]]] = [
            (dataset, {"shuffle": False}),
            (dataset, {"sampler": Shuffled(ROWS)}),
            (dataset, {"sampler": Weighted(np.ones(ROWS))}),
            (dataset, {"sampler": SequentialSampler(dataset)}),
            (dataset.subset(range(20)), {"sampler": Shuffled(20)}),
            (concat([dataset, dataset]), {"shuffle": False}),
        ]
        for part, options in refused:
            with pytest.raises(UsageError, match=r"s3://bucket/set .* budget=\"\d+MiB\" or more; .* ChunkShuffled"):
                loader_of(part, **options)
        assert len(epoch_of(loader_of(dataset))) == ROWS

    def test_an_order_of_other_chunks_is_refused(self, streamed: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset, local = streamed.open(streamed.part(0.5)), streamed.local()
        with loader_of(dataset, sampler=ChunkShuffled(local)):
            pass
        monkeypatch.setattr(cutting, "ENOUGH", 2 * cutting.ENOUGH)
        monkeypatch.setattr(cutting, "MOST", 2 * cutting.MOST)
        with pytest.raises(UsageError, match="ChunkShuffled of another dataset"):
            loader_of(dataset, sampler=ChunkShuffled(streamed.local()))


class TestResume:
    @pytest.mark.parametrize("taken", [0, pytest.param(3, marks=pytest.mark.complete), 19])
    def test_the_rest_of_an_epoch_with_another_budget_and_batch_size(self, streamed: Streamed, taken: int) -> None:
        expected = content(streamed.local())
        with loader_of(streamed.open(streamed.part(0.3))) as loader:
            found = [
                (row, image.numpy().tobytes(), label)
                for images, labels, rows in islice(loader, taken)
                for row, image, label in zip(rows.tolist(), images, labels.tolist(), strict=True)
            ]
            state = through_json(loader.state_dict())
        other = Loader(streamed.open(), 7, shuffle=True, num_workers=0, seed=1, fields=("row",))
        other.load_state_dict(state)
        found += epoch_of(other)
        assert sorted(found) == expected
        if taken:
            assert other._progress.order.parameters == state["parameters"]

    def test_the_epoch_after_has_lanes_of_its_own_which_the_cache_knows(self, streamed: Streamed) -> None:
        local, dataset = streamed.local(), streamed.open()
        with loader_of(local, sampler=ChunkShuffled(local, lanes=3, window=2), num_workers=0) as other:
            next(iter(other))
            state = other.state_dict()
        needed = []
        for epochs in (1, 2):
            with loader_of(dataset, num_workers=0) as loader:
                if epochs == 2:
                    loader.load_state_dict(state)
                    epoch_of(loader)
                next(iter(loader))
                needed.append(cache_of(dataset).state()["needed"])
        assert needed[0] == needed[1]

    def test_nothing_is_fetched_first_that_the_rest_of_an_epoch_does_not_need(self, streamed: Streamed) -> None:
        dataset = streamed.open(streamed.part(0.3))
        order, cache = ChunkShuffled(dataset, lanes=2, window=1), cache_of(dataset)
        with loader_of(streamed.local(), sampler=order, num_workers=0) as loader:
            for _ in islice(loader, 30):
                pass
            state, key = loader.state_dict(), loader._progress.order_keys(0)[0]
        before = len(streamed.store.reads())
        with loader_of(dataset, sampler=order, num_workers=0) as loader:
            loader.load_state_dict(state)
            next(iter(loader))
        rest = order.chunks.places(key, state["consumed"], ROWS)
        shards = Manifest.load(streamed.remote.dataset).shards
        needed = {
            (shards[cache.table.shard[chunk]].name, cache.table.extents(chunk)[0].start)
            for chunk in set((np.searchsorted(order.chunks.bounds, rest, side="right") - 1).tolist())
        }
        first = streamed.store.reads()[before:][:16]
        assert first and {(name, offset) for name, offset, _ in first} <= needed

    def test_a_cache_with_too_little_room_for_the_state_says_so(self, streamed: Streamed) -> None:
        with loader_of(streamed.open(), num_workers=0) as loader:
            next(iter(loader))
            state = loader.state_dict()
        streamed.remote.place = streamed.remote.place.parent / "elsewhere"
        streamed.remote.place.mkdir()
        with loader_of(streamed.open(streamed.part(0.3)), num_workers=0) as other:
            other.load_state_dict(state)
            with pytest.raises(UsageError, match="raise the budget"):
                next(iter(other))


def another_job(rank: int, world: int) -> None:
    """Comes when both ranks have begun, and needs more than what there is."""
    dataset = open_dataset(URL, TRANSFORM, stage=os.environ["PLACE"], budget=int(os.environ["BUDGET"]))
    with loader_of(dataset) as loader:
        next(iter(loader))
        torch.distributed.barrier()
        if rank == 0:
            cache = cache_of(dataset)
            name = f"for this job and process {os.getppid()} together"
            with pytest.raises(UsageError, match=name):
                cache.register("another", Reading(0, 1, BATCH, 1, len(cache.table), (5, 6)))
        torch.distributed.barrier()


class TestRanks:
    def test_they_are_one_job_for_others(
        self, streamed: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PLACE", os.fspath(streamed.remote.place))
        monkeypatch.setenv("BUDGET", str(streamed.part(0.5)))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        in_ranks(2, another_job, group=tmp_path / "group")


class TestDeaths:
    def test_a_dead_worker_is_an_error_and_the_epoch_can_be_resumed(self, streamed: Streamed) -> None:
        dataset = streamed.open(streamed.part(0.4))
        loader, rows = loader_of(dataset), list[int]()
        with pytest.raises(LoaderError):  # noqa: PT012
            for _, _, found in loader:
                rows += found.tolist()
                if len(rows) == 5 * BATCH:
                    for process in torch.multiprocessing.active_children():
                        process.kill()
        with loader_of(dataset) as other:
            other.load_state_dict(loader.state_dict())
            rows += [row for row, _, _ in epoch_of(other)]
        assert sorted(rows) == list(range(ROWS))

    @pytest.mark.complete
    def test_a_hanging_fetcher_does_not_hold_up_who_has_its_chunks(self, streamed: Streamed) -> None:
        dataset = streamed.open()
        with loader_of(dataset) as loader:
            epoch_of(loader)
            pid = fetcher_pid(cache_of(dataset))
            stop(pid)
            try:
                with soon(20):
                    assert len(epoch_of(loader)) == ROWS
            finally:
                os.kill(pid, signal.SIGCONT)

    def test_a_loader_that_is_dropped_is_forgotten(self, streamed: Streamed) -> None:
        dataset = streamed.open(streamed.part(0.5))
        cache, before = cache_of(dataset), threading.active_count()
        loader = loader_of(dataset, num_workers=0)
        next(iter(loader))
        assert cache.state()["readers"] == 1
        del loader
        wait_until(
            lambda: cache.state()["readers"] == 0 and threading.active_count() == before, "nothing is left of it"
        )

    @pytest.mark.complete
    @pytest.mark.parametrize("shuffle", [True, False])
    def test_a_loader_that_is_closed_as_the_fetcher_starts_again_is_forgotten(
        self, streamed: Streamed, monkeypatch: pytest.MonkeyPatch, shuffle: bool
    ) -> None:
        dataset, go, started = streamed.open(), threading.Event(), threading.Event()
        cache, begin = cache_of(dataset), connections.start_fetcher

        def start_fetcher(*arguments: Any) -> dict[str, Any]:
            started.set()
            assert go.wait(60)
            return begin(*arguments)

        with loader_of(dataset, shuffle=shuffle, num_workers=0) as loader:
            epoch_of(loader)
            # Nobody waits for a chunk, so only the thread that tells the cache notices that the fetcher has gone.
            wait_until(lambda: cache.complete, "every chunk is there")
            next(iter(loader))
            kill_fetcher(cache)
            monkeypatch.setattr(connections, "start_fetcher", start_fetcher)
            loader._hooks.count(0)
            assert started.wait(60)
        go.set()
        name = "packtrain-progress"
        wait_until(lambda: not any(thread.name == name for thread in threading.enumerate()), "the thread has ended")
        # This asks over the only connection that is left.
        wait_until(lambda: cache.state()["clients"] == 1, "the loader is forgotten")

    def test_a_loader_that_is_closed_keeps_nothing_of_what_it_told(self, streamed: Streamed) -> None:
        with loader_of(streamed.open(), num_workers=0) as loader:
            next(iter(loader))
            reporter = weakref.ref(cast(Any, loader._hooks)._reporter)
            assert reporter() is not None
            loader.close()
            assert reporter() is None

    @pytest.mark.complete
    def test_a_loader_may_be_used_on_both_sides_of_a_fork(self, streamed: Streamed) -> None:
        loader = loader_of(streamed.open(streamed.part(0.5)), num_workers=0)
        first = next(iter(loader))[2].tolist()
        found = in_ranks(1, lambda rank, world: sorted(row for _, _, rows in loader for row in rows.tolist()))
        assert found == [list(range(ROWS))]
        assert len(epoch_of(loader)) == ROWS and len(first) == BATCH


class TestErrors:
    def test_a_store_that_has_gone_is_an_error_that_names_it(self, streamed: Streamed) -> None:
        dataset = streamed.open(streamed.part(0.4))
        for path in streamed.remote.dataset.glob("*.tar"):
            path.unlink()
        with soon(30), loader_of(dataset) as loader, pytest.raises(RemoteError, match=r"s3://bucket/set.* row \d+ "):
            epoch_of(loader)

    @pytest.mark.complete
    def test_a_record_that_is_damaged_in_the_store_is_an_error_or_left_out(self, streamed: Streamed) -> None:
        shard = sorted(streamed.remote.dataset.glob("*.tar"))[0]
        local = streamed.local()
        row = int(local.store.rows_at(np.array([3]))[0])
        offset = int(local.store.index["offset"][row])
        flip(shard, offset + 40)
        dataset = streamed.open()
        with loader_of(dataset) as loader, pytest.raises(Exception, match=rf"row {row}\b"):
            epoch_of(loader)
        with loader_of(dataset, on_error="skip") as loader:
            with pytest.warns(RuntimeWarning, match="left out"):
                rows = [found for found, _, _ in epoch_of(loader)]
            assert loader.skipped == ROWS - len(rows) > 0 and row not in rows

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"path": URL}, r'open_dataset\("s3://bucket/set", stage="/nvme", budget="200GiB"\)'),
            ({"path": URL, "stage": "/tmp", "budget": "much"}, "expected a number with a unit"),
            ({"path": URL, "stage": "/tmp", "budget": 0.5}, "budget=0.5: expected a whole number"),
            ({"path": URL, "stage": 5}, "a folder for staged copies"),
            ({"path": "/somewhere", "budget": "1GiB"}, "only the cache of a dataset in an object"),
            ({"path": "ftp://host/set", "stage": "/tmp"}, "a kind that packtrain does not read"),
        ],
    )
    def test_arguments_that_make_no_sense(self, arguments: dict[str, Any], expected: str) -> None:
        with pytest.raises(UsageError, match=expected):
            open_dataset(**arguments)


class TestDatasets:
    def test_rows_are_fetched_on_demand(self, streamed: Streamed) -> None:
        local, dataset = streamed.local(), streamed.open(streamed.part(0.2))
        for row in (0, 100, ROWS - 1, 5):
            assert bytes(dataset.record(row)) == bytes(local.record(row))
            assert np.array_equal(dataset[row][0], local[row][0])
        assert dataset.targets.tolist() == local.targets.tolist() and dataset.classes == local.classes
        assert repr(dataset).startswith("PackedDataset('s3://bucket/set'")
        assert dataset.describe(3).startswith("s3://bucket/set: row 3")
        assert cache_of(dataset).state()["fetched"] <= 8

    @pytest.mark.complete
    @START_METHODS
    def test_workers_of_every_kind(self, streamed: Streamed, method: str) -> None:
        dataset = streamed.open(streamed.part(0.5))
        with loader_of(dataset, multiprocessing_context=method) as loader:
            assert sorted(epoch_of(loader)) == content(streamed.local())


class TestFigures:
    @pytest.mark.complete
    def test_waiting_for_chunks_is_counted_and_named(self, streamed: Streamed) -> None:
        streamed.store.fault("slow", 100)
        dataset = streamed.open(PLENTY)
        with loader_of(dataset, num_workers=1) as loader:
            for batches, _ in enumerate(loader):
                if batches == 5:
                    time.sleep(2.5)
            figures = loader.stats.present
            assert figures.chunk_seconds > 0.2 and figures.fetched_bytes > 0 and figures.setup.streamed
            assert "waiting for chunks" in figures.report() and "fetched" in figures.report()
        streamed.store.sound()


class Heard:
    """A reader that remembers what it was told, and a meter."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.told: list[tuple[tuple[int, int], int, int]] = []
        self.closed = False
        self._then = then

    def progress(self, keys: tuple[int, int], consumed: int, in_flight: int) -> None:
        self.told.append((keys, consumed, in_flight))
        self._then()

    def count_fetched(self, size: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Cache:
    """A cache that has everything, or does not."""

    def __init__(self, complete: bool) -> None:
        self.complete = complete

    def state(self) -> dict[str, int]:
        return {"fetched_bytes": 0}


@pytest.mark.parametrize(("complete", "pause"), [(False, 0.1), (True, 0.4)], ids=["in part", "complete"])
def test_progress_is_told_now_and_then_and_always_the_last(
    monkeypatch: pytest.MonkeyPatch, complete: bool, pause: float
) -> None:
    monkeypatch.setattr("packtrain._readers.loader.chunk_cache._PAUSE", 0.1)
    monkeypatch.setattr("packtrain._readers.loader.chunk_cache._LOOKS", 0.4)
    heard, began = Heard(), time.monotonic()
    caches = (cast(ChunkCache, Cache(complete)),)
    reporter = ProgressReporter([cast(Reader, heard)], lambda epoch: (epoch, epoch + 1), caches, (), cast(Meter, heard))
    for epoch in range(2):
        for consumed in range(300):
            reporter.report(epoch, consumed, 305)
            time.sleep(0.001)
    wait_until(lambda: heard.told[-1:] == [((1, 2), 299, 6)], "the last is told")
    assert len(heard.told) <= 1 + (time.monotonic() - began) / pause
    reporter.report(2, 0, 0)
    reporter.report(2, 400, 300)
    wait_until(lambda: heard.told[-1:] == [((2, 3), 400, 0)], "nothing is begun behind what is consumed")
    reporter.close()


def test_what_is_collected_by_the_thread_that_tells_is_closed() -> None:
    heard = Heard(lambda: reporter.close())
    reporter = ProgressReporter(
        [cast(Reader, heard)],
        lambda epoch: (epoch, epoch + 1),
        (cast(ChunkCache, Cache(False)),),
        (),
        cast(Meter, heard),
    )
    reporter.report(0, 0, 0)
    reporter._thread.join(60)
    assert heard.closed and not reporter._thread.is_alive()
