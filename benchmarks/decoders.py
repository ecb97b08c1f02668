"""accimage and Pillow-SIMD against Pillow on one core: decode, crop, resize, flip.

Each has an environment of its own; Pillow-SIMD is that of packtrain's.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.decoding import ACCIMAGE, LIBRARIES, PILLOW, PILLOW_SIMD
from benchmarks.environments import PEERS, interpreter, why_missing
from benchmarks.measure import child, medians, print_table, ratio, real_list
from benchmarks.peers.common import SIDE
from benchmarks.rounds import take_turns
from benchmarks.workloads import WORKLOADS, prepare

SECONDS: Final = 4.0
ENVIRONMENTS: Final = {PILLOW: "pillow", PILLOW_SIMD: None, ACCIMAGE: "accimage"}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of each library; all of them take turns in each round."""
    found: dict[str, str] = {}

    def measured(name: str, folder: Path, seconds: float) -> float:
        answer = child("decoding", name, folder, seconds, python=interpreter(ENVIRONMENTS[name]))
        found[name] = answer["version"]
        return float(answer["images_per_second"])

    samples, result = take_turns(
        LIBRARIES, partial(prepare, WORKLOADS["jpeg"], real_list()), measured, quick=quick, seconds=SECONDS
    )
    missing = {name: _why_missing(name) for name in LIBRARIES if name not in samples}
    return {
        **result,
        "versions": found,
        "missing": missing,
        "images_per_second": samples,
        "median_images_per_second": medians(samples),
        "ratios": {name: ratio(rates, samples[PILLOW]) for name, rates in samples.items() if PILLOW in samples},
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rates, over = result["median_images_per_second"], result["ratios"]
    rows = [
        [
            name,
            *((f"{rates[name]:,.0f}", f"{over[name]:.2f}" if name in over else "-") if name in rates else ("-", "-")),
        ]
        for name in LIBRARIES
    ]
    print_table([f"decode, crop, resize to {SIDE}, flip; one core", "images/s", f"over {PILLOW}"], rows)
    print()
    for name, reason in result["missing"].items():
        print(f"- {name}: {reason.splitlines()[0]}")


def _why_missing(name: str) -> str:
    if name == PILLOW_SIMD:
        return "packtrain's environment has Pillow: make setup PILLOW=pillow-simd"
    if ENVIRONMENTS[name] == ACCIMAGE:
        return PEERS[ACCIMAGE].lacks()
    return why_missing(ENVIRONMENTS[name])
