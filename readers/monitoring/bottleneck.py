"""What a loader's figures mean: functions of the figures alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .stats import Stats

# Less waiting than this is nothing to be done about: what varies from batch to batch.
_WAITING: Final = 0.05
# A stage with so much of the workers' time is worth a change.
_MUCH: Final = 0.4
# Workers that are busy for less of their time are not what the consumer waits for.
_BUSY: Final = 0.7
# So much of their time workers are off the processor if something keeps them from it.
_OFF: Final = 0.3
_COPIED: Final = 0.1
_REMEDIES: Final = {
    "resize": "smaller images (`pack --resize`)",
    "transform": "faster transforms of your own",
    "check": "check=False",
    "collate": "samples of one shape without collate_fn",
    "handoff": "samples of one shape without collate_fn",
}


def verdict(stats: Stats) -> str:
    """What holds training up, and what would help, in one line."""
    waiting = f"{stats.wait_share:.1%}".replace("%", " %")
    if stats.batches < 2 or stats.wall_seconds <= 0:
        return f"nothing to be said yet: {stats.batches} batches were handed out"
    if stats.setting.headspace:
        rate = f"{stats.samples_per_second:,.0f} samples/s" if stats.samples else "this fast"
        return f"headspace: with data that costs nothing, training runs at {rate} ({waiting} waiting)"
    if stats.wait_share < _WAITING:
        return f"compute-bound: the data waits for the consumer ({waiting} waiting)"
    found = list(advice(stats))
    helps = f"{_either(found)} would help" if found else f"only more or faster cores would help ({_cores(stats)})"
    return f"data-bound: {stats.wait_share:.0%} of wall time waiting; {_where(stats)}; {helps}".replace("%", " %")


def advice(stats: Stats) -> Iterator[str]:
    """What would help a consumer that waits, the first the most.

    Never more workers than cores, nor a store mode that the dataset has.
    """
    setting, shares = stats.setting, stats.stage_shares
    if setting.foreign:
        if extra := _more_workers(stats):
            yield extra
        yield "packtrain._readers.Loader"
        return
    if stats.copied > _COPIED * stats.batches:
        yield "keeping fewer batches"
    if _finishing(stats) > 0.5:
        yield "a cheaper batch_transform, or device='cuda' if there is a GPU"
        return
    if _waits_for_disk(stats):
        yield "a faster disk, or the dataset in memory (`packtrain stage`)"
        return
    if setting.workers and stats.busy_share < _BUSY:
        yield "a larger prefetch_factor"
        return
    if _off_processor(stats) >= _OFF:
        yield "fewer other processes on these cores"
    elif extra := _more_workers(stats):
        yield extra
    if setting.store not in (None, "raw") and shares.get("decode", 0) + shares.get("cut", 0) >= _MUCH:
        yield "store=raw"
    yield from dict.fromkeys(remedy for stage, remedy in _REMEDIES.items() if shares.get(stage, 0) >= _MUCH)


def report(stats: Stats) -> str:
    """A table of the figures, and the verdict."""
    rows = list(_rows(stats))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {value:>{widths[1]}}  {note}".rstrip() for name, value, note in rows]
    return "\n".join([*lines, verdict(stats)])


def _rows(stats: Stats) -> Iterator[tuple[str, str, str]]:
    setting = stats.setting
    yield "wall time", f"{stats.wall_seconds:.1f} s", f"after {stats.startup_seconds:.1f} s until the first batch"
    yield "  waiting", _percent(stats.wait_share), f"{stats.waiting_seconds:.1f} s"
    if not setting.foreign and _finishing(stats) > 0.01:
        yield "    finishing batches", _percent(_finishing(stats)), "of waiting: copies, normalisation, batch_transform"
    yield "batches", f"{stats.batches:,}", f"{stats.starved:,} of them were not ready" * bool(setting.workers)
    yield "samples", f"{stats.samples:,}", f"{stats.samples_per_second:,.0f} per second"
    if stats.skipped:
        yield "  left out", f"{stats.skipped:,}", "damaged"
    if stats.copied:
        yield "  batches copied", f"{stats.copied:,}", "because the consumer keeps so many"
    if setting.headspace:
        return
    if setting.foreign:
        known = "not known" if setting.workers is None else f"{setting.workers}"
        yield "workers", known, f"on {_cores(stats)}; what they do is not known"
        return
    yield "stored bytes", f"{stats.read_bytes / 1e6:,.1f} MB", f"{stats.bytes_per_second / 1e6:,.1f} MB per second"
    if stats.disk_bytes or stats.disk_faults:
        yield "  from disk", f"{stats.disk_bytes / 1e6:,.1f} MB", f"{stats.disk_faults:,} page faults waited"
    yield "workers", f"{setting.workers}", f"on {_cores(stats)}"
    if setting.workers:
        yield "  busy", _percent(stats.busy_share), f"{stats.busy_seconds:.1f} s"
    for name, share in stats.stage_shares.items():
        yield (
            f"    {name}",
            _percent(share),
            f"{1e6 * stats.stage_seconds[name] / max(1, stats.samples):,.0f} us a sample",
        )
    if stats.busy_seconds and (off := _off_processor(stats)) > 0.01:
        yield "    off the processor", _percent(off), "waiting for a disk, or for other processes"


def _more_workers(stats: Stats) -> str | None:
    """As many as the consumer would need, and cores allow."""
    workers, cores = stats.setting.workers, stats.setting.cores
    if workers is None:
        return None
    if not workers:
        # They would make batches beside the consumer.
        needed = stats.waiting_seconds / stats.consuming_seconds if stats.consuming_seconds else math.inf
        return f"num_workers={max(1, math.ceil(min(needed, cores)))}"
    needed = workers / (1 - stats.wait_share) if stats.wait_share < 1 else math.inf
    extra = math.ceil(min(needed, cores)) - workers
    return f"{extra} more worker{'s' * (extra > 1)}" if extra > 0 else None


def _finishing(stats: Stats) -> float:
    """Of the waiting, what this process was at work in."""
    return max(0.0, 1 - stats.collecting_seconds / stats.waiting_seconds) if stats.waiting_seconds > 0 else 0.0


def _off_processor(stats: Stats) -> float:
    return max(0.0, 1 - stats.processor_seconds / stats.busy_seconds) if stats.busy_seconds > 0 else 0.0


def _waits_for_disk(stats: Stats) -> bool:
    touched = stats.disk_bytes > 0 or stats.disk_faults > 0
    return stats.stage_shares.get("read", 0) >= 0.5 or (touched and _off_processor(stats) >= _OFF)


def _where(stats: Stats) -> str:
    """Where the time goes."""
    if stats.setting.foreign:
        ready = f"{stats.starved:,} of {stats.batches:,} batches were not ready"
        return f"what its workers do is not known{f', {ready}' if stats.setting.workers else ''}"
    if _finishing(stats) > 0.5:
        return f"finishing batches in this process is {_finishing(stats):.0%} of that"
    if not stats.stage_shares:
        return f"workers are busy {stats.busy_share:.0%} of their time"
    name, share = next(iter(stats.stage_shares.items()))
    return f"{name} is {share:.0%} of worker time"


def _cores(stats: Stats) -> str:
    return f"{stats.setting.cores} core{'s' * (stats.setting.cores > 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _either(parts: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
