"""Laws of `GrowingCache`: training gets what there is, waits no longer than is of use, and learns when filling ends."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import fillers
from helpers.fillers import BUDGET, SHARD, wait_until_unfilled
from helpers.waiting import wait_until

from packtrain import GrowingCache
from packtrain._core.generations import TEMPORARY
from packtrain._growing import cache as module
from packtrain._growing.cache_folder import is_filled
from packtrain._growing.options import FillOptions
from packtrain._growing.process import run
from packtrain.errors import FillError, OutputConflict, UsageError
from packtrain.reports import FillStatus


@pytest.fixture
def cache(root: Path) -> Iterator[GrowingCache]:
    with GrowingCache(root, BUDGET, shard_size=SHARD) as cache:
        yield cache


def filled(root: Path, samples: Any = fillers.few) -> None:
    """Makes a cache of what a source yields."""
    run(root, samples, FillOptions(BUDGET, shard_size=SHARD))


def kill(cache: GrowingCache) -> None:
    """Kills the filler, once it has said who it is."""
    os.kill(wait_until(lambda: cache.status().process, "the filler has said who it is"), signal.SIGKILL)
    wait_until_unfilled(cache.root)


class TestDataset:
    def test_it_comes_with_the_first_samples(self, cache: GrowingCache) -> None:
        cache.fill(fillers.steady)
        dataset = cache.dataset(timeout=60)
        assert dataset.field_names == ("x", "label")
        number = dataset.line(3)
        assert (dataset[3].x == number).all() and dataset[3].label == number % 7

    def test_it_has_all_fields_unless_some_are_named(self, root: Path) -> None:
        filled(root)
        assert GrowingCache(root).dataset().field_names == ("x", "label")
        assert GrowingCache(root).dataset(fields=("x",)).field_names == ("x",)

    def test_without_labels_there_are_none(self, root: Path) -> None:
        filled(root, lambda: iter([{"text": "one"}, {"text": "two"}]))
        assert [sample.text for sample in GrowingCache(root).dataset()] == ["one", "two"]  # type: ignore[attr-defined]

    def test_it_waits_for_a_filler_that_somebody_else_starts(self, root: Path) -> None:
        thread = threading.Timer(0.3, filled, [root])
        thread.start()
        try:
            assert len(GrowingCache(root).dataset(timeout=60)) > 0
        finally:
            thread.join()

    @pytest.mark.complete
    def test_after_its_time_it_says_what_the_filler_does(self, cache: GrowingCache) -> None:
        cache.fill(fillers.slow)
        with pytest.raises(FillError, match=r"no samples after 0.3 s. Its filler: \w+, .*smaller shard_size"):
            cache.dataset(timeout=0.3)

    def test_a_source_without_samples_ends_the_wait(self, cache: GrowingCache) -> None:
        def train() -> None:
            cache.fill(fillers.none)
            cache.dataset()

        with pytest.raises(FillError, match=r"and will have none|without a sample"):
            train()

    def test_a_filler_that_is_killed_ends_the_wait(self, cache: GrowingCache) -> None:
        cache.fill(fillers.slow)
        kill(cache)
        with pytest.raises(FillError, match=r"will have none\. Its filler: killed: .* was killed by SIGKILL"):
            cache.dataset()

    @pytest.mark.complete
    def test_a_cache_that_nobody_fills_is_not_waited_for(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_ALONE", 0.2)
        for timeout in (None, 0.1):
            with pytest.raises(FillError, match=rf"nothing fills {root}: call fill\(\), or run `packtrain fill"):
                GrowingCache(root).dataset(timeout=timeout)

    @pytest.mark.parametrize("timeout", [-1, "10"])
    def test_a_timeout_is_a_number(self, root: Path, timeout: Any) -> None:
        with pytest.raises(UsageError, match="timeout"):
            GrowingCache(root).dataset(timeout=timeout)


class TestFill:
    def test_it_needs_a_budget(self, root: Path) -> None:
        with pytest.raises(UsageError, match="a budget is needed"):
            GrowingCache(root).fill(fillers.steady)

    @pytest.mark.complete
    def test_a_second_one_is_refused_and_the_first_goes_on(self, cache: GrowingCache) -> None:
        cache.fill(fillers.steady)
        with pytest.raises(UsageError, match=r"call close\(\) first"):
            cache.fill(fillers.steady)
        with pytest.raises(OutputConflict, match="another filler works"):
            GrowingCache(cache.root, "1GiB").fill(fillers.steady)
        assert is_filled(cache.root)
        cache.close()
        assert not is_filled(cache.root)

    def test_values_are_checked_at_once(self, root: Path) -> None:
        with pytest.raises(UsageError, match="headroom"):
            GrowingCache(root, "1GiB", headroom=2)
        with pytest.raises(UsageError, match="outlive"):
            GrowingCache(root, "1GiB").fill(fillers.steady, outlive="yes")  # type: ignore[arg-type]


class TestDeath:
    """A filler that dies by itself is told of where training looks next, and training goes on."""

    @pytest.fixture
    def dead(self, cache: GrowingCache) -> GrowingCache:
        cache.fill(fillers.steady)
        cache.dataset(timeout=60)
        kill(cache)
        return cache

    def test_the_status_says_how(self, dead: GrowingCache) -> None:
        status = dead.status()
        assert (status.state, status.alive) == ("killed", False)
        assert "SIGKILL" in status.why and "memory" in status.why

    def test_a_dataset_comes_with_a_warning(self, dead: GrowingCache) -> None:
        with pytest.warns(
            RuntimeWarning, match="gets no new samples, its filler is gone: .*SIGKILL.* goes on with the old ones"
        ):
            dataset = dead.dataset()
        assert len(dataset) > 0

    @pytest.mark.complete
    def test_the_next_filler_begins_with_a_warning(self, dead: GrowingCache) -> None:
        with pytest.warns(RuntimeWarning, match="the last filler of .*SIGKILL"):
            dead.fill(fillers.steady)
        assert dead.status().alive


class TestFailure:
    """A filler that fails says why."""

    def test_the_reason_is_kept_and_told(self, cache: GrowingCache) -> None:
        cache.fill(fillers.steady)
        cache.dataset(timeout=60)
        shutil.rmtree(cache.root / TEMPORARY)
        wait_until_unfilled(cache.root)
        status = cache.status()
        assert (status.state, status.alive) == ("failed", False)
        assert TEMPORARY in status.why
        with pytest.warns(RuntimeWarning, match=re.escape(f"its filler is gone: {status.why}")):
            cache.dataset()


class TestObject:
    def test_it_can_be_sent_to_another_process_which_does_not_end_the_filler(self, cache: GrowingCache) -> None:
        cache.fill(fillers.steady)
        other = pickle.loads(pickle.dumps(cache))
        assert len(other.dataset(timeout=60)) > 0
        other.close()
        assert is_filled(cache.root)

    def test_a_cache_that_is_not_there_has_a_status(self, root: Path) -> None:
        assert GrowingCache(root).status() == FillStatus(root)
        assert not root.exists()
