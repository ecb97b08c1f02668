"""packtrain's DaliLoader against DALI's own readers, and packtrain's Loader, all on two cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import DALI, DALI_LOADER, DALI_TARS, DALI_VERBATIM, PACKTRAIN
from benchmarks.measure import Unmeasurable, medians, print_table, ratio, real_list, target
from benchmarks.peers.common import SHORT, SIDE, VERBATIM, WORKERS
from benchmarks.rounds import run, take_turns
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads import prepare as prepare_workload
from packtrain import PackOptions, StoreOptions, pack

SECONDS: Final = 4.0
STREAMS: Final = {
    "jpeg": f"RandomResizedCrop({SIDE}), flip",
    "evaluation": f"Resize({SHORT}), CenterCrop({SIDE})",
}
"""Titles of the streams of the contestants' modules."""
SIDES: Final = {
    PACKTRAIN: "packtrain, Loader: crop-ready tar",
    DALI_LOADER: "packtrain, DaliLoader: crop-ready tar",
    DALI_VERBATIM: "packtrain, DaliLoader: verbatim tar",
    DALI_TARS: "DALI's webdataset reader: crop-ready tar, .idx",
    DALI: "DALI's file reader: loose files",
}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of all sides at both streams; all of them take turns in each round."""
    cases = [(stream, side) for stream in STREAMS for side in SIDES]
    with on_cores(WORKERS):
        samples, result = take_turns(cases, partial(prepare, real_list()), _rate, quick=quick, seconds=SECONDS)
        if any(case not in samples for case in cases):
            raise Unmeasurable("DALI is not installed: python -m benchmarks.environments dali")
        contestants = {side: run(side, "versions") for side in SIDES}
    rates = {stream: {side: samples[stream, side] for side in SIDES} for stream in STREAMS}
    training = rates["jpeg"]
    lead = {
        stream: {side: ratio(figures[PACKTRAIN], figures[side]) for side in SIDES} for stream, figures in rates.items()
    }
    return {
        **result,
        "settings": {**result["settings"], "cores": WORKERS},
        "contestants": contestants,
        "images_per_second": rates,
        "median_images_per_second": {stream: medians(figures) for stream, figures in rates.items()},
        "ratios": lead,
        "targets": [
            target(
                "DaliLoader over DALI's file reader, training", ratio(training[DALI_LOADER], training[DALI]), least=1
            ),
            # DaliLoader gets packtrain's cuts and resize, so that Loader is not as far ahead of it.
            target(f"Loader over {SIDES[DALI]}, training", lead["jpeg"][DALI], least=2.0),
        ],
    }


def show(result: dict[str, Any]) -> None:
    for stream, title in STREAMS.items():
        rates, lead = result["median_images_per_second"][stream], result["ratios"][stream]
        rows = [[SIDES[side], f"{rate:,.0f}", f"{lead[side]:.2f}"] for side, rate in rates.items()]
        print_table([f"{title}; {WORKERS} cores", "images/s", "Loader over it"], rows)
        print()


def prepare(images: Path, folder: Path, lines: int) -> dict[str, Any]:
    """Writes the loose files, packtrain's crop-ready dataset of them, and one of the unchanged files.

    Args:
        images: The list of real images.
        folder: Where to write; it must not exist.
        lines: The list is repeated to about this length.

    Returns:
        A description of the input for the result file.
    """
    described = prepare_workload(WORKLOADS["jpeg"], images, folder, lines)
    pack(folder / "train.txt", folder / VERBATIM, PackOptions(store=StoreOptions(store="verbatim"), seed=None))
    return described


@contextmanager
def on_cores(count: int) -> Iterator[Sequence[int]]:
    """Has this process, and those that it starts, run on so many cores, or on all if there are no more."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)[:count]
    os.sched_setaffinity(0, cores)
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, before)


def _rate(case: tuple[str, str], folder: Path, seconds: float) -> float:
    stream, side = case
    return float(run(side, "rate", stream, folder, seconds)["images_per_second"])
