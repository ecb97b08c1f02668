"""Measures a loader while it runs: `Meter` measures, and `Stats` are its figures with what they mean."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from packtrain._codec.stages import Stage

from . import bottleneck
from .counters import COUNTS, WORDS, Clock, Count, Counters, Words, blank, totals
from .figures import Figures, Growth, Setup

T = TypeVar("T")
_SECONDS: Final = 1e-9
"""In a nanosecond."""
_EXACT: Final = (Stage.COPY, Stage.COLLATE, Stage.HANDOFF, Stage.FINISH)
"""Stages of a whole batch. The others are stages of a sample, and only some samples are timed."""


_TIMES: Final = {
    name: getattr(Count, name.upper())
    for name in ("startup", "waiting", "consuming", "collecting", "busy", "idle", "processor", "chunk")
}
"""The words that become seconds, by the name of the figure."""
_FIGURES: Final = {
    each.name: getattr(Count, each.name.upper()) for each in fields(Figures) if hasattr(Count, each.name.upper())
}
"""The words that are figures themselves."""


class ScalarWriter(Protocol):
    """The part of `torch.utils.tensorboard.SummaryWriter` that is needed."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Adds a point to a curve."""


class Stats(Figures):
    """Figures with what they mean: ``print(stats)`` names the bottleneck, `report` shows the figures behind it."""

    def report(self) -> str:
        """A table of the figures, and the bottleneck in the last line."""
        return bottleneck.report(self)

    def __str__(self) -> str:
        return "; ".join(filter(None, (bottleneck.bottleneck_of(self), bottleneck.growth_of(self))))

    def write(self, writer: ScalarWriter, step: int) -> None:
        """Adds a point to each of the curves ``packtrain/...``.

        Args:
            writer: A `torch.utils.tensorboard.SummaryWriter`, or any object with its `add_scalar`.
            step: The training step.
        """
        curves = {"wait_share": self.wait_share, "samples_per_second": self.samples_per_second, "skipped": self.skipped}
        if not self.setup.foreign:
            curves |= {"bytes_per_second": self.bytes_per_second, "worker_busy_share": self.busy_share}
            curves |= {f"stage/{name}": share for name, share in self.stage_shares.items()}
        if (growth := self.growth) is not None:
            curves |= {"generation": growth.generation, "generation_samples": growth.samples}
            curves |= {"new_samples": growth.new_samples, "reuse": growth.reuse}
        if self.setup.streamed:
            curves |= {"fetched_per_second": self.fetched_per_second, "chunk_share": self.chunk_share}
        for name, value in curves.items():
            writer.add_scalar(f"packtrain/{name}", value, step)


