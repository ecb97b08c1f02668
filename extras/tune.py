"""Search for the best number of workers and prefetch factor, by measuring the loader itself."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from packtrain._core.arguments import checks_names, instance, number, path_of, whole
from packtrain._core.cores import available_cores
from packtrain._core.errors import UsageError
from packtrain._readers.dataset.image_dataset import open_dataset
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._readers.loader import Loader, Weighted
from packtrain._readers.loader.arguments import workers_of

from .named_transforms import named_transform
from .watch import samples_in

_MILLION: Final = 1_000_000
_ENDLESS: Final = 1 << 40
MIN_BATCHES: Final = 4
"""Least number of batches that a trial counts."""
_PREFETCH_FACTORS: Final = (2, 4, 8)
"""The first is the loader's own. Fewer would leave nothing in reserve for a step that takes longer than usual."""
_MAX_TRIAL_SECONDS: Final = 5.0
_TURNS: Final = 3
"""Number of measurements of each setting that the time should allow."""
_HOPELESS: Final = 0.2
"""A setting that is behind the fastest by this share gets no further turn."""
_HELD_BATCHES: Final = 2
"""Batches that the consumer and the loader hold in addition to those prefetched."""
NEGLIGIBLE: Final = 0.02
"""A consumer that waits for a smaller share of the time does not wait, and rates that differ by less are equal."""
_MAX_TOLERANCE: Final = 0.1
"""Rates that differ by more are never equal, however noisy the measurements are."""
_NOISY: Final = 0.05
"""Above this spread, or this share of bytes from a disk, the findings mention it."""


@checks_names()
@dataclass(frozen=True)
class TuneOptions:
    """Conditions under which `tune` looks for a setting.

    Attributes:
        transform: Name of the transform: ``"rrc224"``, ``"center224"`` or ``"crop224"`` (with any size), ``"none"``, or
            ``"module:attribute"``.
        batch_size: Samples in a batch.
        consumer_ms: Duration of a training step in milliseconds, without loading and without using a core of this host;
            0 looks for the highest rate.
        seconds: Time to spend, in seconds.
        max_workers: Largest number of workers to try; None tries up to one more than there are cores.

    Raises:
        UsageError: A value is of the wrong type, or out of range.
    """

    transform: str = "rrc224"
    batch_size: int = 64
    consumer_ms: float = 0.0
    seconds: float = 60.0
    max_workers: int | None = None

    def __post_init__(self) -> None:
        instance("transform", self.transform, str)
        whole("batch_size", self.batch_size, 1, _MILLION)
        number("consumer_ms", self.consumer_ms, 0, _MILLION, "milliseconds, from 0 to a million")
        number("seconds", self.seconds, 1, _MILLION, "seconds, from 1 to a million")
        if self.max_workers is not None:
            whole("max_workers", self.max_workers, 0, _MILLION)


class Setting(NamedTuple):
    """Arguments of `Loader`."""

    num_workers: int
    prefetch_factor: int


@dataclass(frozen=True)
class Trial:
    """One measurement of a setting.

    Attributes:
        setting: The setting that was measured.
        rate: Images per second, with the pauses of the consumer.
        wait_share: Share of the time in which the consumer waited, in [0, 1].
        batch_bytes: Size of the arrays of one batch.
        disk_share: Share of the bytes that had to be read from a disk, in [0, 1].
        took: Duration in seconds, with starting and stopping the workers.
    """

    setting: Setting
    rate: float
    wait_share: float
    batch_bytes: int
    disk_share: float
    took: float


@dataclass(frozen=True)
class SettingResult:
    """The trials of a setting, summed up.

    Attributes:
        setting: The setting that was measured.
        rates: Images per second of each trial, in the order of the trials.
        rate: Median of `rates`.
        wait_share: Median share of the time in which the consumer waited, in [0, 1].
        memory: Bytes of all batches that the loader keeps in memory.
    """

    setting: Setting
    rates: tuple[float, ...]
    rate: float
    wait_share: float
    memory: int

    @property
    def cost(self) -> tuple[int, int]:
        """Number of workers, then bytes of memory: a setting with fewer of them is cheaper."""
        return self.setting.num_workers, self.memory


@dataclass(frozen=True)
class TuneResult:
    """The result of `tune`.

    Attributes:
        path: Path of the dataset.
        options: The conditions of the search.
        trials: All measurements, in order.
        results: The settings, the fastest first.
        best: The cheapest of the settings that are as fast as the fastest; the default if none is cheaper than it, or
            faster by more than twice the spread.
        default: The loader's default setting; None if there was no time to measure it.
        spread: Median relative difference between two measurements of the same setting; None if none was repeated.
        imports: Python imports that `line` needs.
        line: Python expression that makes the loader.
        findings: Advice, in a few sentences.
    """

    path: str
    options: TuneOptions
    trials: tuple[Trial, ...]
    results: tuple[SettingResult, ...]
    best: SettingResult
    default: SettingResult | None
    spread: float | None
    imports: str
    line: str
    findings: tuple[str, ...]


