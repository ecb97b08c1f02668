"""accimage and Pillow-SIMD against Pillow on one core: decode, crop, resize, flip. And Loader with accimage.

Each has an environment of its own; Pillow-SIMD is that of packtrain's.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import ACCIMAGE_LOADER, PACKTRAIN
from benchmarks.decoding import ACCIMAGE, LIBRARIES, PILLOW, PILLOW_SIMD
from benchmarks.environments import PEERS, interpreter, why_missing
from benchmarks.measure import NotInstalled, child, medians, print_table, ratio, real_list
from benchmarks.peers.common import SIDE
from benchmarks.rounds import run, take_turns
from benchmarks.workloads import WORKLOADS, prepare

SECONDS: Final = 4.0
LOADERS: Final = {PACKTRAIN: "packtrain, Loader", ACCIMAGE_LOADER: 'packtrain, Loader over decoder="accimage"'}
ENVIRONMENTS: Final = {PILLOW: "pillow", PILLOW_SIMD: None, ACCIMAGE: "accimage", ACCIMAGE_LOADER: "accimage"}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of each library, and of the loaders; all of them take turns in each round."""
    found: dict[str, str] = {}

    def measured(name: str, folder: Path, seconds: float) -> float:
        if name == ACCIMAGE_LOADER and ACCIMAGE not in found:
            raise NotInstalled(ACCIMAGE)
        if name in LOADERS:
            return float(run(name, "rate", "jpeg", folder, seconds)["images_per_second"])
        answer = child("decoding", name, folder, seconds, python=interpreter(ENVIRONMENTS[name]))
        found[name] = answer["version"]
        return float(answer["images_per_second"])

    samples, result = take_turns(
        (*LIBRARIES, *LOADERS), partial(prepare, WORKLOADS["jpeg"], real_list()), measured, quick=quick, seconds=SECONDS
    )
    missing = {name: _why_missing(name) for name in (*LIBRARIES, *LOADERS) if name not in samples}
    return {
        **result,
        "versions": found,
        "missing": missing,
        "images_per_second": samples,
        "median_images_per_second": medians(samples),
        "ratios": {
            name: ratio(samples[name], samples[base])
            for base, names in ((PILLOW, LIBRARIES), (PACKTRAIN, tuple(LOADERS)))
            for name in names
            if name in samples and base in samples
        },
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rates, over = result["median_images_per_second"], result["ratios"]
    heads = {
        PILLOW: (f"decode, crop, resize to {SIDE}, flip; one core", LIBRARIES),
        PACKTRAIN: ("whole loaders, two workers", tuple(LOADERS)),
    }
    for base, (title, names) in heads.items():
        rows = [
            [
                LOADERS.get(name, name),
                *(
                    (f"{rates[name]:,.0f}", f"{over[name]:.2f}" if name in over else "-")
                    if name in rates
                    else ("-", "-")
                ),
            ]
            for name in names
        ]
        print_table([title, "images/s", f"over {base}"], rows)
        print()
    for name, reason in result["missing"].items():
        print(f"- {name}: {reason.splitlines()[0]}")


def _why_missing(name: str) -> str:
    if name == PILLOW_SIMD:
        return "packtrain's environment has Pillow: make setup PILLOW=pillow-simd"
    if ENVIRONMENTS[name] == ACCIMAGE:
        return PEERS[ACCIMAGE].lacks()
    return why_missing(ENVIRONMENTS[name])
