"""Trials, what they say about a setting, and the rule that chooses one setting."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .options import Setting

MIN_BATCHES: Final = 4
"""A trial counts at least this many batches."""
NEGLIGIBLE: Final = 0.02
"""A consumer that waits for a smaller share of the time does not wait, and rates that differ by less are equal."""
_MAX_TOLERANCE: Final = 0.1
"""Rates that differ by more are never equal, however noisy the measurements are."""


@dataclass(frozen=True)
class Trial:
    """One measurement of a setting. Batches that arrive while workers start up are not counted.

    Attributes:
        setting: The setting that was measured.
        consumer_ms: Pause of the consumer after each batch, in milliseconds.
        batches: Number of batches counted.
        images: Number of images in the counted batches.
        seconds: Time in which the counted batches arrived.
        waited: The part of `seconds` in which the consumer waited for a batch.
        took: Duration of the trial in seconds, with starting and stopping the workers.
        batch_bytes: Size of the arrays of one batch.
        read_images: Number of images handed out, counted or not.
        disk_bytes: Bytes that the trial read from a disk, as far as the file system reports them.
        disk_faults: Page faults that had to wait for a disk.
    """

    setting: Setting
    consumer_ms: float
    batches: int
    images: int
    seconds: float
    waited: float
    took: float
    batch_bytes: int
    read_images: int
    disk_bytes: int = 0
    disk_faults: int = 0

    @property
    def rate(self) -> float:
        """Images per second, with the pauses of the consumer."""
        return self.images / self.seconds

    @property
    def wait_share(self) -> float:
        """Share of the time in which the consumer waited, in [0, 1]."""
        return self.waited / self.seconds


@dataclass(frozen=True)
class SettingResult:
    """A setting and what its trials show.

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
        """Number of workers, then memory: settings are compared by the first, and ties are resolved by the second."""
        return self.setting.workers, self.memory


def results_of(trials: Iterable[Trial], consumer_ms: float) -> list[SettingResult]:
    """One result for each setting that was measured with this consumer, in the order of their first trials."""
    by_setting: dict[Setting, list[Trial]] = {}
    for trial in trials:
        if trial.consumer_ms == consumer_ms:
            by_setting.setdefault(trial.setting, []).append(trial)
    return [
        SettingResult(
            setting,
            rates=tuple(trial.rate for trial in group),
            rate=statistics.median(trial.rate for trial in group),
            wait_share=statistics.median(trial.wait_share for trial in group),
            memory=setting.slots * max(trial.batch_bytes for trial in group),
        )
        for setting, group in by_setting.items()
    ]


def spread_of(results: Iterable[SettingResult]) -> float | None:
    """The median relative difference between two consecutive trials of a setting; None if no setting was repeated.

    It is the median so that a host that is busy for one second does not make all settings look equal.
    """
    differences = [abs(after - before) / result.rate for result in results for before, after in pairwise(result.rates)]
    return statistics.median(differences) if differences else None


def noise_of(results: Iterable[SettingResult]) -> float:
    """The relative difference between two rates that chance may cause.

    Unlike the tolerance it has no upper limit: on a host where nothing can be told apart, no gain must be claimed.
    """
    spread = spread_of(results)
    return _MAX_TOLERANCE if spread is None else max(NEGLIGIBLE, 2 * spread)


def tolerance_of(results: Iterable[SettingResult], consumer_ms: float) -> float:
    """Rates count as equal if they differ by less than this share of the higher one.

    With a consumer it is the share of its time that it may wait, however noisy the measurements are.
    """
    return NEGLIGIBLE if consumer_ms else min(_MAX_TOLERANCE, noise_of(results))


def fastest(results: Iterable[SettingResult]) -> SettingResult:
    """The result with the highest rate."""
    return max(results, key=lambda result: result.rate)


def choose(results: Sequence[SettingResult], tolerance: float) -> SettingResult:
    """The cheapest of the results that are as fast as the fastest; the first of them if several cost the same.

    With a consumer the same rule finds the cheapest setting that it does not wait for, as no rate exceeds its own.
    """
    best = fastest(results).rate
    equal = [result for result in results if result.rate >= (1 - tolerance) * best]
    return min(equal, key=lambda result: result.cost)
