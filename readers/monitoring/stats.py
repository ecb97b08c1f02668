"""What a loader measures while it runs, for who wonders whether the data is what training waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from packtrain._codec.stages import Stage

from ..dataset.store import RecordStore
from ..loader.arguments import workers_of
from . import bottleneck
from .counters import (
    BATCHES,
    COLLECTING,
    CONSUMING,
    PAUSE,
    PHASE,
    SAMPLES,
    SKIPPED,
    STARTUP,
    WAITING,
    WORDS,
    Clock,
    Count,
    Gauges,
    Words,
    blank,
    totals,
)

T = TypeVar("T")
_NANO: Final = 1e-9
_EXACT: Final = (Stage.COPY, Stage.COLLATE, Stage.HANDOFF)
"""Stages of a batch; the others are those of a sample, of which only some are timed."""


@dataclass(frozen=True)
class Setting:
    """What the figures were measured on.

    Attributes:
        workers: Processes that make batches; 0: this one does. None: that is not known.
        cores: That these may use.
        store: How the dataset stores pixels; None: it is not packtrain's, or several ways.
        io: How it is read, likewise.
        headspace: The same batches were handed out again and again.
        foreign: It is a loader of another make: what its workers do is not known.
    """

    workers: int | None
    cores: int
    store: str | None = None
    io: str | None = None
    headspace: bool = False
    foreign: bool = False


def setting_of(workers: int, stores: Iterable[RecordStore] = (), *, headspace: bool = False) -> Setting:
    """The setting of a loader.

    Args:
        workers: How many processes.
        stores: What they read records from.
        headspace: See `Setting`.
    """
    kinds = {(store.manifest.store.store, store.io) for store in stores}
    store, io = kinds.pop() if len(kinds) == 1 else (None, None)
    return Setting(workers, max(1, workers_of("auto")), store, io, headspace)


class Writer(Protocol):
    """What `torch.utils.tensorboard.SummaryWriter` does."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Adds a point to a curve."""