@checks_names(options=TuneOptions)
def tune(
    path: str | os.PathLike[str],
    options: TuneOptions | None = None,
    *,
    on_trial: Callable[[Trial, float], None] | None = None,
) -> TuneResult:
    """Find the best loader setting for a dataset on this host, in about ``options.seconds`` seconds.

    Without ``options.consumer_ms`` the best setting is the fastest one, with it the cheapest one that a training step
    of this length does not wait for. Other work on the host distorts the measurements. Workers are forked, so call this
    before the program starts threads.

    Args:
        path: Path of the dataset.
        options: Conditions of the search; None: the defaults.
        on_trial: Called after each measurement with the trial and the seconds since the start.

    Raises:
        DatasetError: The dataset is missing or damaged.
        LoaderError: The transform fails, or returns images of different sizes.
        UsageError: The transform is unknown, the dataset has nothing to measure, or there is too little time to measure
            everything once.
    """
    start = time.monotonic()
    options = TuneOptions() if options is None else options

    def tell(trial: Trial) -> None:
        if on_trial is not None:
            on_trial(trial, time.monotonic() - start)

    trials = search(options, Bench(path, options).trial, tell, time.monotonic, start + options.seconds)
    return conclude(os.fspath(path), options, trials)


def default_setting(options: TuneOptions) -> Setting:
    """Return the loader's default setting, with no more workers than may be tried."""
    return Setting(min(workers_of("auto"), most_workers(options)), _PREFETCH_FACTORS[0])


def most_workers(options: TuneOptions) -> int:
    """Return the largest number of workers to try."""
    return available_cores() + 1 if options.max_workers is None else options.max_workers


def ladder(most: int, usual: int) -> list[int]:
    """Return the numbers of workers to try: 0, the powers of 2, `usual` and `most`; none above `most`.

    >>> ladder(3, 2), ladder(17, 16), ladder(6, 64)
    ([0, 1, 2, 3], [0, 1, 2, 4, 8, 16, 17], [0, 1, 2, 4, 6])
    """
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return sorted({0, *powers, min(usual, most), most})


def search(
    options: TuneOptions,
    run_trial: Callable[[Setting, float], Trial],
    on_trial: Callable[[Trial], None],
    clock: Callable[[], float],
    end: float,
) -> list[Trial]:
    """Measure each number of workers, then prefetch factors with the best one, and all again until the time is up.

    Args:
        options: Conditions of the search.
        run_trial: Measures a setting for a number of seconds, or a little longer.
        on_trial: Called after each trial that counts.
        clock: Returns the time in seconds.
        end: End of the search, by `clock`.

    Raises:
        UsageError: There is too little time to measure each setting once.
    """
    trials: list[Trial] = []

    def measure(setting: Setting) -> None:
        trials.append(run_trial(setting, seconds))
        on_trial(trials[-1])

    default = default_setting(options)
    settings = [
        Setting(workers, default.prefetch_factor) for workers in ladder(most_workers(options), default.num_workers)
    ]
    # It brings into memory what all other trials then find there.
    shortest = run_trial(default, 0.0).took
    # One worker takes as long for a batch as all do for one each.
    needed = sum(max(1.0, default.num_workers / max(1, setting.num_workers)) * shortest for setting in settings)
    needed += (len(_PREFETCH_FACTORS) - 1) * shortest
    left = end - clock()
    if needed > left:
        enough = math.ceil(1.3 * (needed + options.seconds - left))
        raise UsageError(
            f"seconds={options.seconds:g} is too little: a measurement of {MIN_BATCHES} batches of "
            f"{options.batch_size} takes {shortest:.1f} s here. Give at least {enough}, or a smaller `batch_size`"
        )
    planned = _TURNS * (len(settings) + len(_PREFETCH_FACTORS) - 1)
    seconds = min(_MAX_TRIAL_SECONDS, left / planned)
    for setting in settings:
        measure(setting)
    # The fastest, not the cheapest of those that are as fast: how much rates differ by chance is not known yet.
    fastest = max(results_of(trials), key=lambda result: result.rate).setting
    if fastest.num_workers:
        more = [Setting(fastest.num_workers, prefetch) for prefetch in _PREFETCH_FACTORS[1:]]
        for setting in more:
            measure(setting)
        settings += more
    while True:
        rates = {result.setting: result.rate for result in results_of(trials)}
        # Back and forth, so that whatever changes on the host in the meantime favours nobody. The default is measured
        # again in any case: it is what the best has to beat.
        settings = [s for s in settings[::-1] if s == default or rates[s] >= (1 - _HOPELESS) * max(rates.values())]
        for setting in settings:
            if clock() + max(seconds, shortest) > end:
                return trials
            measure(setting)


