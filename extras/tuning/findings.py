"""The sentences that tell a user what a tuning run means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .options import Setting, TuneOptions, TuneTarget
from .trials import NEGLIGIBLE, SettingResult

_COLD: Final = 0.05
"""From this share of bytes read from a disk on, the findings mention it."""
_NOISY: Final = 0.05
"""Above this spread the findings mention it."""


def findings_on(
    best: SettingResult,
    default: SettingResult | None,
    target: TuneTarget,
    options: TuneOptions,
    *,
    noise: float,
    spread: float | None,
    disk_share: float,
) -> Iterator[str]:
    """Whether the training step waits, whether the best setting beats the defaults, and what casts doubt on it."""
    if options.consumer_ms:
        yield _waiting(best, options, target)
    yield _comparison(best, default, noise, spread, has_step=bool(options.consumer_ms))
    if spread is not None and spread > _NOISY:
        yield (
            f"this host is noisy, probably busy with other work: two measurements of a setting differ by {spread:.1%}, "
            f"so ignore differences below {2 * spread:.0%}"
        )
    if disk_share >= _COLD:
        yield (
            f"{disk_share:.0%} of the data came from the disk and not from memory, so these figures also measure the "
            "disk. Run this again once the data is in memory (after one epoch, if it fits)"
        )


def workers_text(workers: int) -> str:
    """Such as "1 worker" and "2 workers"."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def _waiting(best: SettingResult, options: TuneOptions, target: TuneTarget) -> str:
    step = f"a step of {options.consumer_ms:g} ms for {options.batch_size} images"
    if best.wait_share <= NEGLIGIBLE:
        return f"{step} waits {best.wait_share:.1%} of the time: {workers_text(best.setting.workers)} will do"
    needed = options.batch_size / options.consumer_ms * 1000
    remedies = "more cores or a smaller crop would help"
    if target.store != "raw":
        remedies += ", and so would packing smaller (--store jpeg --resize short=256) or decoded (--store raw) images"
    return (
        f"no setting keeps up: {step} takes {needed:,.0f} images/s, and the best setting delivers {best.rate:,.0f}, so "
        f"the step waits {best.wait_share:.0%} of the time; {remedies}. `packtrain doctor` says whether anything is "
        "missing here"
    )


def _comparison(
    best: SettingResult, default: SettingResult | None, noise: float, spread: float | None, *, has_step: bool
) -> str:
    if default is None:
        return "the defaults were not measured"
    basis = "each measured once" if spread is None else f"two measurements of a setting differ by {spread:.1%}"
    if best.setting == default.setting:
        return f"nothing measured beats the defaults: leave them ({basis})"
    gain = best.rate / default.rate - 1
    if gain > noise:
        return f"{gain:.1%} more images/s than with the defaults ({basis}): worth setting"
    saving = _saving(best.setting, default.setting)
    if has_step:
        return f"the defaults are as fast ({basis}), but use more of this host: {saving}"
    return f"the defaults are as good ({gain:+.1%}; {basis}): leave them unless cores are scarce: {saving}"


def _saving(best: Setting, default: Setting) -> str:
    return f"{workers_text(best.workers)} instead of {default.workers}"
