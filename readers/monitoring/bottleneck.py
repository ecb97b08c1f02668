"""Says what the figures of a loader mean: if training waits for data, for what, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from .figures import Figures

# A smaller share of waiting is not worth a change: it varies this much from batch to batch.
_WAITING: Final = 0.05
# A stage with at least this share of the workers' time is worth a change.
_LARGE: Final = 0.4
# Workers with a smaller busy share are not what the consumer waits for.
_BUSY: Final = 0.7
# From this share of their busy time off the processor, something keeps the workers from it.
_OFF: Final = 0.3
# Below this share of the bytes or samples, data came from memory, and another disk would change nothing.
_FROM_DISK: Final = 0.05
# From this share of copied batches, copying matters.
_COPIED: Final = 0.1
# Only some samples are timed. Until one of them is, the stages that are known say nothing of the others.
_KNOWN: Final = 0.5
_REMEDIES: Final = {
    "resize": "smaller images (`pack --resize`)",
    "transform": "faster transforms of your own",
    "check": "check=False",
    "collate": "samples of one shape without collate_fn",
    "handoff": "samples of one shape without collate_fn",
}


def bottleneck_of(figures: Figures) -> str:
    """Return what slows training down, and what would help, in one line."""
    waiting = f"{_percent(figures.wait_share)} waiting"
    if figures.batches < 2 or figures.wall_seconds <= 0:
        return f"too early to tell: {figures.batches} batch{'es' * (figures.batches != 1)} handed out"
    if figures.setup.headspace:
        rate = f"{figures.samples_per_second:,.0f} samples/s" if figures.samples else "this speed"
        return f"headspace: if data cost nothing, training would run at {rate} ({waiting})"
    if figures.wait_share < _WAITING:
        return f"compute-bound: data is ready before training asks for it ({waiting})"
    where, found = diagnosis(figures)
    helps = f"{_either(found)} would help" if found else f"only more or faster cores would help ({_cores(figures)})"
    return f"data-bound: {figures.wait_share:.0%} of wall time waiting; {where}; {helps}".replace("%", " %")


def growth_of(figures: Figures) -> str:
    """Return a few words about the generation of a growing cache that is read; empty for other datasets."""
    growth = figures.growth
    if growth is None:
        return ""
    samples = f"{growth.samples:,} samples, {growth.new_samples:,} of them new"
    return f"generation {growth.generation}: {samples}, reuse {growth.reuse:.1f}"


def diagnosis(figures: Figures) -> tuple[str, list[str]]:
    """Return in a few words where the time of a consumer that waits goes, and what would help, most helpful first.

    Never suggests more workers than there are cores, nor the store mode that the dataset already has.
    """
    setup, shares, postprocessing = figures.setup, figures.stage_shares, _postprocessing(figures)
    if setup.foreign:
        late = f", {figures.starved:,} of {figures.batches:,} batches were not ready in time" if setup.workers else ""
        return f"what its workers do is unknown{late}", [*_more_workers(figures), "packtrain.Loader"]
    helps = ["keeping fewer batches"] * (figures.copied > _COPIED * figures.batches)
    if postprocessing > 0.5:
        helps.append("a cheaper batch_transform, or device='cuda' if there is a GPU")
        return f"postprocessing in this process is {postprocessing:.0%} of that", helps
    if figures.chunk_share >= _OFF:
        rate = f"{figures.fetched_per_second / 1e6:,.0f} MB/s are fetched"
        budget = "a larger budget=, so that less of the dataset has to be fetched again"
        helps += ["a faster way to the object store", budget]
        return f"workers wait for the object store {figures.chunk_share:.0%} of their time, {rate}", helps
    where = f"workers are busy {figures.busy_share:.0%} of their time"
    if sum(shares.values()) >= _KNOWN:
        name, share = next(iter(shares.items()))
        where = f"{name} is {share:.0%} of worker time"
    return where, [*helps, *_faster_workers(figures)]


def _faster_workers(figures: Figures) -> Iterator[str]:
    """Suggest what would help workers that wait for no object store."""
    setup, shares = figures.setup, figures.stage_shares
    if _waits_for_disk(figures):
        yield "a faster disk, or the dataset in memory (`packtrain stage`)"
        return
    if setup.workers and figures.busy_share < _BUSY:
        yield "a larger prefetch_factor"
        return
    if _off_processor(figures) >= _OFF:
        yield "fewer other processes on these cores"
    else:
        yield from _more_workers(figures)
    if setup.store not in (None, "raw") and shares.get("decode", 0) + shares.get("cut", 0) >= _LARGE:
        yield "store=raw"
    remedies = dict(_REMEDIES)
    if setup.remedy:
        remedies["transform"] = setup.remedy
    if setup.compares_again:
        remedies["check"] = 'check="first"'
    yield from dict.fromkeys(remedy for stage, remedy in remedies.items() if shares.get(stage, 0) >= _LARGE)


def report(figures: Figures) -> str:
    """A table of the figures, and the bottleneck in the last line."""
    rows = list(_rows(figures))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {value:>{widths[1]}}  {note}".rstrip() for name, value, note in rows]
    return "\n".join([*lines, bottleneck_of(figures)])


def _rows(figures: Figures) -> Iterator[tuple[str, str, str]]:
    setup = figures.setup
    yield "wall time", f"{figures.wall_seconds:.1f} s", f"after {figures.startup_seconds:.1f} s to the first batch"
    yield "  waiting", _percent(figures.wait_share), f"{figures.waiting_seconds:.1f} s"
    if not setup.foreign and (share := _postprocessing(figures)) > 0.01:
        yield "    postprocessing", _percent(share), "of the waiting: copies, normalisation, batch_transform"
    yield "batches", f"{figures.batches:,}", f"{figures.starved:,} of them not ready in time" * bool(setup.workers)
    yield "samples", f"{figures.samples:,}", f"{figures.samples_per_second:,.0f} per second"
    if figures.skipped:
        yield "  left out", f"{figures.skipped:,}", "damaged"
    if figures.refused:
        yield "  decoded by the CPU", f"{figures.refused:,}", "which DALI or the GPU refused"
    if (growth := figures.growth) is not None:
        yield "generation", f"{growth.generation}", f"{growth.samples:,} samples, {growth.new_samples:,} of them new"
        yield "  reuse", f"{growth.reuse:.1f}", f"times each of {growth.published:,} samples on average"
    if figures.copied:
        yield "  batches copied", f"{figures.copied:,}", "because the consumer keeps so many"
    if setup.headspace:
        return
    if setup.foreign:
        workers = "unknown" if setup.workers is None else f"{setup.workers}"
        yield "workers", workers, f"on {_cores(figures)}; what they do is unknown"
        return
    yield "stored bytes", f"{figures.read_bytes / 1e6:,.1f} MB", f"{figures.bytes_per_second / 1e6:,.1f} MB per second"
    if setup.streamed:
        rate = f"{figures.fetched_per_second / 1e6:,.1f} MB per second, for all on this machine that use the cache"
        yield "  fetched", f"{figures.fetched_bytes / 1e6:,.1f} MB", rate
    if figures.disk_bytes or figures.disk_faults:
        yield "  from disk", f"{figures.disk_bytes / 1e6:,.1f} MB", f"{figures.disk_faults:,} page faults waited for it"
    if setup.threads:
        yield "threads of DALI", f"{setup.threads}", f"on {_cores(figures)}"
    else:
        yield "workers", f"{setup.workers}", f"on {_cores(figures)}"
    if setup.workers:
        yield "  busy", _percent(figures.busy_share), f"{figures.busy_seconds:.1f} s"
    if setup.streamed:
        yield "    waiting for chunks", _percent(figures.chunk_share), f"{figures.chunk_seconds:.1f} s"
    for name, share in figures.stage_shares.items():
        each = 1e6 * figures.stage_seconds[name] / max(1, figures.samples)
        which = f": {', '.join(setup.unfused)} not fused" if name == "transform" and setup.unfused else ""
        yield f"    {name}", _percent(share), f"{each:,.0f} us per sample{which}"
    if figures.busy_seconds and (off := _off_processor(figures)) > 0.01:
        yield "    off the processor", _percent(off), "waiting for a disk or for other processes"


def _more_workers(figures: Figures) -> Iterator[str]:
    """As many workers as the consumer would need, limited by the cores; nothing if there can be no more."""
    workers, cores, threads = figures.setup.workers, figures.setup.cores, figures.setup.threads
    if threads:
        if threads < cores:
            yield f"num_threads={cores}"
    elif workers == 0:
        # They would make batches while the consumer works.
        needed = figures.waiting_seconds / figures.consuming_seconds if figures.consuming_seconds else math.inf
        yield f"num_workers={max(1, math.ceil(min(needed, cores)))}"
    elif workers is not None:
        needed = workers / (1 - figures.wait_share) if figures.wait_share < 1 else math.inf
        if (extra := math.ceil(min(needed, cores)) - workers) > 0:
            yield f"{extra} more worker{'s' * (extra > 1)}"


def _postprocessing(figures: Figures) -> float:
    """The share of the waiting in which the consumer's process postprocessed batches."""
    return max(0.0, 1 - figures.collecting_seconds / figures.waiting_seconds) if figures.waiting_seconds > 0 else 0.0


def _off_processor(figures: Figures) -> float:
    """The share of the workers' busy time in which they were on no core; 0 if it is unknown."""
    if figures.setup.threads:
        return 0.0
    return max(0.0, 1 - figures.processor_seconds / figures.busy_seconds) if figures.busy_seconds > 0 else 0.0


def _waits_for_disk(figures: Figures) -> bool:
    share = max(_share(figures.disk_bytes, figures.read_bytes), _share(figures.disk_faults, figures.samples))
    # Some file systems count neither bytes nor faults. There, a wait shows only as time off the processor.
    signs = share >= _FROM_DISK, figures.stage_shares.get("read", 0) >= 0.5, _off_processor(figures) >= _OFF
    return sum(signs) >= 2


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float(part > 0)


def _cores(figures: Figures) -> str:
    return f"{figures.setup.cores} core{'s' * (figures.setup.cores > 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _either(parts: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
