"""packtrain's Loader against torch's DataLoader: images per second, time to the first batch, processor time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import COPIES, PACKTRAIN, TORCH, TORCH_PILLOW, UNCHECKED
from benchmarks.loaders import PACE, PACED_SECONDS, SECONDS, WARM_UP
from benchmarks.measure import alternate, kind_of, medians, pillow_build, print_table, real_list, scratch, target
from benchmarks.peers.common import BATCH, WORKERS
from benchmarks.rounds import REPETITIONS, Field, ratios_of, run
from benchmarks.workloads import LINES, QUICK_LINES, WORKLOADS, prepare

CASES: Final = {"jpeg": WORKLOADS["jpeg"], "raw": WORKLOADS["raw-crop"], "square": WORKLOADS["raw-square"]}
CONTESTANTS: Final = {
    "jpeg": (PACKTRAIN, TORCH, TORCH_PILLOW),
    "raw": (PACKTRAIN, UNCHECKED, TORCH, COPIES),
    "square": (PACKTRAIN, UNCHECKED, TORCH, COPIES),
}
LEAST: Final = {
    "jpeg": {TORCH: 1.8, TORCH_PILLOW: 2.4},
    "raw": {TORCH: 6.0, COPIES: 1.0},
    "square": {TORCH: 6.0, COPIES: 1.0},
}
"""By what factor packtrain should be faster than each."""
QUICK_SECONDS: Final = 1.0


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of every case, and for JPEGs the first batch, for raw crops the consumer's processor time."""
    images = real_list()
    repetitions, seconds, lines = (1, QUICK_SECONDS, QUICK_LINES) if quick else (REPETITIONS, None, LINES)
    with scratch() as folder:
        described = {case: prepare(workload, images, folder / case, lines) for case, workload in CASES.items()}
        fields = {case: Field(names, gpu=False) for case, names in CONTESTANTS.items()}
        rates = {
            case: field.rates(CASES[case], folder / case, repetitions=repetitions, seconds=seconds)
            for case, field in fields.items()
        }
        both = (PACKTRAIN, TORCH)
        first = alternate({name: partial(_first, name, folder / "jpeg") for name in both}, repetitions)
        paced = {name: run(name, "pace", "raw", folder / "raw") for name in both}
        output = kind_of(folder)
    until_first = medians(first)
    over = {case: ratios_of(samples) for case, samples in rates.items()}
    return {
        **pillow_build(),
        "input": described,
        "output": output,
        "settings": _settings(repetitions),
        "contestants": {name: answer for field in fields.values() for name, answer in field.contestants.items()},
        "missing": {name: reason for field in fields.values() for name, reason in field.missing.items()},
        "images_per_second": rates,
        "median_images_per_second": {case: medians(samples) for case, samples in rates.items()},
        "ratios": over,
        "first_batch_seconds": first,
        "median_first_batch_seconds": until_first,
        "paced": paced,
        "targets": [
            *_rate_targets(over),
            target("packtrain: first batch after, s", until_first[PACKTRAIN], most=0.5),
            target(
                f"packtrain: main process at {PACE:,} images/s, % of a core",
                paced[PACKTRAIN]["percent_of_a_core"],
                most=5,
            ),
        ],
    }


def show(result: dict[str, Any]) -> None:
    for case, names in CONTESTANTS.items():
        rows = []
        for name in names:
            if name in result["missing"]:
                rows.append([name, "not installed", ""])
                continue
            speed = result["median_images_per_second"][case][name]
            rows.append([name, f"{speed:,.0f}", f"{result['ratios'][case][name]:.2f}"])
        print_table([CASES[case].title, "images/s", "packtrain over it"], rows)
        print()
    rows = [
        [
            name,
            f"{1000 * result['median_first_batch_seconds'][name]:.0f}",
            f"{paced['percent_of_a_core']:.2f}",
            f"{paced['images_per_second']:,.0f}",
        ]
        for name, paced in result["paced"].items()
    ]
    print_table(["", "first batch, ms", f"% of a core at {PACE:,} images/s", "images/s there"], rows)


def _first(name: str, folder: Path) -> float:
    return float(run(name, "first", "jpeg", folder)["seconds"])


def _settings(repetitions: int) -> dict[str, Any]:
    return {
        "batch_size": BATCH,
        "workers": WORKERS,
        "warm_up_batches": WARM_UP,
        "seconds": SECONDS,
        "paced_seconds": PACED_SECONDS,
        "repetitions": repetitions,
        "order": "alternating, each in a fresh process",
        "resize": {case: workload.store.resize for case, workload in CASES.items() if workload.raw},
    }


def _rate_targets(over: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    if pillow_build()["variant"] != "pillow-simd":
        return []
    return [
        target(f"{CASES[case].title}: images/s over {name}", over[case][name], least=least)
        for case, bounds in LEAST.items()
        for name, least in bounds.items()
        if name in over[case]
    ]