class Meter:
    """Measures a loader.

    ``print(loader.stats)`` says in one line whether training waits for data and what would help, with a growing cache
    also which generation it reads and how often each sample was handed out, and
    ``loader.stats.report()`` shows the figures behind it. Both are about the present pass or, between two passes, the
    last one.

    Args:
        setup: What is measured.
        clock: Returns nanoseconds.
    """

    def __init__(self, setup: Setup, clock: Clock = time.monotonic_ns) -> None:
        self._setup = setup
        self._clock = clock
        words = blank()
        self._own: Words = np.frombuffer(words, np.int64)
        self._counters: Final = Counters(words, clock)
        self._rows: Words = np.empty((0, WORDS), np.int64)
        """Counters of the processes that make batches, int64 [processes, WORDS]."""
        self._before = np.zeros(WORDS, np.int64)
        """Sum of the counters of processes that have ended, int64 [WORDS]."""
        self._start = self._begun = self._before
        """The sum of all counters at the last `reset`, and at the beginning of the pass, int64 [WORDS]."""
        self._pass: object | None = None
        """Stands for the present pass."""
        self._growth: Growth | None = None

    def __reduce__(self) -> tuple[type[Meter], tuple[Setup, Clock]]:
        # What was measured stays in the process that it was measured in.
        return type(self), (self._setup, self._clock)

    @property
    def present(self) -> Stats:
        """The figures of the present pass or, between two passes, of the last one."""
        return self._stats(self._begun)

    @property
    def total(self) -> Stats:
        """The figures of all passes since the loader was made, or since `reset`."""
        return self._stats(self._start)

    def reset(self) -> None:
        """Starts `total` and `present` again from zero."""
        self._start = self._begun = self._total()

    def report(self) -> str:
        """The report of `present`, see `Stats.report`."""
        return self.present.report()

    def write(self, writer: ScalarWriter, step: int) -> None:
        """Writes the curves of `present`, see `Stats.write`."""
        self.present.write(writer, step)

    def __str__(self) -> str:
        return str(self.present)

    def __repr__(self) -> str:
        present = self.present
        return f"{type(self).__name__}({present.batches:,} batches, {present.samples:,} samples: {present})"

    def describe(self, **changes: Any) -> None:
        """Set attributes of the `Setup` for the following passes."""
        self._setup = replace(self._setup, **changes)

    def grow(self, growth: Growth) -> None:
        """Says which generation of a growing cache is read from now on."""
        self._growth = growth

    def attach(self, rows: Words) -> None:
        """Adds the processes that make batches from now on.

        Args:
            rows: Their counters, int64 [processes, WORDS], all zeros.
        """
        self.detach()
        self._rows = rows

    def detach(self) -> None:
        """Keeps the figures of those processes, which end now."""
        self._before = self._before + totals(self._rows, self._clock())
        self._rows = self._rows[:0].copy()

    def count(self, samples: int, skipped: int = 0, refused: int = 0) -> None:
        """Counts a batch that is handed out.

        Args:
            samples: Number of samples in it.
            skipped: Number of samples left out of it.
            refused: Number of images that DALI or the GPU refused to decode.
        """
        self._counters.add(Count.SAMPLES, samples)
        if skipped:
            self._counters.add(Count.SKIPPED, skipped)
        if refused:
            self._counters.add(Count.REFUSED, refused)

    def count_fetched(self, size: int) -> None:
        """Counts bytes that were fetched from an object store. Only one thread may call this."""
        self._counters.add(Count.FETCHED_BYTES, size)

    def starve(self) -> None:
        """Counts a batch that was not ready when the consumer asked for it."""
        self._counters.add(Count.STARVED)

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        """Yields the batches of a pass and times the consumer. The pass ends any earlier one.

        Args:
            batches: What the consumer gets.
        """
        counters, this = self._counters, object()
        self._begun, self._pass = self._total(), this
        counters.enter(Count.STARTUP)
        try:
            while True:
                # In a list, because a variable would keep the batch alive after the consumer has dropped it.
                found = [next(batches)]
                if self._pass is this:
                    counters.enter(Count.CONSUMING)
                    counters.add(Count.BATCHES)
                yield found.pop()
                if self._pass is this:
                    counters.enter(Count.WAITING)
        except StopIteration:
            return
        finally:
            if self._pass is this:
                counters.enter(Count.PAUSE)

    def collected(self, batches: Iterator[T]) -> Iterator[T]:
        """Yields batches as they are made, and times how long the consumer waits for that."""
        clock, counters = self._clock, self._counters
        while True:
            before = clock()
            try:
                found = [next(batches)]
            except StopIteration:
                return
            finally:
                if counters.phase == Count.WAITING:
                    counters.add(Count.COLLECTING, clock() - before)
            yield found.pop()

    def _stats(self, before: Words) -> Stats:
        growth = self._growth
        if growth is not None:
            growth = replace(growth, handed_out=int(self._own[Count.SAMPLES]))
        return _stats(self._setup, self._total() - before, growth)

    def _total(self) -> Words:
        now = self._clock()
        return self._before + totals(self._rows, now) + totals(self._own[np.newaxis], now)


def _stats(setup: Setup, counts: Words, growth: Growth | None) -> Stats:
    values = counts.tolist()
    found = {name: values[number] for name, number in _FIGURES.items()}
    found |= {f"{name}_seconds": values[number] * _SECONDS for name, number in _TIMES.items()}
    busy = found["busy_seconds"]
    found |= {name: min(busy, found[name]) for name in ("processor_seconds", "chunk_seconds")}
    stages = _stage_seconds(busy, values[COUNTS:])
    return Stats(setup=setup, growth=growth, stage_seconds=stages, **found)


def _stage_seconds(busy: float, stages: list[int]) -> dict[str, float]:
    """Seconds of each stage; those of samples are scaled so that all stages add up to the time workers were busy.

    Args:
        busy: Seconds that workers were busy.
        stages: Nanoseconds that were measured, for each `Stage`.
    """
    exact = {stage.name.lower(): stages[stage] * _SECONDS for stage in _EXACT if stages[stage]}
    # A stage counts when it ends. It may have begun before the pass, while the last batch of the pass before was sent.
    if (measured := sum(exact.values())) > busy:
        exact = {name: seconds * busy / measured for name, seconds in exact.items()}
    timed = {stage: stages[stage] for stage in Stage if stage not in _EXACT and stages[stage]}
    rest, all_timed = max(0.0, busy - measured), sum(timed.values())
    return {stage.name.lower(): rest * time / all_timed for stage, time in timed.items()} | exact
