"""Laws of the search: what it chooses on simulated hosts, in the time that it has."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from helpers.tuning import PREFETCHES, TARGET
from hypothesis import assume, given
from hypothesis import strategies as st

from packtrain import TuneOptions, TuneResult
from packtrain._extras.tuning import Setting, Trial, TuneTarget, conclude
from packtrain._extras.tuning.search import ladder, search
from packtrain._extras.tuning.trials import MIN_BATCHES
from packtrain.errors import UsageError

Rate = Callable[[Setting], float]
"""Images per second that a host makes with a setting."""


def by_cores(cores: int, speed: float = 500.0) -> Rate:
    """A host whose rate grows with the workers up to the number of cores, and falls a little beyond."""
    factor = {"extension": 1.0, "pillow": 0.6}

    def rate(setting: Setting) -> float:
        used = min(max(0.9, setting.workers), cores)
        return factor[setting.decoder] * speed * used * (1 - 0.05 * max(0, setting.workers - cores))

    return rate


class Host:
    """A simulated host. Time passes only while something is measured.

    Args:
        rate: Images per second that the workers make.
        noise: Largest relative error of a measured rate.
        seed: Seed of the errors.
        start: Seconds to start and stop the workers.
        batch: Images per batch.
    """

    def __init__(self, rate: Rate, noise: float = 0.0, seed: int = 0, start: float = 0.1, batch: int = 64) -> None:
        self.rate, self.noise, self.start, self.batch = rate, noise, start, batch
        self.now = 0.0
        self.measured: list[tuple[Setting, float]] = []
        self.allowed: list[tuple[float, float]] = []
        """The arguments `seconds` and `limit` of each measurement."""
        self._random = random.Random(seed)

    def clock(self) -> float:
        return self.now

    def run_trial(self, setting: Setting, consumer_ms: float, seconds: float, limit: float) -> Trial | None:
        self.measured.append((setting, consumer_ms))
        self.allowed.append((seconds, limit))
        made = self.batch / (self.rate(setting) * (1 + self.noise * self._random.uniform(-1, 1)))
        every = max(made, consumer_ms / 1000) if setting.workers else made + consumer_ms / 1000
        count = max(MIN_BATCHES, round((seconds - self.start) / every - 1))
        took = self.start + (count + 1) * every
        if took > limit:
            self.now += limit
            return None
        self.now += took
        return Trial(
            setting,
            consumer_ms,
            batches=count,
            images=count * self.batch,
            seconds=count * every,
            waited=count * (every - consumer_ms / 1000),
            took=took,
            batch_bytes=1 << 20,
            read_images=count * self.batch,
        )

    def tuned(self, options: TuneOptions, target: TuneTarget = TARGET) -> TuneResult:
        trials: list[Trial] = []
        search(target, options, self.run_trial, self.clock, lambda trial, passed: trials.append(trial))
        result = conclude(target, options, trials)
        assert result is not None
        return result


def delivered(rate: Rate, setting: Setting, options: TuneOptions) -> float:
    """Images per second that a consumer gets, without noise."""
    pause, made = options.consumer_ms / 1000, options.batch_size / rate(setting)
    return options.batch_size / (max(made, pause) if setting.workers else made + pause)


class TestChoice:
    @given(
        cores=st.integers(1, 64),
        peak=st.floats(0.02, 1.5),
        loss=st.floats(0.0, 0.9),
        pillow=st.floats(0.3, 1.5),
        ahead=st.floats(1.0, 1.3),
        consumer_ms=st.sampled_from([0.0, 5.0, 30.0, 200.0]),
        noise=st.floats(0.0, 0.03),
        seed=st.integers(0, 1000),
    )
    def test_what_is_chosen_is_nearly_the_best_of_all(
        self,
        cores: int,
        peak: float,
        loss: float,
        pillow: float,
        ahead: float,
        consumer_ms: float,
        noise: float,
        seed: int,
    ) -> None:
        """On any host where more workers help up to some number and harm beyond it."""
        top = max(1.0, peak * cores)

        def rate(setting: Setting) -> float:
            gain = 1.0 if setting.prefetch == 2 or not setting.workers else ahead
            workers = max(0.9, setting.workers)
            curve = min(workers, top) * (1 - loss * max(0.0, workers - top) / cores) if workers < top + cores else 0.05
            return 500 * (pillow if setting.decoder == "pillow" else 1.0) * gain * max(curve, 0.05)

        target = replace(TARGET, cores=cores, default_workers=cores)
        options = TuneOptions(consumer_ms=consumer_ms, seconds=60)
        host = Host(rate, noise, seed)
        try:
            result = host.tuned(options, target)
        except UsageError:
            # With 200 ms per batch on a slow host, the time may be too short; other tests cover this error.
            assume(False)
        everything = [
            Setting(decoder, workers, prefetch)
            for decoder in target.decoders
            for workers in range(cores + 2)
            for prefetch in PREFETCHES
        ]
        best = max(delivered(rate, setting, options) for setting in everything)
        assert delivered(rate, result.best.setting, options) >= (0.96 if consumer_ms > 30 else 0.88) * best

    @given(
        seconds=st.floats(1, 600),
        speed=st.floats(5, 5000),
        cores=st.integers(1, 64),
        start=st.floats(0, 2),
        consumer_ms=st.sampled_from([0.0, 10.0, 400.0]),
        batch=st.sampled_from([8, 64, 512]),
    )
    def test_the_time_is_kept(
        self, seconds: float, speed: float, cores: int, start: float, consumer_ms: float, batch: int
    ) -> None:
        target = replace(TARGET, cores=cores, default_workers=cores)
        host = Host(by_cores(cores, speed), noise=0.03, start=start, batch=batch)
        options = TuneOptions(seconds=seconds, batch_size=batch, consumer_ms=consumer_ms)
        trials: list[Trial] = []
        try:
            search(target, options, host.run_trial, host.clock, lambda trial, passed: trials.append(trial))
        except UsageError:
            assert len(host.measured) == 1
        assert host.now <= 1.001 * seconds
        # A trial is never started with less time than the others get, as it would be less accurate.
        assert all(wanted <= limit for wanted, limit in host.allowed)

    def test_the_time_that_it_asks_for_suffices(self) -> None:
        host = Host(by_cores(4, 100), start=1.0)
        with pytest.raises(UsageError, match=r"too little.*Give at least (\d+)") as caught:
            host.tuned(TuneOptions(seconds=12))
        needed = int(str(caught.value).split("Give at least ")[1].split(",")[0])
        assert len(host.measured) == 1
        assert Host(by_cores(4, 100), start=1.0).tuned(TuneOptions(seconds=needed)).default is not None

    def test_not_even_the_first_trial_is_possible(self) -> None:
        with pytest.raises(UsageError, match="smaller `batch_size`"):
            Host(by_cores(1, 1)).tuned(TuneOptions(seconds=60))

    @pytest.mark.parametrize("enough", [1, 2, 3, 4])
    def test_ties_go_to_fewer_workers_and_less_memory(self, enough: int) -> None:
        result = Host(lambda setting: 500.0 * min(max(0.5, setting.workers), enough)).tuned(TuneOptions())
        assert result.best.setting == ("extension", enough, 2)

    def test_ties_between_decoders_go_to_the_one_that_auto_takes(self) -> None:
        for decoders in (("extension", "pillow"), ("pillow", "extension")):
            target = replace(TARGET, decoders=decoders)
            host = Host(lambda setting: 500.0 * max(0.9, setting.workers), noise=0.01)
            assert host.tuned(TuneOptions(), target).best.setting.decoder == decoders[0]

    @pytest.mark.parametrize(("consumer_ms", "workers"), [(300, 1), (130, 1), (120, 2), (44, 3), (33, 4), (1, 4)])
    def test_a_consumer_gets_the_fewest_workers_that_it_does_not_wait_for(
        self, consumer_ms: float, workers: int
    ) -> None:
        """A worker makes 500 images/s, so it takes 128 ms for 64 images."""
        result = Host(by_cores(4)).tuned(TuneOptions(consumer_ms=consumer_ms))
        assert result.best.setting == ("extension", workers, 2)
        assert (result.best.wait_share <= 0.02) == (consumer_ms >= 33)
        assert ("no setting keeps up" in result.findings[0]) == (consumer_ms == 1)

    def test_with_a_consumer_the_fastest_decoder_is_still_chosen(self) -> None:
        """Even though the consumer would not notice the difference at the default number of workers."""
        host = Host(lambda setting: 500.0 * max(0.9, setting.workers) * (1 + (setting.decoder == "pillow")))
        result = host.tuned(TuneOptions(consumer_ms=70))
        assert result.best.setting == ("pillow", 1, 2)
        assert {each.setting.decoder for each in result.results_without_step} == {"extension", "pillow"}

    def test_a_larger_prefetch_factor_is_chosen_where_it_helps(self) -> None:
        host = Host(lambda setting: by_cores(4)(setting) * (1 if setting.prefetch < 4 else 1.3))
        result = host.tuned(TuneOptions())
        assert result.best.setting == ("extension", 4, 4)
        assert "30.0% more images/s than with the defaults" in result.findings[-1]

    def test_a_setting_that_is_far_behind_is_not_measured_again(self) -> None:
        host = Host(by_cores(4))
        host.tuned(TuneOptions())
        measured = [setting for setting, _ in host.measured]
        assert measured.count(Setting("pillow", 4, 2)) == 1
        assert measured.count(Setting("extension", 4, 2)) > 5

    @pytest.mark.parametrize("consumer_ms", [0.0, 64 / (500 * 11 / 1000) * 1.01])
    def test_between_powers_of_two_it_looks_for_fewer(self, consumer_ms: float) -> None:
        """Eleven workers are enough on 64 cores; the next number on the ladder is 16."""
        target = replace(TARGET, cores=64, default_workers=64)
        host = Host(lambda setting: 500.0 * min(max(0.9, setting.workers), 64 if consumer_ms else 11))
        assert 11 <= host.tuned(TuneOptions(consumer_ms=consumer_ms), target).best.setting.workers <= 12

    def test_between_powers_of_two_it_looks_for_more(self) -> None:
        """Eleven workers are best on 16 cores; of the 8 and 16 on the ladder, 8 is better."""
        target = replace(TARGET, cores=16, default_workers=16)
        host = Host(lambda setting: 500.0 * max(0.9, setting.workers - 2.2 * max(0, setting.workers - 11)))
        assert 10 <= host.tuned(TuneOptions(), target).best.setting.workers <= 12

    def test_contestants_take_turns_there_and_back(self) -> None:
        """A host that keeps slowing down must not favour the setting that is measured first."""
        host = Host(lambda setting: 500.0 * max(0.9, setting.workers))
        host.tuned(TuneOptions())
        assert [setting.decoder for setting, _ in host.measured[1:5]] == ["extension", "pillow", "pillow", "extension"]

    def test_a_pause_of_the_host_changes_nothing(self) -> None:
        """Once in a while a measurement gives a tenth of the true rate."""
        for seed in range(20):
            hiccups = random.Random(seed)
            host = Host(lambda setting: by_cores(4)(setting) * (0.1 if hiccups.random() < 0.05 else 1.0), noise=0.01)  # noqa: B023
            assert delivered(by_cores(4), host.tuned(TuneOptions()).best.setting, TuneOptions()) >= 0.7 * 2000

    def test_no_more_workers_than_allowed(self) -> None:
        host = Host(by_cores(64))
        result = host.tuned(TuneOptions(max_workers=5), replace(TARGET, cores=64, default_workers=64))
        assert result.best.setting.workers == 5
        assert max(setting.workers for setting, _ in host.measured) == 5
        assert result.default is not None and result.default.setting.workers == 5

    def test_none_at_all_if_none_are_allowed(self) -> None:
        host = Host(by_cores(4))
        assert host.tuned(TuneOptions(max_workers=0)).best.setting.workers == 0

    @given(most=st.integers(0, 300), usual=st.integers(1, 300))
    def test_the_ladder_doubles_at_most(self, most: int, usual: int) -> None:
        numbers = ladder(most, usual)
        assert numbers == sorted(set(numbers)) and {0, most, min(usual, most)} <= set(numbers)
        assert all(0 <= number <= most for number in numbers)
        assert all(high <= max(2 * low, 1) for low, high in pairwise(numbers))


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"seconds": 0}, {"seconds": float("nan")}, {"consumer_ms": -1}, {"max_workers": -1}],
)
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TuneOptions(**wrong)
