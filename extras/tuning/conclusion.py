"""From trials to a result: the best setting, the Python that makes its loader, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .findings import findings_on
from .options import CUDA, DEFAULT_PREFETCH, Setting, TuneOptions, TuneTarget
from .presets import preset
from .trials import SettingResult, Trial, choose, noise_of, results_of, spread_of, tolerance_of


@dataclass(frozen=True)
class TuneResult:
    """What `tune` found.

    Attributes:
        target: The dataset and the host.
        options: What `tune` was asked for.
        trials: All measurements, in order.
        results: The settings measured with the training step of `options`, the fastest first.
        results_without_step: If `options` has a training step: the settings measured without it, the fastest first.
            They decide about the decoder.
        best: The cheapest of the settings that are as fast as the fastest; the default if none is cheaper than it, or
            faster by more than twice the spread.
        default: The loader's default setting; None if there was no time to measure it.
        spread: Median relative difference between two measurements of the same setting; None if none was repeated.
        tolerance: Rates that differ by a smaller share count as equal.
        disk_share: Share of the record bytes that had to be read from a disk, in [0, 1].
        imports: Python imports that `line` needs.
        line: Python expression that makes the loader.
        findings: What all this means, in a few sentences.
    """

    target: TuneTarget
    options: TuneOptions
    trials: tuple[Trial, ...]
    results: tuple[SettingResult, ...]
    results_without_step: tuple[SettingResult, ...]
    best: SettingResult
    default: SettingResult | None
    spread: float | None
    tolerance: float
    disk_share: float
    imports: str
    line: str
    findings: tuple[str, ...]


def conclude(target: TuneTarget, options: TuneOptions, trials: Iterable[Trial]) -> TuneResult | None:
    """What the trials mean; None if there is no trial with the training step of `options`."""
    trials = tuple(trials)
    results = results_of(trials, options.consumer_ms)
    if not results:
        return None
    without_step = results_of(trials, 0.0) if options.consumer_ms else []
    tolerance, noise = tolerance_of(results, options.consumer_ms), noise_of(results)
    spread, disk_share = spread_of([*results, *without_step]), _disk_share(target, trials)
    best = choose(results, tolerance)
    default = next((result for result in results if result.setting == target.default(options)), None)
    if default is not None and best.cost >= default.cost and best.rate <= (1 + noise) * default.rate:
        best = default
    imports, line = _code(target, options, best.setting)
    return TuneResult(
        target=target,
        options=options,
        trials=trials,
        results=_fastest_first(results),
        results_without_step=_fastest_first(without_step),
        best=best,
        default=default,
        spread=spread,
        tolerance=tolerance,
        disk_share=disk_share,
        imports=imports,
        line=line,
        findings=tuple(findings_on(best, default, target, options, noise=noise, spread=spread, disk_share=disk_share)),
    )


def _fastest_first(results: Iterable[SettingResult]) -> tuple[SettingResult, ...]:
    return tuple(sorted(results, key=lambda result: -result.rate))


def _code(target: TuneTarget, options: TuneOptions, setting: Setting) -> tuple[str, str]:
    """The imports and the expression that make a loader with this setting. They name public modules only."""
    transform = preset(options.transform)
    opened = [repr(target.path)]
    if transform.expression is not None:
        opened.append(f"transform={transform.expression}")
    # The decoder that "auto" takes is left out: on the next host it may not be installed.
    if setting.decoder not in (target.decoders[0], CUDA):
        opened.append(f'decoder="{setting.decoder}"')
    arguments = f"batch_size={options.batch_size}, shuffle=True, num_workers={setting.workers}"
    if setting.prefetch != DEFAULT_PREFETCH or setting.workers:
        arguments += f", prefetch_factor={setting.prefetch}"
    if setting.decoder == CUDA:
        arguments += ', decode="cuda", device="cuda"'
    imports = ["from packtrain import Loader, open_dataset", *filter(None, [transform.imports])]
    return "\n".join(imports), f"Loader(open_dataset({', '.join(opened)}), {arguments})"


def _disk_share(target: TuneTarget, trials: Iterable[Trial]) -> float:
    """By bytes or by page faults, whichever is more: some file systems count no bytes, some read far ahead."""
    trials = tuple(trials)
    images = sum(trial.read_images for trial in trials)
    if not images:
        return 0.0
    by_bytes = sum(trial.disk_bytes for trial in trials) / (images * target.record_bytes)
    by_faults = sum(trial.disk_faults for trial in trials) / images
    return min(1.0, max(by_bytes, by_faults))