class Bench:
    """Measures loader settings for a dataset on this host.

    Raises:
        DatasetError: There is no dataset at `path`.
        UsageError: The transform is unknown, or the dataset has no images or no records.
    """

    def __init__(self, path: str | os.PathLike[str], options: TuneOptions) -> None:
        self._options: Final = options
        transform = named_transform(options.transform).transform
        if StoredRows.open(path_of("path", path)).schema.image is None:
            raise UsageError(f"{os.fspath(path)} has no images, and tune measures nothing else")
        self._dataset: Final = open_dataset(path, transform)
        if not len(self._dataset):
            raise UsageError(f"{os.fspath(path)} has no records: there is nothing to measure")
        # Rows at random, with replacement: without the pause that ends an epoch.
        self._order: Final = Weighted(np.ones(len(self._dataset)), _ENDLESS)
        self._trials = 0

    def trial(self, setting: Setting, seconds: float) -> Trial:
        """Measure a setting for about `seconds`, with starting and stopping the workers; longer for few batches."""
        start = time.monotonic()
        # Each trial reads other images: what an earlier trial brought into memory must not help a later one.
        self._trials += 1
        with Loader(
            self._dataset,
            self._options.batch_size,
            sampler=self._order,
            seed=self._trials,
            multiprocessing_context="fork",
            rank=0,
            world_size=1,
            **setting._asdict(),
        ) as loader:
            pace = paced(iter(loader), setting.num_workers, self._options.consumer_ms / 1000, start + seconds)
            figures = loader.stats.present
        by_bytes = figures.disk_bytes / max(1, figures.read_bytes)
        disk_share = min(1.0, max(by_bytes, figures.disk_faults / max(1, figures.samples)))
        return Trial(setting, pace.rate, pace.wait_share, pace.batch_bytes, disk_share, time.monotonic() - start)


class Pace(NamedTuple):
    """`rate`, `wait_share` and `batch_bytes` of a `Trial`."""

    rate: float
    wait_share: float
    batch_bytes: int


