"""The best number of workers, decoder and prefetch for a dataset on this host, found by measuring the loader itself.

`tune` does it, `packtrain tune` prints it. With `TuneOptions.consumer_ms` the best setting is the cheapest one that a
training step of this length does not wait for; without, the fastest one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from packtrain._core.errors import UsageError

from .presets import preset
from .search import default_of, search
from .trial import (
    ENOUGH,
    PREFETCH,
    Row,
    Setting,
    Subject,
    Trial,
    TuneOptions,
    choose,
    noise_of,
    rows_of,
    spread_of,
    tolerance_of,
)

__all__ = ["Row", "Setting", "Subject", "Trial", "TuneOptions", "TuneResult", "conclude", "tune"]

_COLD = 0.05
"""Of what was read, a share from the disk that no longer is to be passed over."""
_NOISY = 0.05
"""A spread that is to be mentioned."""


@dataclass(frozen=True)
class TuneResult:
    """What `tune` found.

    Attributes:
        subject: The dataset and the host.
        options: What was asked.
        trials: All measurements, in their order.
        rows: The settings measured with the consumer of `options`, the fastest first.
        raw_rows: With a consumer: the settings measured without it, by which the decoder was chosen.
        best: The cheapest of the settings that are as fast as the fastest; the default, if nothing is cheaper, or
            faster by more than twice the spread.
        default: What the loader takes by itself; None if there was no time for it.
        spread: By how much two measurements of the same setting differ, relative to their rate: the median.
        tolerance: Rates that differ by less were taken for equal.
        disk_share: Of the bytes of all records read, what had to come from a disk: in [0, 1].
        imports: Python that `line` needs before it.
        line: Python that makes the loader.
        verdict: What all this means, in a few sentences.
    """

    subject: Subject
    options: TuneOptions
    trials: tuple[Trial, ...]
    rows: tuple[Row, ...]
    raw_rows: tuple[Row, ...]
    best: Row
    default: Row | None
    spread: float | None
    tolerance: float
    disk_share: float
    imports: str
    line: str
    verdict: tuple[str, ...]


def tune(
    path: str | os.PathLike[str],
    options: TuneOptions | None = None,
    *,
    on_trial: Callable[[Trial, float, Subject], None] | None = None,
) -> TuneResult:
    """Finds the best setting for the dataset in `path` on this host, in about the seconds that `options` allows.

    Whatever else the host does meanwhile falls on the measurements. Workers are forked: call it before threads run.

    Args:
        path: Of the dataset.
        options: What is asked.
        on_trial: Called after each measurement with it, the seconds since the beginning, and what is measured. With
            what it has collected when `tune` is interrupted, `conclude` gives a result.

    Raises:
        DatasetError: It is no sound dataset.
        LoaderError: The transform fails, or gives images of different sizes.
        UsageError: The transform is unknown, or the time does not suffice to measure everything once.
    """
    begun = time.monotonic()
    from .bench import Bench

    options = options or TuneOptions()
    bench = Bench(path, options)
    trials: list[Trial] = []

    def keep(trial: Trial, seconds: float) -> None:
        trials.append(trial)
        if on_trial is not None:
            on_trial(trial, seconds, bench.subject)

    search(bench.subject, options, bench.measure, time.monotonic, keep, begun)
    result = conclude(bench.subject, options, trials)
    if result is None:
        raise UsageError(
            f"in {options.seconds:g} s nothing could be measured, much less than a first trial promised: is the host "
            "busy? Give more seconds"
        )
    return result


def conclude(subject: Subject, options: TuneOptions, trials: Iterable[Trial]) -> TuneResult | None:
    """What some measurements mean; None if none was made with the consumer of `options`."""
    trials = tuple(trials)
    rows = rows_of(trials, options.consumer_ms)
    if not rows:
        return None
    tolerance, noise = tolerance_of(rows, options.consumer_ms), noise_of(rows)
    best = choose(rows, tolerance)
    default = next((row for row in rows if row.setting == default_of(subject, options)), None)
    if default is not None and best.cost >= default.cost and best.rate <= (1 + noise) * default.rate:
        best = default
    imports, line = _code(subject, options, best.setting)
    raw = rows_of(trials, 0.0) if options.consumer_ms else []
    spread, disk_share = spread_of([*rows, *raw]), _disk_share(subject, trials)
    verdict = [_compared(best, default, noise, spread, paced=bool(options.consumer_ms))]
    if options.consumer_ms:
        verdict.insert(0, _kept_up(best, options, subject))
    if spread is not None and spread > _NOISY:
        verdict.append("that is much: the host has other work. Differences smaller than twice that say nothing")
    if disk_share >= _COLD:
        verdict.append(_cold(disk_share))
    return TuneResult(
        subject=subject,
        options=options,
        trials=trials,
        rows=tuple(sorted(rows, key=lambda row: -row.rate)),
        raw_rows=tuple(sorted(raw, key=lambda row: -row.rate)),
        best=best,
        default=default,
        spread=spread,
        tolerance=tolerance,
        disk_share=disk_share,
        imports=imports,
        line=line,
        verdict=tuple(verdict),
    )


def _code(subject: Subject, options: TuneOptions, setting: Setting) -> tuple[str, str]:
    transform = preset(options.transform)
    opened = [repr(subject.path)]
    if transform.expression is not None:
        opened.append(f"transform={transform.expression}")
    # What "auto" takes anyway need not be there on the next host.
    if setting.decoder != subject.decoders[0]:
        opened.append(f'decoder="{setting.decoder}"')
    arguments = f"batch_size={options.batch_size}, num_workers={setting.workers}"
    if setting.prefetch != PREFETCH or setting.workers:
        arguments += f", prefetch_factor={setting.prefetch}"
    imports = ["from packtrain import Loader, open_dataset", *filter(None, [transform.imports])]
    return "\n".join(imports), f"Loader(open_dataset({', '.join(opened)}), {arguments})"


def _disk_share(subject: Subject, trials: Iterable[Trial]) -> float:
    """By bytes or by faults: some file systems count no bytes, and some read far ahead of a fault."""
    trials = tuple(trials)
    images = sum(trial.read_images for trial in trials)
    if not images:
        return 0.0
    by_bytes = sum(trial.disk_bytes for trial in trials) / (images * subject.record_bytes)
    by_faults = sum(trial.disk_faults for trial in trials) / images
    return min(1.0, max(by_bytes, by_faults))


def _kept_up(best: Row, options: TuneOptions, subject: Subject) -> str:
    step = f"a step of {options.consumer_ms:g} ms for {options.batch_size} images"
    if best.wait_share <= ENOUGH:
        return f"{step} waits {best.wait_share:.1%} of the time: {_workers(best.setting)} will do"
    needed = options.batch_size / options.consumer_ms * 1000
    helps = "what helps: more cores; a smaller crop"
    if subject.store != "raw":
        helps += "; images packed smaller (--store jpeg --resize short=256) or decoded (--store raw)"
    return (
        f"nothing keeps up: {step} takes {needed:,.0f} images/s, and the best setting gives {best.rate:,.0f}: "
        f"{best.wait_share:.0%} of the time is waiting; {helps}. `packtrain doctor` says what is missing here"
    )


def _compared(best: Row, default: Row | None, noise: float, spread: float | None, *, paced: bool) -> str:
    """The best setting beside the defaults, and whether the difference is one."""
    if default is None:
        return "the defaults were not measured"
    basis = "measured once each" if spread is None else f"two measurements of a setting differ by {spread:.1%}"
    if best.setting == default.setting:
        return f"the defaults are as good as anything else, as far as can be told: leave them ({basis})"
    gain = best.rate / default.rate - 1
    if gain > noise:
        return f"{gain:.1%} more images/s than with the defaults ({basis}): it is worth setting"
    saved = f"{_workers(best.setting)} in place of {default.setting.workers}"
    if paced:
        return f"the defaults are as fast ({basis}), but take more of this host: {saved}"
    return f"the defaults are as good ({gain:+.1%}; {basis}): leave them, unless cores are scarce: {saved}"


def _cold(share: float) -> str:
    return (
        f"{share:.0%} of the data came from the disk, not from memory: these figures are about the disk, too. Once all "
        "of it is in memory, as after an epoch if it fits, run this again"
    )


def _workers(setting: Setting) -> str:
    return f"{setting.workers} worker{'' if setting.workers == 1 else 's'}"
