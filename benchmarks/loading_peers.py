"""Batches per second: packtrain's Loader and all peers that are installed."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.loading import (
    PACKTRAIN,
    UNCHECKED,
    contestants,
    missing,
    prepare,
    rates_of,
    ratios_of,
    run_child,
    settings,
    show_rates,
)
from benchmarks.measure import NotInstalled, kind_of, medians, pillow_build, real_list, scratch, target

PEERS: Final = {
    "jpeg": ("webdataset", "mosaicml-streaming", "litdata", "DALI", "FFCV", "SPDL"),
    "raw": (UNCHECKED, "webdataset", "mosaicml-streaming", "litdata", "FFCV"),
}


def measure() -> dict[str, Any]:
    named = {case: (PACKTRAIN, *names) for case, names in PEERS.items()}
    with scratch() as folder:
        described = prepare(real_list(), folder)
        for case, names in PEERS.items():
            for name in set(names) - {UNCHECKED}:
                try:
                    run_child("write", name, case, folder)
                except NotInstalled:
                    continue
        rates = rates_of(named, folder)
        output = kind_of(folder)
    over = {case: ratios_of(samples) for case, samples in rates.items()}
    return {
        **pillow_build(),
        "input": described,
        "output": output,
        "settings": settings(),
        "contestants": contestants(named),
        "missing": missing(named, rates),
        "images_per_second": rates,
        "median_images_per_second": {case: medians(samples) for case, samples in rates.items()},
        "ratios": over,
        "targets": [
            target(f"{case}: images/s over the fastest peer", min(others), least=1)
            for case, ratios in over.items()
            if (others := [factor for name, factor in ratios.items() if name not in (PACKTRAIN, UNCHECKED)])
        ],
    }


def show(result: dict[str, Any]) -> None:
    show_rates(result, {case: (PACKTRAIN, *names) for case, names in PEERS.items()})
