"""Decides which settings are measured in the time that is given. Does not import torch.

The search compares decoders first, then numbers of workers, then prefetch factors. The remaining time goes to the
settings that the decision is between. The contestants of a stage take turns, first in order and then in reverse, so
that other work on the host affects all of them. A contestant that is far behind after a turn gets no other turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, Protocol

from packtrain._core.errors import UsageError

from .options import DEFAULT_PREFETCH, Setting, TuneOptions, TuneTarget
from .trials import MIN_BATCHES, SettingResult, Trial, choose, fastest, results_of, tolerance_of

# Nothing below the loader's own factor: with one batch per worker, a step or an image that takes longer than usual
# makes the GPU wait, which a simulated step of constant length does not show.
_PREFETCH_FACTORS: Final = (DEFAULT_PREFETCH, 4, 8)
_TURNS: Final = 4
"""Turns per setting that the time should suffice for."""
_MAX_TURNS: Final = 7
_MAX_TRIAL_SECONDS: Final = 2.5
_HOPELESS: Final = 0.2
"""A contestant this far behind the leader gets no other turn: twice the largest tolerance."""
_CLOSE: Final = 0.12
"""Numbers of workers that differ by less are not told apart."""
_SHARES: Final = {"decoders": 0.3, "workers": 0.5, "prefetch": 0.45}
"""Share of the remaining time that a stage may take."""

Clock = Callable[[], float]


class RunTrial(Protocol):
    """Measures a setting once."""

    def __call__(self, setting: Setting, consumer_ms: float, seconds: float, limit: float) -> Trial | None:
        """Measures a setting.

        Args:
            setting: The setting to measure.
            consumer_ms: Pause of the consumer after each batch, in milliseconds.
            seconds: Time to spend, with starting and stopping the workers; more if a few batches take longer.
            limit: Time in seconds that must not be exceeded.

        Returns:
            The measurement; None if the limit came first.
        """


def search(
    target: TuneTarget,
    options: TuneOptions,
    run_trial: RunTrial,
    clock: Clock,
    on_trial: Callable[[Trial, float], None],
    start: float | None = None,
) -> None:
    """Measures what a choice needs.

    Args:
        target: The dataset and the host, with the decoders to choose from.
        options: What to look for, and how long.
        run_trial: Measures a setting.
        clock: Returns the time in seconds.
        on_trial: Called after each trial with the trial and the seconds since the start.
        start: When the search began, by `clock`; None means now.

    Raises:
        UsageError: There is too little time to measure each setting once.
    """
    _Search(target, options, run_trial, clock, on_trial, clock() if start is None else start).run()


def ladder(most: int, usual: int) -> list[int]:
    """The numbers of workers to try first: 0, the powers of 2, `usual` and `most`; none above `most`.

    >>> ladder(3, 2), ladder(17, 16), ladder(6, 64)
    ([0, 1, 2, 3], [0, 1, 2, 4, 8, 16, 17], [0, 1, 2, 4, 6])
    """
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return sorted({0, *powers, min(usual, most), most})


class _Search:
    def __init__(
        self,
        target: TuneTarget,
        options: TuneOptions,
        run_trial: RunTrial,
        clock: Clock,
        on_trial: Callable[[Trial, float], None],
        start: float,
    ) -> None:
        self._target = target
        self._options = options
        self._run_trial = run_trial
        self._clock = clock
        self._on_trial = on_trial
        self._start = start
        self._end = start + options.seconds
        self._default = target.default(options)
        self._ladder = ladder(target.max_workers(options), self._default.workers)
        self._trials: list[Trial] = []
        self._trial_seconds = 0.0

    def run(self) -> None:
        self._plan(self._rehearse())
        decoder = self._find_decoder()
        workers = self._find_workers(decoder)
        if workers:
            settings = [Setting(decoder, workers, prefetch) for prefetch in _PREFETCH_FACTORS]
            self._race(settings, self._deadline("prefetch"))
        self._finals()

    def _rehearse(self) -> Trial:
        """A trial that does not count. It brings into memory what all other trials then find there."""
        seconds = self._options.seconds
        trial = self._run_trial(self._default, self._options.consumer_ms, min(1.0, seconds / 10), seconds / 2)
        if trial is None:
            raise UsageError(
                f"seconds={seconds:g}: half of that was not enough for {MIN_BATCHES} batches of "
                f"{self._options.batch_size}. Give more, or a smaller `batch_size`"
            )
        return trial

    def _plan(self, rehearsal: Trial) -> None:
        """Chooses the length of a trial: as long as the time allows for all of them."""
        pause, usual = rehearsal.consumer_ms / 1000, max(1, rehearsal.setting.workers)
        # The time that one worker takes for a batch, if the rate grows with the workers. It is that of the default
        # decoder; how slow the others are is not known yet.
        batch_seconds = usual * rehearsal.waited / rehearsal.batches
        startup = rehearsal.took - rehearsal.seconds

        def shortest(workers: int) -> float:
            return startup + MIN_BATCHES * (pause + batch_seconds / max(1, workers))

        decoders = len(self._target.decoders)
        others = len(_PREFETCH_FACTORS) + 2 + (decoders if decoders > 1 else 0)
        needed = sum(max(shortest(workers), shortest(usual)) for workers in self._ladder) + others * shortest(usual)
        trials, left = len(self._ladder) + others, self._end - self._clock()
        if needed > left:
            enough = math.ceil(1.3 * (needed + self._options.seconds - left))
            raise UsageError(
                f"seconds={self._options.seconds:g} is too little: {trials} measurements of {MIN_BATCHES} batches take "
                f"{needed:.0f} s here. Give at least {enough}, or a smaller `batch_size`"
            )
        self._trial_seconds = max(shortest(usual), min(_MAX_TRIAL_SECONDS, left / (_TURNS * trials)))

    def _find_decoder(self) -> str:
        """The fastest decoder without a training step, as it leaves the most of the host to everything else."""
        names = self._target.decoders
        if len(names) > 1:
            contestants = [self._default._replace(decoder=name) for name in names]
            self._race(contestants, self._deadline("decoders"), consumer_ms=0.0)
            results = [result for result in results_of(self._trials, 0.0) if result.setting in contestants]
            if results:
                return choose(results, tolerance_of(results, 0.0)).setting.decoder
        return names[0]

    def _find_workers(self, decoder: str) -> int:
        """The number of workers: first a coarse search, then a finer one around the best."""
        deadline = self._deadline("workers")
        numbers = self._ladder
        while numbers and self._take_turns([Setting(decoder, number, DEFAULT_PREFETCH) for number in numbers]):
            numbers = self._between(decoder)
            if self._clock() + len(numbers) * self._trial_seconds > deadline:
                break
        contestants = [result.setting for result in self._results(decoder, DEFAULT_PREFETCH)]
        self._race(self._not_hopeless(contestants), deadline, min_turns=0)
        results = self._results(decoder, DEFAULT_PREFETCH)
        return self._choose(results).setting.workers if results else self._default.workers

    def _between(self, decoder: str) -> list[int]:
        """Numbers between the best ones so far and their neighbours, where the gap is wide enough to matter."""
        results = self._results(decoder, DEFAULT_PREFETCH)
        if not results:
            return []
        numbers = sorted(result.setting.workers for result in results)
        peak, chosen = fastest(results).setting.workers, self._choose(results).setting.workers
        gaps = [(low, high) for low, high in pairwise(numbers) if peak in (low, high) or high == chosen]
        return [(low + high) // 2 for low, high in gaps if high - low > max(1.0, _CLOSE * high)]

    def _finals(self) -> None:
        """Spends the remaining time on the chosen setting, the fastest and the default."""
        while results := self._results():
            finalists = dict.fromkeys((self._choose(results).setting, fastest(results).setting, self._default))
            if len(finalists) == 1 and len(results) > 1:
                finalists[fastest(result for result in results if result.setting not in finalists).setting] = None
            trials = {result.setting: len(result.rates) for result in results}
            unfinished = [setting for setting in finalists if trials.get(setting, 0) < _MAX_TURNS]
            if not unfinished or not self._take_turns(unfinished):
                return

    def _race(
        self, settings: Iterable[Setting], deadline: float, *, consumer_ms: float | None = None, min_turns: int = 1
    ) -> None:
        """Has contestants take turns until the deadline, but at least `min_turns` times."""
        contestants = list(settings)
        for turn in range(_MAX_TURNS):
            if len(contestants) < 2 and turn >= min_turns:
                return
            if turn >= min_turns and self._clock() + len(contestants) * self._trial_seconds > deadline:
                return
            if not self._take_turns(contestants if turn % 2 == 0 else contestants[::-1], consumer_ms):
                return
            contestants = self._not_hopeless(contestants, consumer_ms)

    def _not_hopeless(self, settings: Sequence[Setting], consumer_ms: float | None = None) -> list[Setting]:
        """The settings that are not far behind the fastest of them."""
        pause = self._options.consumer_ms if consumer_ms is None else consumer_ms
        rates = {result.setting: result.rate for result in results_of(self._trials, pause)}
        return [each for each in settings if rates[each] >= (1 - _HOPELESS) * max(rates[one] for one in settings)]

    def _take_turns(self, settings: Sequence[Setting], consumer_ms: float | None = None) -> bool:
        """Measures each setting once. Returns whether there was time for all."""
        pause = self._options.consumer_ms if consumer_ms is None else consumer_ms
        for setting in settings:
            left = self._end - self._clock()
            if left < self._trial_seconds:
                return False
            trial = self._run_trial(setting, pause, self._trial_seconds, left)
            if trial is None:
                return False
            self._trials.append(trial)
            self._on_trial(trial, self._clock() - self._start)
        return True

    def _results(self, decoder: str | None = None, prefetch: int | None = None) -> list[SettingResult]:
        return [
            result
            for result in results_of(self._trials, self._options.consumer_ms)
            if decoder in (None, result.setting.decoder) and prefetch in (None, result.setting.prefetch)
        ]

    def _choose(self, results: Sequence[SettingResult]) -> SettingResult:
        return choose(results, tolerance_of(results, self._options.consumer_ms))

    def _deadline(self, stage: str) -> float:
        now = self._clock()
        return now + _SHARES[stage] * (self._end - now)