def paced(
    batches: Iterator[Any],
    workers: int,
    pause: float,
    until: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Pace:
    """Take batches as a training loop does whose step takes `pause` seconds, and measure the pace."""
    workers = max(1, workers)
    # Workers start at the same time, so their first batches arrive together and are not counted.
    for _ in range(workers):
        # Like the variable of a `for` loop, this holds a batch until the next one has come.
        batch = next(batches)
    begun, images, count, waited = clock(), 0, 0, 0.0
    while True:
        sleep(pause)
        asked = clock()
        batch = next(batches)
        arrived = clock()
        count, images, waited = count + 1, images + samples_in(batch), waited + arrived - asked
        # Batches may come in bursts, one from each worker. Stopping within a burst would overstate the rate.
        if arrived >= until and count >= MIN_BATCHES and count % workers == 0:
            return Pace(images / (arrived - begun), waited / (arrived - begun), _nbytes(batch))


def _nbytes(batch: Any) -> int:
    """Return the size of all arrays in a batch, also of those in tuples: the views of the images."""
    return sum(map(_nbytes, batch)) if isinstance(batch, (tuple, list)) else getattr(batch, "nbytes", 0)


def results_of(trials: Sequence[Trial]) -> list[SettingResult]:
    """Return one result for each setting, in the order of their first trials."""
    groups = {trial.setting: [each for each in trials if each.setting == trial.setting] for trial in trials}
    return [
        SettingResult(
            setting,
            rates=tuple(trial.rate for trial in group),
            rate=statistics.median(trial.rate for trial in group),
            wait_share=statistics.median(trial.wait_share for trial in group),
            memory=(setting.num_workers * setting.prefetch_factor + _HELD_BATCHES if setting.num_workers else 1)
            * max(trial.batch_bytes for trial in group),
        )
        for setting, group in groups.items()
    ]


def spread_of(results: Sequence[SettingResult]) -> float | None:
    """Return the median relative difference between two consecutive trials of a setting; None without repetition.

    With the median, a host that is busy for one second does not make all settings look equal.
    """
    differences = [abs(after - before) / result.rate for result in results for before, after in pairwise(result.rates)]
    return statistics.median(differences) if differences else None


def noise_of(results: Sequence[SettingResult]) -> float:
    """Return the relative difference between two rates that chance may cause.

    Unlike the tolerance of `choose`, the noise has no upper limit: on a host where nothing can be told apart, no gain
    must be claimed.
    """
    spread = spread_of(results)
    return _MAX_TOLERANCE if spread is None else max(NEGLIGIBLE, 2 * spread)


def choose(results: Sequence[SettingResult], options: TuneOptions) -> SettingResult:
    """Return the cheapest of the results that are as fast as the fastest; the first of several that cost the same.

    With a consumer, the same rule finds the cheapest setting that the consumer does not wait for, as no rate exceeds
    its own.
    """
    tolerance = NEGLIGIBLE if options.consumer_ms else min(_MAX_TOLERANCE, noise_of(results))
    fastest = max(result.rate for result in results)
    return min((each for each in results if each.rate >= (1 - tolerance) * fastest), key=lambda each: each.cost)


def conclude(path: str, options: TuneOptions, trials: Sequence[Trial]) -> TuneResult:
    """Return the best setting after at least one trial, the Python that makes its loader, and the gain."""
    results = results_of(trials)
    best, spread, noise = choose(results, options), spread_of(results), noise_of(results)
    default = next((result for result in results if result.setting == default_setting(options)), None)
    if default is not None and best.cost >= default.cost and best.rate <= (1 + noise) * default.rate:
        best = default
    transform = named_transform(options.transform)
    opened = repr(path) + (f", transform={transform.expression}" if transform.expression else "")
    arguments = f"batch_size={options.batch_size}, shuffle=True, num_workers={best.setting.num_workers}"
    if best.setting.num_workers:
        arguments += f", prefetch_factor={best.setting.prefetch_factor}"
    return TuneResult(
        path=path,
        options=options,
        trials=tuple(trials),
        results=tuple(sorted(results, key=lambda result: -result.rate)),
        best=best,
        default=default,
        spread=spread,
        imports="\n".join(["from packtrain import Loader, open_dataset", *filter(None, [transform.imports])]),
        line=f"Loader(open_dataset({opened}), {arguments})",
        findings=tuple(_findings(best, default, options, trials, noise, spread)),
    )


def _findings(
    best: SettingResult,
    default: SettingResult | None,
    options: TuneOptions,
    trials: Sequence[Trial],
    noise: float,
    spread: float | None,
) -> Iterator[str]:
    """Yield sentences: on waiting of the training step, on the gain over the defaults, and on doubts about both."""
    if options.consumer_ms:
        yield _waiting(best, options)
    yield _comparison(best, default, noise, spread)
    if spread is not None and spread > _NOISY:
        yield (
            f"this host is noisy, probably busy with other work: two measurements of a setting differ by {spread:.1%}, "
            f"so ignore differences below {2 * spread:.0%}"
        )
    disk_share = statistics.mean(trial.disk_share for trial in trials)
    if disk_share >= _NOISY:
        yield (
            f"{disk_share:.0%} of the data came from the disk and not from memory, so these figures also measure the "
            "disk. Run this again once the data is in memory (after one epoch, if it fits)"
        )


def _waiting(best: SettingResult, options: TuneOptions) -> str:
    step = f"a step of {options.consumer_ms:g} ms for {options.batch_size} images"
    if best.wait_share <= NEGLIGIBLE:
        workers = best.setting.num_workers
        return f"{step} waits {best.wait_share:.1%} of the time: {workers} worker{'s' * (workers != 1)} will do"
    return (
        f"no setting keeps up: {step} takes {options.batch_size / options.consumer_ms * 1000:,.0f} images/s, and the "
        f"best setting delivers {best.rate:,.0f}, so the step waits {best.wait_share:.0%} of the time; more cores or a "
        "smaller crop would help, and so would packing smaller (--store jpeg --resize short=256) or decoded "
        "(--store raw) images. `packtrain doctor` says whether anything is missing here"
    )


def _comparison(best: SettingResult, default: SettingResult | None, noise: float, spread: float | None) -> str:
    if default is None:
        return "the defaults were not measured"
    basis = "each measured once" if spread is None else f"two measurements of a setting differ by {spread:.1%}"
    if best.setting == default.setting:
        return f"nothing measured beats the defaults: leave them ({basis})"
    gain = best.rate / default.rate - 1
    if gain > noise:
        return f"{gain:.1%} more images/s than with the defaults ({basis}): worth setting"
    fewer = f"{best.setting.num_workers} workers instead of {default.setting.num_workers}"
    return f"the defaults are as good ({gain:+.1%}; {basis}): leave them unless cores are scarce: {fewer}"
