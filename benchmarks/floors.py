"""What an image costs one core in packtrain and in FFCV, by stage: why the one is faster, and what cannot be saved."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import FFCV
from benchmarks.crops import one_thread
from benchmarks.environments import interpreter
from benchmarks.measure import (
    NotInstalled,
    alternate,
    child,
    kind_of,
    pillow_build,
    print_table,
    real_list,
    scratch,
)
from benchmarks.peers.common import PACKED, SIDE, WORKERS
from benchmarks.profile_decode import stage_times
from benchmarks.rounds import run
from benchmarks.workloads import WORKLOADS, prepare
from packtrain import open_dataset
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

REPETITIONS: Final = 5
COMPARED: Final = ("jpeg", "jpeg500", "raw256-rrc")
OURS: Final = "packtrain"


def measure() -> dict[str, Any]:
    one_thread()
    images = real_list()
    lines = len(images.read_text().splitlines())
    stages: dict[str, Any] = {}
    described: dict[str, Any] = {}
    with scratch() as outer:
        for name in COMPARED:
            workload, folder = WORKLOADS[name], outer / name
            described[name] = prepare(workload, images, folder, lines)
            cases: dict[str, Callable[[], Mapping[str, float]]] = {OURS: partial(_ours, folder)}
            try:
                run(FFCV, "write", workload.stream, folder)
                python = interpreter("ffcv")
                cases[FFCV] = partial(child, "ffcv_stages", folder, workload.stream, python=python)
            except NotInstalled:
                pass
            stages[name] = alternate(cases, REPETITIONS)
        output = kind_of(outer)
    return {
        **pillow_build(),
        "input": described,
        "output": output,
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating", "cores": 1},
        "microseconds_per_image": stages,
        "median_microseconds_per_image": {
            name: {who: _medians(figures) for who, figures in samples.items()} for name, samples in stages.items()
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


def _ours(folder: Path) -> dict[str, float]:
    """Microseconds per image of each stage, in one process on one core."""
    allowed = os.sched_getaffinity(0)
    dataset = open_dataset(folder / PACKED, [RandomResizedCrop(SIDE), RandomHorizontalFlip()])
    os.sched_setaffinity(0, {min(allowed)})
    try:
        for row in range(len(dataset)):
            dataset[row]
        return stage_times(dataset)
    finally:
        os.sched_setaffinity(0, allowed)


def _medians(figures: list[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
