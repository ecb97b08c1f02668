"""Which settings `packtrain._readers.tuning` measures, one after the other, in the time it is given. Free of torch.

Decoders come first, then numbers of workers, then of batches ahead; what is left goes to those between whom it is to be
decided. Contestants of a stage take turns, there and back, so that whatever else the host does falls on all of them;
who is far behind after a turn has no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, Protocol

from packtrain._core.errors import UsageError

from .trial import FEWEST, PREFETCH, Row, Setting, Subject, Trial, TuneOptions, choose, fastest, rows_of, tolerance_of

# Not below the loader's own: one batch for each worker leaves nothing in hand for a step or an image that takes longer
# than usual, which a consumer with steps of equal length does not miss.
_AHEAD: Final = (PREFETCH, 4, 8)
_TURNS: Final = 4
"""For each setting, that the time should do for."""
_LONGEST: Final = 2.5
_ROUNDS: Final = 7
_HOPELESS: Final = 0.2
"""Behind the leader by so much, a contestant has no other turn: twice the largest tolerance."""
_CLOSE: Final = 0.12
"""Numbers of workers that differ by less are not told apart."""
# Of the time that is left when a stage begins.
_SHARES: Final = {"decoders": 0.3, "workers": 0.5, "prefetch": 0.45}

Clock = Callable[[], float]


class Measure(Protocol):
    """Measures a setting once."""

    def __call__(self, setting: Setting, consumer_ms: float, seconds: float, limit: float) -> Trial | None:
        """Measures it.

        Args:
            setting: What.
            consumer_ms: The consumer's pause after each batch, in milliseconds.
            seconds: To be spent, start and end of workers included; more if a few batches take more.
            limit: Not to be exceeded.

        Returns:
            What was found; None if the limit came first.
        """


def search(
    subject: Subject,
    options: TuneOptions,
    measure: Measure,
    clock: Clock,
    on_trial: Callable[[Trial, float], None],
    begun: float | None = None,
) -> None:
    """Measures what is needed for a choice.

    Args:
        subject: What there is to choose from.
        options: What is asked.
        measure: Measures a setting.
        clock: Seconds.
        on_trial: Called after each trial with it and the seconds since the beginning.
        begun: When that was; None: now.

    Raises:
        UsageError: The time does not suffice to measure each setting once.
    """
    _Search(subject, options, measure, clock, on_trial, clock() if begun is None else begun).run()


def default_of(subject: Subject, options: TuneOptions) -> Setting:
    """What the loader takes by itself; no more workers than may be tried."""
    return Setting(subject.decoders[0], min(subject.workers, most_workers(subject, options)), PREFETCH)


def most_workers(subject: Subject, options: TuneOptions) -> int:
    """The greatest number of workers to be tried."""
    return subject.cores + 1 if options.max_workers is None else options.max_workers


def ladder(most: int, usual: int) -> list[int]:
    """Numbers of workers to begin with: 0, powers of 2, and those around the usual one; `most` at most.

    >>> ladder(3, 2), ladder(17, 16), ladder(6, 64)
    ([0, 1, 2, 3], [0, 1, 2, 4, 8, 16, 17], [0, 1, 2, 4, 6])
    """
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return sorted({0, *powers, min(usual, most), most} - {number for number in powers if number > most})


class _Search:
    def __init__(
        self,
        subject: Subject,
        options: TuneOptions,
        measure: Measure,
        clock: Clock,
        on_trial: Callable[[Trial, float], None],
        begun: float,
    ) -> None:
        self._subject = subject
        self._options = options
        self._measure = measure
        self._clock = clock
        self._on_trial = on_trial
        self._begun = begun
        self._end = begun + options.seconds
        self._default = default_of(subject, options)
        self._ladder = ladder(most_workers(subject, options), self._default.workers)
        self._trials: list[Trial] = []
        self._seconds = 0.0
        """Of a trial."""

    def run(self) -> None:
        self._plan(self._rehearse())
        decoder = self._decoder()
        workers = self._workers(decoder)
        self._prefetch(decoder, workers)
        self._finals()

    def _rehearse(self) -> Trial:
        """A trial that does not count: it brings into memory what all others find there."""
        seconds = self._options.seconds
        trial = self._measure(self._default, self._options.consumer_ms, min(1.0, seconds / 10), seconds / 2)
        if trial is None:
            raise UsageError(
                f"seconds={seconds:g}: in half of them not even {FEWEST} batches of {self._options.batch_size} were "
                "made. Give more time, or a smaller batch_size"
            )
        return trial

    def _plan(self, rehearsal: Trial) -> None:
        """How long a trial takes, if a few batches do not take longer: as long as time allows for all of them."""
        pause, usual = rehearsal.consumer_ms / 1000, max(1, rehearsal.setting.workers)
        # What one worker takes for a batch, if it is workers that count. That of slower decoders is not known yet.
        made = usual * rehearsal.waited / rehearsal.batches
        start = rehearsal.took - rehearsal.seconds

        def least(workers: int) -> float:
            return start + FEWEST * (pause + made / max(1, workers))

        others = len(_AHEAD) + 2 + (len(self._subject.decoders) if len(self._subject.decoders) > 1 else 0)
        needed = sum(max(least(workers), least(usual)) for workers in self._ladder) + others * least(usual)
        trials, left = len(self._ladder) + others, self._end - self._clock()
        if needed > left:
            enough = math.ceil(1.3 * (needed + self._options.seconds - left))
            raise UsageError(
                f"seconds={self._options.seconds:g} are too little: {trials} measurements of {FEWEST} batches take "
                f"{needed:.0f} s here. Give {enough} at least, or a smaller batch_size"
            )
        self._seconds = max(least(usual), min(_LONGEST, left / (_TURNS * trials)))

    def _decoder(self) -> str:
        """The fastest decoder, whatever the consumer: it is what leaves most to others."""
        names = self._subject.decoders
        if len(names) > 1:
            contestants = [self._default._replace(decoder=name) for name in names]
            self._race(contestants, self._until("decoders"), consumer_ms=0.0)
            rows = [row for row in rows_of(self._trials, 0.0) if row.setting in contestants]
            if rows:
                return choose(rows, tolerance_of(rows, 0.0)).setting.decoder
        return names[0]

    def _workers(self, decoder: str) -> int:
        """The number of workers: a coarse look, then a closer one at what lies beside the best."""
        until = self._until("workers")
        numbers = self._ladder
        while numbers and self._round([Setting(decoder, number, PREFETCH) for number in numbers]):
            numbers = self._between(decoder)
            if self._clock() + len(numbers) * self._seconds > until:
                break
        self._race(self._near([row.setting for row in self._rows(decoder, PREFETCH)]), until, least=0)
        rows = self._rows(decoder, PREFETCH)
        return self._choose(rows).setting.workers if rows else self._default.workers

    def _between(self, decoder: str) -> list[int]:
        """Numbers between what is best by now and its neighbours: those not yet measured, and worth it."""
        rows = self._rows(decoder, PREFETCH)
        if not rows:
            return []
        numbers = sorted(row.setting.workers for row in rows)
        peak, chosen = fastest(rows).setting.workers, self._choose(rows).setting.workers
        gaps = [(low, high) for low, high in pairwise(numbers) if peak in (low, high) or high == chosen]
        return [(low + high) // 2 for low, high in gaps if high - low > max(1.0, _CLOSE * high)]

    def _prefetch(self, decoder: str, workers: int) -> None:
        if workers:
            self._race((Setting(decoder, workers, ahead) for ahead in _AHEAD), self._until("prefetch"))

    def _finals(self) -> None:
        """What is left of the time goes to those between whom it is to be decided."""
        while rows := self._rows():
            finalists = dict.fromkeys((self._choose(rows).setting, fastest(rows).setting, self._default))
            if len(finalists) == 1 and len(rows) > 1:
                finalists[fastest(row for row in rows if row.setting not in finalists).setting] = None
            trials = {row.setting: len(row.rates) for row in rows}
            open_ = [setting for setting in finalists if trials.get(setting, 0) < _ROUNDS]
            if not open_ or not self._round(open_):
                return

    def _race(
        self, settings: Iterable[Setting], until: float, *, consumer_ms: float | None = None, least: int = 1
    ) -> None:
        """Has contestants take turns until a time has come, `least` times at least."""
        alive = list(settings)
        for number in range(_ROUNDS):
            if len(alive) < 2 and number >= least:
                return
            if number >= least and self._clock() + len(alive) * self._seconds > until:
                return
            if not self._round(alive if number % 2 == 0 else alive[::-1], consumer_ms):
                return
            alive = self._near(alive, consumer_ms)

    def _near(self, settings: Sequence[Setting], consumer_ms: float | None = None) -> list[Setting]:
        """Those who are not far behind the fastest of them."""
        paced = self._options.consumer_ms if consumer_ms is None else consumer_ms
        rates = {row.setting: row.rate for row in rows_of(self._trials, paced)}
        return [each for each in settings if rates[each] >= (1 - _HOPELESS) * max(rates[one] for one in settings)]

    def _round(self, settings: Sequence[Setting], consumer_ms: float | None = None) -> bool:
        """Measures each once; whether there was time for all."""
        paced = self._options.consumer_ms if consumer_ms is None else consumer_ms
        for setting in settings:
            left = self._end - self._clock()
            if left < self._seconds:
                return False
            trial = self._measure(setting, paced, self._seconds, left)
            if trial is None:
                return False
            self._trials.append(trial)
            self._on_trial(trial, self._clock() - self._begun)
        return True

    def _rows(self, decoder: str | None = None, prefetch: int | None = None) -> list[Row]:
        return [
            row
            for row in rows_of(self._trials, self._options.consumer_ms)
            if decoder in (None, row.setting.decoder) and prefetch in (None, row.setting.prefetch)
        ]

    def _choose(self, rows: Sequence[Row]) -> Row:
        return choose(rows, tolerance_of(rows, self._options.consumer_ms))

    def _until(self, stage: str) -> float:
        now = self._clock()
        return now + _SHARES[stage] * (self._end - now)
