"""Cost of an image on one core, by stage, in packtrain and in FFCV: why one is faster, and what cannot be saved.

packtrain: a loader without workers, bound to one core, as `loader.stats` sees it. FFCV: its compiled functions called
one after the other, without its loader, see `ffcv_stages`.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.contestants import FFCV, PACKTRAIN
from benchmarks.environments import interpreter
from benchmarks.measure import NotInstalled, alternate, child, kind_of, pillow_build, print_table, real_list, scratch
from benchmarks.peers.common import BATCH, PACKED, SEED, SIDE, WORKERS
from benchmarks.rounds import run
from benchmarks.workloads import WORKLOADS, prepare
from packtrain import Loader, concat, open_dataset
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

REPETITIONS: Final = 5
IMAGES: Final = 8_000
"""Images of a pass; the stages of a JPEG are timed for one in 32 of them."""
QUICK_IMAGES: Final = 1_280
COMPARED: Final = ("jpeg", "jpeg500", "raw256-rrc")
REST: Final = "everything else"


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Microseconds per image of each stage."""
    torch.set_num_threads(1)
    images, repetitions = real_list(), 1 if quick else REPETITIONS
    lines = len(images.read_text().splitlines())
    stages: dict[str, Any] = {}
    described: dict[str, Any] = {}
    with scratch() as outer:
        for name in COMPARED:
            workload, folder = WORKLOADS[name], outer / name
            described[name] = prepare(workload, images, folder, lines)
            count = QUICK_IMAGES if quick else IMAGES
            cases: dict[str, Callable[[], Mapping[str, float]]] = {PACKTRAIN: partial(stage_times, folder, count)}
            try:
                run(FFCV, "write", workload.stream, folder)
                python = interpreter("ffcv")
                cases[FFCV] = partial(child, "ffcv_stages", folder, workload.stream, python=python)
            except NotInstalled:
                pass
            stages[name] = alternate(cases, repetitions)
        output = kind_of(outer)
    return {
        **pillow_build(),
        "input": described,
        "output": output,
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating", "cores": 1},
        "microseconds_per_image": stages,
        "median_microseconds_per_image": {
            name: {contestant: _medians(figures) for contestant, figures in samples.items()}
            for name, samples in stages.items()
        },
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    for number, (name, middle) in enumerate(result["median_microseconds_per_image"].items()):
        names = dict.fromkeys(stage for figures in middle.values() for stage in figures)
        rows = [[stage, *(_shown(figures.get(stage)) for figures in middle.values())] for stage in names]
        sums = [sum(figures.values()) for figures in middle.values()]
        rows.append(["all", *(f"{total:.0f}" for total in sums)])
        rows.append([f"images/s of {WORKERS} such cores", *(f"{WORKERS * 1e6 / total:,.0f}" for total in sums)])
        print("\n" * (number > 0), end="")
        print_table([f"{WORKLOADS[name].title}: us per image", *middle], rows)


def stage_times(folder: Path, count: int) -> dict[str, float]:
    """Microseconds per image of each stage that a loader passes through, in this process, on one core.

    Args:
        folder: What `prepare` wrote.
        count: Images of the pass; another pass comes before it and is not timed.
    """
    dataset = open_dataset(folder / PACKED, [RandomResizedCrop(SIDE), RandomHorizontalFlip()])
    repeated = concat([dataset] * (count // len(dataset) + 1)).subset(range(count))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with Loader(repeated, BATCH, shuffle=True, num_workers=0, seed=SEED) as loader:
            for _ in range(2):
                loader.stats.reset()
                for _held in loader:
                    pass
            stats = loader.stats.total
    finally:
        os.sched_setaffinity(0, allowed)
    found = {stage: seconds / stats.samples * 1e6 for stage, seconds in stats.stage_seconds.items() if seconds}
    found[REST] = max(0.0, stats.busy_seconds / stats.samples * 1e6 - sum(found.values()))
    return found


def _medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each.get(name, 0.0) for each in figures) for name in figures[0]}


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