@dataclass(frozen=True)
class Stats:
    """Figures of some stretch of time: of a pass, or of several. `report` makes sense of them, and so does `str`.

    Those of workers go on to the present; they include batches that were made ahead.

    Attributes:
        setting: What they were measured on.
        batches: Handed out.
        samples: In them.
        skipped: Damaged records that were left out of them.
        starved: Batches that were not ready when the consumer asked for them; each pass's first one does not count.
        copied: Batches that were handed out as copies, because the consumer keeps so many.
        startup_seconds: Waiting for the first batch of a pass, while workers start. No part of the following.
        waiting_seconds: The consumer waited.
        consuming_seconds: It was at work.
        collecting_seconds: Of `waiting_seconds`: for batches to be made. In the rest this process finished them:
            copies, normalisation, batch transform.
        busy_seconds: Workers made batches; the sum over all of them.
        idle_seconds: They had nothing to do, likewise.
        processor_seconds: Of `busy_seconds`, those on a core: not waiting for a disk, nor for other processes.
        stage_seconds: `busy_seconds` by stage, see `packtrain._codec.stages.Stage`. Those of
            samples rest on one in 32 of them, chosen by chance, and are stretched to what is left of `busy_seconds`,
            which is exact; nothing, as long as none was timed.
        read_bytes: Of the records, as they are stored.
        disk_bytes: That had to be read from a disk for it, as far as the file system says so.
        disk_faults: Page faults that had to wait for a disk.
    """

    setting: Setting
    batches: int
    samples: int
    skipped: int
    starved: int
    copied: int
    startup_seconds: float
    waiting_seconds: float
    consuming_seconds: float
    collecting_seconds: float
    busy_seconds: float
    idle_seconds: float
    processor_seconds: float
    stage_seconds: Mapping[str, float]
    read_bytes: int
    disk_bytes: int
    disk_faults: int

    @property
    def wall_seconds(self) -> float:
        """From the first batch of a pass to its end, or the present."""
        return self.waiting_seconds + self.consuming_seconds

    @property
    def wait_share(self) -> float:
        """Of wall time, what the consumer waited: in [0, 1], 0 if there was no time."""
        return _ratio(self.waiting_seconds, self.wall_seconds)

    @property
    def samples_per_second(self) -> float:
        """Handed out, start-up apart; 0 before there are two batches."""
        return _ratio(self.samples, self.wall_seconds) if self.batches > 1 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Stored bytes that workers read, start-up included."""
        return _ratio(self.read_bytes, self.wall_seconds + self.startup_seconds)

    @property
    def busy_share(self) -> float:
        """Of the workers' time, what they made batches in: in [0, 1]."""
        return _ratio(self.busy_seconds, self.busy_seconds + self.idle_seconds)

    @property
    def stage_shares(self) -> dict[str, float]:
        """`stage_seconds` over `busy_seconds`, the longest first."""
        shares = {name: _ratio(seconds, self.busy_seconds) for name, seconds in self.stage_seconds.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """All of this for JSON."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found |= {"setting": vars(self.setting).copy(), "stage_seconds": dict(self.stage_seconds)}
        return found | {
            name: getattr(self, name)
            for name in ("wall_seconds", "wait_share", "samples_per_second", "bytes_per_second", "busy_share")
        }

    def report(self) -> str:
        """A table of what was measured, and what it means."""
        return bottleneck.report(self)

    def __str__(self) -> str:
        return bottleneck.verdict(self)

    def write(self, writer: Writer, step: int) -> None:
        """Adds a point to each of the curves ``packtrain/...``.

        Args:
            writer: A `torch.utils.tensorboard.SummaryWriter`, or anything with its `add_scalar`.
            step: Of training.
        """
        curves = {"wait_share": self.wait_share, "samples_per_second": self.samples_per_second, "skipped": self.skipped}
        if not self.setting.foreign:
            curves |= {"bytes_per_second": self.bytes_per_second, "worker_busy_share": self.busy_share}
            curves |= {f"stage/{name}": share for name, share in self.stage_shares.items()}
        for name, value in curves.items():
            writer.add_scalar(f"packtrain/{name}", value, step)


class Meter:
    """Figures of a loader, as they are now: those of the present pass, or of the last one.

    ``print(loader.stats)`` gives one line that says whether training waits for data and what would help,
    ``loader.stats.report()`` the figures behind it.

    Args:
        setting: What is measured.
        clock: Nanoseconds.
    """

    def __init__(self, setting: Setting, clock: Clock = time.monotonic_ns) -> None:
        self._setting = setting
        self._clock = clock
        words = blank()
        self._own: Words = np.frombuffer(words, np.int64)
        self._gauges: Final = Gauges(words, clock)
        self._rows: Words = np.empty((0, WORDS), np.int64)
        """Of the processes at work."""
        self._before = np.zeros(WORDS, np.int64)
        """What those did that have ended."""
        self._start = self._begun = self._before
        """What had been done at the last `reset`, and when the pass began."""
        self._this: object | None = None

    @property
    def present(self) -> Stats:
        """Of the present pass; between two, of the last one."""
        return _stats(self._setting, self._total() - self._begun)

    @property
    def total(self) -> Stats:
        """Of all passes since the loader was made, or since `reset`."""
        return _stats(self._setting, self._total() - self._start)

    def reset(self) -> None:
        """Begins anew; `present`, too."""
        self._start = self._begun = self._total()

    def report(self) -> str:
        """See `Stats.report`; of `present`."""
        return self.present.report()

    def write(self, writer: Writer, step: int) -> None:
        """See `Stats.write`; of `present`."""
        self.present.write(writer, step)

    def __str__(self) -> str:
        return str(self.present)

    def attach(self, rows: Words) -> None:
        """Other processes begin their work.

        Args:
            rows: Their figures, int64 [processes, WORDS], zeros as yet.
        """
        self.detach()
        self._rows = rows

    def detach(self) -> None:
        """They end."""
        self._before = self._before + totals(self._rows, self._clock())
        self._rows = self._rows[:0].copy()

    def count(self, samples: int, skipped: int = 0) -> None:
        """A batch is handed out.

        Args:
            samples: In it.
            skipped: Left out of it.
        """
        self._gauges.add(SAMPLES, samples)
        if skipped:
            self._gauges.add(SKIPPED, skipped)

    def starve(self) -> None:
        """The consumer asks for a batch that is not ready."""
        self._gauges.add(Count.STARVED)

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        """A pass: the given batches, while time is kept. One that begins ends the pass before it.

        Args:
            batches: What the consumer is to get.
        """
        gauges, this = self._gauges, object()
        self._begun, self._this = self._total(), this
        gauges.enter(STARTUP)
        try:
            while True:
                # In a list, because a variable would keep the batch alive after the consumer has dropped it.
                found = [next(batches)]
                if self._this is this:
                    gauges.enter(CONSUMING)
                    gauges.add(BATCHES)
                yield found.pop()
                if self._this is this:
                    gauges.enter(WAITING)
        except StopIteration:
            return
        finally:
            if self._this is this:
                gauges.enter(PAUSE)

    def collected(self, batches: Iterator[T]) -> Iterator[T]:
        """The given batches, as they are made, while it is counted how long that takes."""
        clock, gauges = self._clock, self._gauges
        while True:
            before = clock()
            try:
                found = [next(batches)]
            except StopIteration:
                return
            finally:
                if self._own[PHASE] == WAITING:
                    gauges.add(COLLECTING, clock() - before)
            yield found.pop()

    def _total(self) -> Words:
        now = self._clock()
        return self._before + totals(self._rows, now) + totals(self._own[np.newaxis], now)


def _stats(setting: Setting, counts: Words) -> Stats:
    values = counts.tolist()
    busy = values[Count.BUSY] * _NANO
    return Stats(
        setting=setting,
        batches=values[Count.BATCHES],
        samples=values[Count.SAMPLES],
        skipped=values[Count.SKIPPED],
        starved=values[Count.STARVED],
        copied=values[Count.COPIED],
        startup_seconds=values[Count.STARTUP] * _NANO,
        waiting_seconds=values[Count.WAITING] * _NANO,
        consuming_seconds=values[Count.CONSUMING] * _NANO,
        collecting_seconds=values[Count.COLLECTING] * _NANO,
        busy_seconds=busy,
        idle_seconds=values[Count.IDLE] * _NANO,
        processor_seconds=min(busy, values[Count.PROCESSOR] * _NANO),
        stage_seconds=_stage_seconds(busy, values[len(Count) :]),
        read_bytes=values[Count.BYTES],
        disk_bytes=values[Count.DISK],
        disk_faults=values[Count.FAULTS],
    )


def _stage_seconds(busy: float, stages: list[int]) -> dict[str, float]:
    """What was timed, extrapolated so that all stages together take as long as workers were busy."""
    exact = {stage.name.lower(): stages[stage] * _NANO for stage in _EXACT if stages[stage]}
    timed = {stage: stages[stage] for stage in Stage if stage not in _EXACT and stages[stage]}
    rest, all_timed = max(0.0, busy - sum(exact.values())), sum(timed.values())
    return {stage.name.lower(): rest * time / all_timed for stage, time in timed.items()} | exact


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
