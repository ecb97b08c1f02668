"""Laws of the bench: it counts batches correctly, and measures the loader itself."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.datasets import NO_IMAGE, make_dataset
from helpers.support import packed
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Loader, PackedDataset, TuneOptions, open_dataset, tune
from packtrain._core.options import StoreOptions
from packtrain._extras.tuning import Setting
from packtrain._extras.tuning import bench as bench_module
from packtrain._extras.tuning.bench import Bench, EndlessShuffle, SimulatedTraining
from packtrain._extras.tuning.trials import MIN_BATCHES
from packtrain.errors import LoaderError, NotADataset, UsageError
from packtrain.transforms import RandomResizedCrop


class TestSimulatedTraining:
    """With a simulated clock: batches arrive at given times."""

    def run(
        self, arrivals: Iterator[float], *, workers: int, pause: float = 0.0, seconds: float, limit: float = 1e9
    ) -> SimulatedTraining:
        now = 0.0

        def batches() -> Iterator[Any]:
            nonlocal now
            for arrival in arrivals:
                now = max(now, arrival)
                yield torch.zeros(8, 3, 2, 2), torch.zeros(8)

        def sleep(duration: float) -> None:
            nonlocal now
            now += duration

        consumer = SimulatedTraining(workers, pause, lambda: now, sleep)
        consumer.run(batches(), 0.0, seconds, limit)
        self.now = now
        return consumer

    def test_bursts_of_workers_count_once_each(self) -> None:
        """Four workers deliver one batch per second each, all at the same time: that is four per second, not more."""
        consumer = self.run((5 + number // 4 for number in range(10**6)), workers=4, seconds=12)
        assert consumer.batches % 4 == 0
        assert consumer.batches / consumer.seconds == pytest.approx(4)
        assert consumer.images == 8 * consumer.batches
        assert consumer.read_images == consumer.images + 4 * 8
        assert consumer.waited == pytest.approx(consumer.seconds)
        assert consumer.batch_bytes == 8 * 12 * 4 + 8 * 4

    def test_the_start_of_workers_is_not_counted(self) -> None:
        consumer = self.run((30 + number for number in range(10**6)), workers=1, seconds=40)
        assert consumer.batches / consumer.seconds == pytest.approx(1)

    def test_a_consumer_that_is_slower_does_not_wait(self) -> None:
        consumer = self.run((1 + 0.1 * number for number in range(10**6)), workers=1, pause=0.5, seconds=20)
        assert consumer.batches / consumer.seconds == pytest.approx(2)
        assert consumer.waited == pytest.approx(0)

    def test_a_consumer_that_is_faster_waits_for_the_rest(self) -> None:
        consumer = self.run((1.0 + number for number in range(10**6)), workers=1, pause=0.25, seconds=20)
        assert consumer.waited / consumer.seconds == pytest.approx(0.75)

    def test_a_few_batches_are_counted_however_long_they_take(self) -> None:
        consumer = self.run((10.0 * number for number in range(10**6)), workers=1, seconds=1)
        assert consumer.batches == MIN_BATCHES

    def test_the_limit_is_kept(self) -> None:
        consumer = self.run((10.0 * number for number in range(10**6)), workers=1, seconds=1, limit=35)
        assert consumer.batches < MIN_BATCHES and self.now <= 35


class TestEndlessShuffle:
    @given(rows=st.integers(1, 40), start=st.integers(0, 300), count=st.integers(1, 100), key=st.integers(0, 2**64 - 1))
    def test_any_stretch_is_part_of_one_endless_sequence(self, rows: int, start: int, count: int, key: int) -> None:
        order = EndlessShuffle(rows)
        whole = order.rows(key, 0, 400)
        assert whole.dtype == np.int64
        assert np.array_equal(order.rows(key, start, start + count), whole[start : start + count])
        for epoch in range(400 // rows):
            assert sorted(whole[epoch * rows : (epoch + 1) * rows]) == list(range(rows))

    def test_epochs_differ(self) -> None:
        first, second = EndlessShuffle(100).rows(7, 0, 200).reshape(2, 100)
        assert not np.array_equal(first, second)


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("tune") / "packed", "tar", store=StoreOptions())


class TestLoader:
    """Measures the real loader, on a dataset of twelve images that is read repeatedly."""

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_trial(self, folder: Path, workers: int) -> None:
        bench = Bench(folder, TuneOptions("rrc20", 5))
        setting = Setting(bench.target.decoders[0], workers, 3)
        begun = time.monotonic()
        trial = bench.run_trial(setting, 2.0, 0.2, 60.0)
        passed = time.monotonic() - begun
        assert trial is not None and trial.setting == setting
        assert trial.batches >= MIN_BATCHES and trial.images == 5 * trial.batches < trial.read_images
        assert 0.002 * trial.batches <= trial.seconds <= trial.took <= passed
        assert 0 <= trial.waited <= trial.seconds - 0.002 * trial.batches
        assert trial.batch_bytes >= 5 * 3 * 20 * 20
        assert not multiprocessing.active_children()

    def test_each_trial_reads_other_images(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise the first trial would read them from the disk for all others."""
        seeds: list[int] = []

        def loader(*arguments: Any, seed: int, **options: Any) -> Loader:
            seeds.append(seed)
            return Loader(*arguments, seed=seed, **options)

        monkeypatch.setattr(bench_module, "Loader", loader)
        bench = Bench(folder, TuneOptions("rrc20", 5))
        for _ in range(3):
            bench.run_trial(Setting("pillow", 0, 2), 0.0, 0.01, 60.0)
        assert len(set(seeds)) == 3

    def test_a_limit_that_is_too_short_for_a_trial(self, folder: Path) -> None:
        bench = Bench(folder, TuneOptions("rrc20", 5))
        assert bench.run_trial(Setting("pillow", 1, 2), 50.0, 0.01, 0.02) is None
        assert not multiprocessing.active_children()

    @pytest.mark.complete
    def test_tune_measures_decoders_and_workers(self, folder: Path) -> None:
        options = TuneOptions("rrc20", 40, seconds=8, max_workers=1)
        passed: list[float] = []
        result = tune(folder, options, on_trial=lambda trial, seconds, target: passed.append(seconds))
        assert passed == sorted(passed) and len(passed) == len(result.trials)
        assert {each.setting.workers for each in result.results} == {0, 1}
        assert set(result.target.decoders) == {each.setting.decoder for each in result.results}
        assert result.target.records == 12 and result.target.store == "crop-ready"
        assert result.default is not None and result.best in result.results
        assert result.disk_share < 1
        assert not multiprocessing.active_children()

    def test_raw_images_need_no_decoder(self, images: Path, tmp_path: Path) -> None:
        raw = packed(images, tmp_path / "raw", "hdf5", store=StoreOptions("raw", resize="24x24"))
        target = Bench(raw, TuneOptions("none", 4)).target
        assert (target.decoders, target.excluded) == (("auto",), {})

    def test_the_decoder_that_auto_takes_comes_first(self, folder: Path) -> None:
        target = Bench(folder, TuneOptions()).target
        assert target.decoders[0] == open_dataset(folder).decoder.name
        assert "pillow" in target.decoders
        assert sorted([*target.decoders, *target.excluded]) == ["accimage", "extension", "pillow", "simplejpeg"]

    def test_a_dataset_without_images(self, tmp_path: Path) -> None:
        without = make_dataset(tmp_path / "out", "tar", NO_IMAGE)
        with pytest.raises(UsageError, match=r"has no images, and tune measures nothing else"):
            tune(without)

    def test_no_dataset(self, tmp_path: Path) -> None:
        with pytest.raises(NotADataset):
            tune(tmp_path)

    def test_images_of_different_sizes(self, folder: Path) -> None:
        with pytest.raises(LoaderError):
            tune(folder, TuneOptions("none", seconds=30, max_workers=1))
        assert not multiprocessing.active_children()


def test_the_default_setting_is_that_of_the_loader(folder: Path) -> None:
    with Loader(open_dataset(folder, RandomResizedCrop(20)), 4) as loader:
        setting = Bench(folder, TuneOptions()).target.default(TuneOptions())
        assert (loader.num_workers, loader.prefetch_factor) == setting[1:]
        assert isinstance(loader.dataset, PackedDataset) and loader.dataset.decoder.name == setting.decoder
