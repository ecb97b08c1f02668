"""Laws of `tune`: what it chooses on simulated hosts in the time it has, and that it measures the loader itself."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.datasets import NO_IMAGE, make_dataset
from helpers.support import image_set, packed
from hypothesis import assume, given
from hypothesis import strategies as st

from packtrain import Loader, TuneOptions, open_dataset, tune, watch
from packtrain._extras import tune as module
from packtrain._extras.tune import (
    MIN_BATCHES,
    Bench,
    Pace,
    Setting,
    Trial,
    conclude,
    default_setting,
    ladder,
    paced,
    results_of,
    search,
    spread_of,
)
from packtrain.errors import LoaderError, NotADataset, UsageError
from packtrain.reports import TuneResult
from packtrain.transforms import RandomResizedCrop

DEFAULT = Setting(4, 2)
PREFETCHES = (2, 4, 8)
Rate = Callable[[Setting], float]
"""Images per second that a host makes with a setting."""


def set_cores(cores: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "available_cores", lambda: cores)
    patch.setattr(module, "workers_of", lambda workers: cores)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(4, monkeypatch)


def by_cores(cores: int, speed: float = 500.0) -> Rate:
    """A host whose rate grows with the workers up to the number of cores, and falls a little beyond."""

    def rate(setting: Setting) -> float:
        used = min(max(0.9, setting.num_workers), cores)
        return speed * used * (1 - 0.05 * max(0, setting.num_workers - cores))

    return rate


class Host:
    """A simulated host. Time passes only while something is measured.

    Args:
        rate: Images per second that the workers make.
        noise: Largest relative error of a measured rate.
        seed: Seed of the errors.
        start: Seconds to start and stop the workers.
    """

    def __init__(self, rate: Rate, noise: float = 0.0, seed: int = 0, start: float = 0.1) -> None:
        self.rate, self.noise, self.start = rate, noise, start
        self.now = 0.0
        self.measured: list[Setting] = []
        self._random = random.Random(seed)

    def tuned(self, options: TuneOptions) -> TuneResult:
        def run_trial(setting: Setting, seconds: float) -> Trial:
            self.measured.append(setting)
            pause = options.consumer_ms / 1000
            made = options.batch_size / (self.rate(setting) * (1 + self.noise * self._random.uniform(-1, 1)))
            every = max(made, pause) if setting.num_workers else made + pause
            count = max(MIN_BATCHES, round((seconds - self.start) / every - 1))
            took = self.start + (count + 1) * every
            self.now += took
            return Trial(setting, options.batch_size / every, 1 - pause / every, 1 << 20, 0.0, took)

        trials = search(options, run_trial, lambda trial: None, lambda: self.now, options.seconds)
        return conclude("/data/train", options, trials)


def delivered(rate: Rate, setting: Setting, options: TuneOptions) -> float:
    """Images per second that a consumer gets, without noise."""
    pause, made = options.consumer_ms / 1000, options.batch_size / rate(setting)
    return options.batch_size / (max(made, pause) if setting.num_workers else made + pause)


class TestSearch:
    @given(
        cores=st.integers(1, 64),
        peak=st.floats(0.02, 1.5),
        ahead=st.floats(1.0, 1.3),
        consumer_ms=st.sampled_from([0.0, 5.0, 30.0, 200.0]),
        noise=st.floats(0.0, 0.03),
        seed=st.integers(0, 1000),
    )
    def test_what_is_chosen_is_nearly_the_best_that_is_tried(
        self, cores: int, peak: float, ahead: float, consumer_ms: float, noise: float, seed: int
    ) -> None:
        """On any host where more workers help up to some number."""
        top = max(1.0, peak * cores)

        def rate(setting: Setting) -> float:
            gain = 1.0 if setting.prefetch_factor == 2 or not setting.num_workers else ahead
            return 500 * gain * min(max(0.9, setting.num_workers), top)

        options = TuneOptions(consumer_ms=consumer_ms)
        with pytest.MonkeyPatch.context() as patch:
            set_cores(cores, patch)
            try:
                result = Host(rate, noise, seed).tuned(options)
            except UsageError:
                # With 200 ms per batch, the time may be too short; other tests cover this error.
                assume(False)
        everything = [Setting(workers, prefetch) for workers in range(cores + 2) for prefetch in PREFETCHES]
        best = max(delivered(rate, setting, options) for setting in everything)
        assert delivered(rate, result.best.setting, options) >= (0.96 if consumer_ms > 30 else 0.88) * best

    @given(
        seconds=st.floats(1, 600),
        speed=st.floats(50, 5000),
        cores=st.integers(1, 64),
        start=st.floats(0, 2),
        consumer_ms=st.sampled_from([0.0, 10.0, 400.0]),
        batch=st.sampled_from([8, 64, 512]),
    )
    def test_the_time_is_kept(
        self, seconds: float, speed: float, cores: int, start: float, consumer_ms: float, batch: int
    ) -> None:
        host = Host(by_cores(cores, speed), noise=0.03, start=start)
        with pytest.MonkeyPatch.context() as patch:
            set_cores(cores, patch)
            try:
                host.tuned(TuneOptions(seconds=seconds, batch_size=batch, consumer_ms=consumer_ms))
            except UsageError:
                assert len(host.measured) == 1
            else:
                # The last measurement ends with a whole batch.
                assert host.now <= 1.1 * seconds + batch / speed

    def test_the_time_that_it_asks_for_suffices(self) -> None:
        host = Host(by_cores(4, 100), start=1.0)
        with pytest.raises(UsageError, match=r"too little.*Give at least (\d+)") as caught:
            host.tuned(TuneOptions(seconds=12))
        needed = int(str(caught.value).split("Give at least ")[1].split(",")[0])
        assert len(host.measured) == 1
        assert Host(by_cores(4, 100), start=1.0).tuned(TuneOptions(seconds=needed)).default is not None

    @pytest.mark.parametrize("enough", [1, 2, 4])
    def test_ties_go_to_fewer_workers_and_less_memory(self, enough: int) -> None:
        result = Host(lambda setting: 500.0 * min(max(0.5, setting.num_workers), enough)).tuned(TuneOptions())
        assert result.best.setting == (enough, 2)

    @pytest.mark.parametrize(("consumer_ms", "workers"), [(300, 1), (130, 1), (120, 2), (66, 2), (44, 4), (1, 4)])
    def test_a_consumer_gets_the_fewest_workers_that_it_does_not_wait_for(
        self, consumer_ms: float, workers: int
    ) -> None:
        """A worker makes 500 images/s, so it takes 128 ms for 64 images."""
        result = Host(by_cores(4)).tuned(TuneOptions(consumer_ms=consumer_ms))
        assert result.best.setting == (workers, 2)
        assert (result.best.wait_share <= 0.02) == (consumer_ms >= 33)
        assert ("no setting keeps up" in result.findings[0]) == (consumer_ms == 1)

    def test_a_larger_prefetch_factor_is_chosen_where_it_helps(self) -> None:
        host = Host(lambda setting: by_cores(4)(setting) * (1 if setting.prefetch_factor < 4 else 1.3))
        result = host.tuned(TuneOptions())
        assert result.best.setting == (4, 4)
        assert "30.0% more images/s than with the defaults" in result.findings[-1]

    def test_a_setting_that_is_far_behind_is_not_measured_again(self) -> None:
        host = Host(by_cores(4))
        host.tuned(TuneOptions())
        assert host.measured.count(Setting(1, 2)) == 1
        assert host.measured.count(Setting(4, 2)) > 3

    def test_contestants_take_turns_there_and_back(self) -> None:
        """A host that keeps slowing down must not favour the setting that is measured first."""
        host = Host(lambda setting: 500.0)
        host.tuned(TuneOptions(max_workers=1))
        # The first is the rehearsal.
        first, second = host.measured[1:3], host.measured[3:5]
        assert first == [Setting(0, 2), Setting(1, 2)] and second == first[::-1]

    def test_no_more_workers_than_allowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        set_cores(64, monkeypatch)
        host = Host(by_cores(64))
        result = host.tuned(TuneOptions(max_workers=5))
        assert result.best.setting.num_workers == max(setting.num_workers for setting in host.measured) == 5
        assert result.default is not None and result.default.setting.num_workers == 5
        assert Host(by_cores(4)).tuned(TuneOptions(max_workers=0)).best.setting.num_workers == 0

    @given(most=st.integers(0, 300), usual=st.integers(1, 300))
    def test_the_ladder_doubles_at_most(self, most: int, usual: int) -> None:
        numbers = ladder(most, usual)
        assert numbers == sorted(set(numbers)) and {0, most, min(usual, most)} <= set(numbers)
        assert all(0 <= number <= most for number in numbers)
        assert all(high <= max(2 * low, 1) for low, high in pairwise(numbers))


def trial_of(setting: Setting, rate: float, wait_share: float = 1.0, disk_share: float = 0.0) -> Trial:
    return Trial(setting, rate, wait_share, 1 << 20, disk_share, 1.0)


def concluded(trials: list[Trial], options: TuneOptions | None = None) -> TuneResult:
    return conclude("/data/train", options or TuneOptions(), trials)


class TestConclusion:
    def test_the_line_makes_the_loader(self, tmp_path: Path) -> None:
        folder = packed(image_set(tmp_path / "images"), tmp_path / "it's", "tar")
        result = conclude(str(folder), TuneOptions("rrc20", 3), [trial_of(Setting(1, 4), 100)])
        names: dict[str, Any] = {}
        exec(f"{result.imports}\nloader = {result.line}", names)
        loader = names["loader"]
        assert type(loader) is Loader
        assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (3, 1, 4)
        assert loader.dataset.store.path == folder
        with loader:
            assert next(iter(loader))[0].shape == (3, 3, 20, 20)

    def test_the_line_leaves_out_what_is_the_default(self) -> None:
        result = concluded([trial_of(Setting(0, 2), 100)], TuneOptions("none"))
        assert result.line == "Loader(open_dataset('/data/train'), batch_size=64, shuffle=True, num_workers=0)"

    def test_the_defaults_are_kept_if_they_are_as_good(self) -> None:
        trials = [trial_of(DEFAULT, rate) for rate in (100, 104, 100)]
        trials += [trial_of(Setting(4, 8), rate) for rate in (107, 103, 107)]
        result = concluded(trials)
        assert result.spread == pytest.approx(0.04, abs=0.003)
        assert result.best is result.default
        assert "leave them (two measurements of a setting differ by" in result.findings[0]

    def test_a_setting_that_is_neither_cheaper_nor_clearly_faster_is_not_recommended(self) -> None:
        """A factor of 4 is as fast as 8 and the default is not, but 4 is not clearly faster than the default either."""
        trials = [trial_of(DEFAULT, rate) for rate in (98, 102, 98, 102, 100)]
        trials += [trial_of(Setting(4, 4), 101), trial_of(Setting(4, 8), 109)]
        result = concluded(trials)
        assert result.best is result.default

    @pytest.mark.parametrize(("gain", "worth"), [(1.16, False), (1.25, True)])
    def test_no_gain_is_claimed_that_may_be_chance(self, gain: float, worth: bool) -> None:
        """Measurements differ by a tenth, so a gain of a sixth may be chance, although it exceeds any tolerance."""
        rates = (95, 105, 95, 105, 100)
        trials = [trial_of(DEFAULT, rate) for rate in rates]
        result = concluded(trials + [trial_of(Setting(4, 8), gain * rate) for rate in rates])
        assert result.spread == pytest.approx(0.1)
        assert (result.best is not result.default) == worth
        assert ("worth setting" in result.findings[0], "leave them" in result.findings[0]) == (worth, not worth)
        assert "this host is noisy" in result.findings[1]

    @pytest.mark.parametrize(
        ("noise", "gain", "least", "most"),
        [(0.01, 1.0, 0, 0.01), (0.03, 1.0, 0, 0.06), (0.1, 1.0, 0, 0.06), (0.3, 1.0, 0, 0.06), (0.03, 1.15, 0.95, 1)],
    )
    @pytest.mark.complete
    def test_how_often_a_gain_is_claimed(self, noise: float, gain: float, least: float, most: float) -> None:
        """Rarely where there is none, and nearly always where there is one."""
        claims = 0
        for seed in range(1000):
            drawn = random.Random(seed)
            trials = [
                trial_of(
                    Setting(4, prefetch), 100 * (1 if prefetch == 2 else gain) * (1 + noise * drawn.uniform(-1, 1))
                )
                for _ in range(7)
                for prefetch in PREFETCHES
            ]
            result = concluded(trials)
            claims += result.best is not result.default
        assert least <= claims / 1000 <= most

    def test_a_consumer_does_not_wait_because_the_host_is_noisy(self) -> None:
        trials = [trial_of(DEFAULT, rate) for rate in (1000, 940, 1000)] + [trial_of(Setting(2, 2), 950)]
        result = concluded(trials, TuneOptions(consumer_ms=60.0))
        assert result.spread == pytest.approx(0.06)
        assert result.best.setting == DEFAULT

    def test_a_cheaper_setting_that_is_as_good_is_named(self) -> None:
        result = concluded([trial_of(DEFAULT, rate) for rate in (100, 100)] + [trial_of(Setting(2, 2), 99)])
        assert result.best.setting.num_workers == 2
        assert "the defaults are as good (-1.0%; two" in result.findings[0]
        assert result.findings[0].endswith("leave them unless cores are scarce: 2 workers instead of 4")

    def test_the_spread_is_that_between_two_trials_of_a_setting(self) -> None:
        """Not the difference between settings; and a single outlier does not count."""
        trials = [trial_of(Setting(workers, 4), 1000 * workers) for workers in (1, 2, 3)]
        assert spread_of(results_of(trials)) is None
        trials += [trial_of(DEFAULT, rate) for rate in (100, 102, 100, 102, 10)]
        assert spread_of(results_of(trials)) == pytest.approx(0.02)

    @pytest.mark.parametrize(("disk_share", "cold"), [(0.0, False), (0.03, False), (0.3, True)])
    def test_data_from_the_disk_is_mentioned(self, disk_share: float, cold: bool) -> None:
        result = concluded([trial_of(DEFAULT, 100, disk_share=disk_share)])
        assert ("30% of the data came from the disk" in result.findings[-1]) == cold

    def test_memory_is_that_of_all_batches_that_a_loader_keeps(self) -> None:
        trials = [trial_of(Setting(workers, prefetch), 100) for workers, prefetch in ((0, 2), (3, 4))]
        assert [each.memory >> 20 for each in results_of(trials)] == [1, 14]


class TestPace:
    """With a simulated clock: batches arrive at given times."""

    def run(self, arrivals: Iterator[float], *, workers: int, pause: float = 0.0, seconds: float) -> Pace:
        self.now, self.taken = 0.0, 0

        def batches() -> Iterator[Any]:
            for arrival in arrivals:
                self.now = max(self.now, arrival)
                self.taken += 1
                yield torch.zeros(8, 3, 2, 2), torch.zeros(8)

        def sleep(duration: float) -> None:
            self.now += duration

        return paced(batches(), workers, pause, seconds, lambda: self.now, sleep)

    def test_bursts_of_workers_count_once_each(self) -> None:
        """Four workers deliver one batch per second each, all at the same time: that is four per second, not more."""
        pace = self.run((5 + number // 4 for number in range(10**6)), workers=4, seconds=12)
        assert self.taken % 4 == 0
        assert pace.rate == pytest.approx(4 * 8) and pace.wait_share == pytest.approx(1)
        assert pace.batch_bytes == 8 * 12 * 4 + 8 * 4

    def test_the_start_of_workers_is_not_counted(self) -> None:
        assert self.run((30 + n for n in range(10**6)), workers=1, seconds=40).rate == pytest.approx(8)

    def test_a_consumer_that_is_slower_does_not_wait(self) -> None:
        pace = self.run((1 + 0.1 * n for n in range(10**6)), workers=1, pause=0.5, seconds=20)
        assert pace.rate == pytest.approx(16) and pace.wait_share == pytest.approx(0)

    def test_a_consumer_that_is_faster_waits_for_the_rest(self) -> None:
        pace = self.run((1.0 + n for n in range(10**6)), workers=1, pause=0.25, seconds=20)
        assert pace.wait_share == pytest.approx(0.75)

    def test_a_few_batches_are_counted_however_long_they_take(self) -> None:
        self.run((10.0 * n for n in range(10**6)), workers=1, seconds=1)
        assert self.taken == 1 + MIN_BATCHES


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("tune") / "packed", "tar")


class TestLoader:
    """Measures the real loader, on a dataset of twelve images that is read repeatedly."""

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_trial(self, folder: Path, workers: int) -> None:
        trial = Bench(folder, TuneOptions("rrc20", 5, consumer_ms=2.0)).trial(Setting(workers, 3), 0.2)
        assert trial.setting == (workers, 3) and trial.took >= 0.2
        assert 0 < trial.rate < 5 / 0.002 and 0 <= trial.wait_share < 1 and 0 <= trial.disk_share <= 1
        assert trial.batch_bytes >= 5 * 3 * 20 * 20
        assert not multiprocessing.active_children()

    def test_each_trial_reads_other_images(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise the first trial would read them from the disk for all others."""
        seeds: list[int] = []

        def loader(*arguments: Any, seed: int, **options: Any) -> Loader:
            seeds.append(seed)
            return Loader(*arguments, seed=seed, **options)

        monkeypatch.setattr(module, "Loader", loader)
        bench = Bench(folder, TuneOptions("rrc20", 5))
        for _ in range(3):
            bench.trial(Setting(0, 2), 0.01)
        assert len(set(seeds)) == 3

    @pytest.mark.complete
    def test_tune_measures_numbers_of_workers(self, folder: Path) -> None:
        passed: list[float] = []
        options = TuneOptions("rrc20", 40, seconds=8, max_workers=1)
        result = tune(folder, options, on_trial=lambda trial, seconds: passed.append(seconds))
        assert passed == sorted(passed) and len(passed) == len(result.trials)
        assert {each.setting.num_workers for each in result.results} == {0, 1}
        assert result.default is not None and result.best in result.results
        assert not multiprocessing.active_children()

    def test_what_has_nothing_to_measure_is_refused(self, tmp_path: Path) -> None:
        without = make_dataset(tmp_path / "out", "tar", NO_IMAGE)
        with pytest.raises(UsageError, match=r"has no images, and tune measures nothing else"):
            tune(without)
        with pytest.raises(NotADataset):
            tune(tmp_path)

    def test_images_of_different_sizes(self, folder: Path) -> None:
        with pytest.raises(LoaderError):
            tune(folder, TuneOptions("none", seconds=30, max_workers=1))
        assert not multiprocessing.active_children()


def test_the_default_setting_is_that_of_the_loader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with Loader(open_dataset(folder, RandomResizedCrop(20)), 4) as loader:
        assert (loader.num_workers, loader.prefetch_factor) == default_setting(TuneOptions())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": "x"}, "seconds='x': expected seconds, from 1 to a million"),
        ({"seconds": 0.5}, "seconds=0.5: expected seconds, from 1 to a million"),
        ({"consumer_ms": float("nan")}, "consumer_ms=nan: expected milliseconds"),
        ({"consumer_ms": -1}, "consumer_ms=-1: expected milliseconds"),
        ({"batch_size": 1.5}, "batch_size=1.5: expected a whole number from 1"),
        ({"max_workers": -1}, "max_workers=-1: expected a whole number from 0"),
        ({"transform": 3}, "transform=3: expected a str"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TuneOptions(**options)


def test_what_cannot_be_iterated_cannot_be_watched() -> None:
    loader: Any = 3
    with pytest.raises(UsageError, match="loader=3: expected a DataLoader"):
        watch(loader)
