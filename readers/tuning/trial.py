"""What a run of tuning measures and how it compares: settings, trials, and the rule by which one is chosen."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from packtrain._core.errors import UsageError

FEWEST: Final = 4
"""Batches that a trial counts at least."""
PREFETCH: Final = 2
"""The loader's own `prefetch_factor`."""
ENOUGH: Final = 0.02
"""Of the time, what a consumer may wait and still not be said to wait; and rates that differ by less are equal."""
_BLUR: Final = 0.1
"""Rates that differ by more are not called equal, however much measurements spread."""
_HELD: Final = 2


@dataclass(frozen=True)
class TuneOptions:
    """What `tune` is to find.

    Attributes:
        transform: A name that `packtrain._readers.tuning.presets.preset` knows.
        batch_size: Samples in a batch.
        consumer_ms: Milliseconds that a training step takes besides loading, without a core of this host; 0 asks for
            the highest rate.
        seconds: To be spent.
        max_workers: To be tried; None: one more than there are cores.

    Raises:
        UsageError: A number is out of its range.
    """

    transform: str = "rrc224"
    batch_size: int = 64
    consumer_ms: float = 0.0
    seconds: float = 60.0
    max_workers: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("batch_size", self.batch_size, 1),
            ("consumer_ms", self.consumer_ms, 0),
            ("seconds", self.seconds, 1),
            ("max_workers", self.max_workers or 0, 0),
        ):
            if not least <= value < 1e6:
                raise UsageError(f"{name}={value!r}: expected {least} at least, and less than a million")


class Setting(NamedTuple):
    """What is varied: arguments of `open_dataset` and `Loader`."""

    decoder: str
    workers: int
    prefetch: int

    @property
    def slots(self) -> int:
        """Batches for which there is memory."""
        return self.workers * self.prefetch + _HELD if self.workers else 1


@dataclass(frozen=True)
class Subject:
    """A dataset and the host on which it is read.

    Attributes:
        path: Of the dataset, as it was given.
        store: How it stores pixels.
        records: In it.
        record_bytes: Of a record, the mean.
        decoders: Those to choose from, what `"auto"` takes first; `"auto"` alone where there is nothing to decode.
        left_out: Why not others, by name.
        cores: That this process may use.
        workers: That the loader takes by itself.
    """

    path: str
    store: str
    records: int
    record_bytes: float
    decoders: tuple[str, ...]
    left_out: dict[str, str]
    cores: int
    workers: int


@dataclass(frozen=True)
class Trial:
    """One measurement of a setting.

    Attributes:
        setting: What was measured.
        consumer_ms: The consumer's pause after every batch.
        batches: That were counted: none of those with which workers get under way.
        images: In them.
        seconds: In which they came.
        waited: Of these, for a batch.
        took: Seconds, with the start and the end of workers.
        batch_bytes: Of the arrays of a batch.
        read_images: Images that were made, counted or not, as far as they were handed out.
        disk_bytes: That had to be read from a disk for it, as far as the file system says so.
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
        """Images per second, the consumer's pauses included."""
        return self.images / self.seconds

    @property
    def wait_share(self) -> float:
        """Of the time, what the consumer waited: in [0, 1]."""
        return self.waited / self.seconds


@dataclass(frozen=True)
class Row:
    """A setting and what its trials give.

    Attributes:
        setting: What was measured.
        rates: Images per second, in the order of the trials.
        rate: Their median.
        wait_share: Likewise, of the time that the consumer waited.
        memory: Bytes of the batches that the loader keeps.
    """

    setting: Setting
    rates: tuple[float, ...]
    rate: float
    wait_share: float
    memory: int

    @property
    def cost(self) -> tuple[int, int]:
        """Workers, then memory."""
        return self.setting.workers, self.memory


def rows_of(trials: Iterable[Trial], consumer_ms: float) -> list[Row]:
    """The settings that were measured with this consumer, in the order in which they first were."""
    found: dict[Setting, list[Trial]] = {}
    for trial in trials:
        if trial.consumer_ms == consumer_ms:
            found.setdefault(trial.setting, []).append(trial)
    return [
        Row(
            setting,
            rates=tuple(trial.rate for trial in group),
            rate=statistics.median(trial.rate for trial in group),
            wait_share=statistics.median(trial.wait_share for trial in group),
            memory=setting.slots * max(trial.batch_bytes for trial in group),
        )
        for setting, group in found.items()
    ]


def spread_of(rows: Iterable[Row]) -> float | None:
    """By how much two trials of a setting differ, relative to their rate: the median; None if none was repeated.

    The median, because a host that did something else for a second must not make everything look equal.
    """
    steps = [abs(after - before) / row.rate for row in rows for before, after in pairwise(row.rates)]
    return statistics.median(steps) if steps else None


def tolerance_of(rows: Sequence[Row], consumer_ms: float) -> float:
    """Rates count as equal where they differ by less, relative to the higher one.

    With a consumer that is the wait it may be made to suffer, whatever the measurement's spread.
    """
    if consumer_ms:
        return ENOUGH
    return min(_BLUR, noise_of(rows))


def noise_of(rows: Sequence[Row]) -> float:
    """What a difference must exceed, relative to a rate, to be more than chance.

    Unlike the tolerance it has no upper end: a host on which nothing can be told apart must not be said to show a gain.
    """
    spread = spread_of(rows)
    return _BLUR if spread is None else max(ENOUGH, 2 * spread)


def fastest(rows: Iterable[Row]) -> Row:
    """The row with the highest rate."""
    return max(rows, key=lambda row: row.rate)


def choose(rows: Sequence[Row], tolerance: float) -> Row:
    """Of the rows that are as fast as the fastest, the cheapest; of several, the first.

    With a consumer the same rule gives the cheapest setting for which it does not wait: rates end at its own.
    """
    best = fastest(rows).rate
    equal = [row for row in rows if row.rate >= (1 - tolerance) * best]
    return min(equal, key=lambda row: row.cost)
