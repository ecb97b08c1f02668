"""The table of the DALI recipe that packtrain came from: images per second of training steps, by back end.

With a GPU: the loaders alone, ResNet-18 and ShuffleNet v2 0.5, in half precision. Without one: the loaders that need
none, alone and with the steps of a small network.
"""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.environments import interpreter, why_missing
from benchmarks.measure import NotInstalled, child, medians, print_table, ratio, real_list
from benchmarks.rounds import has_gpu, take_turns
from benchmarks.training import ALONE, BACKENDS, BATCH, NETWORKS, ON_GPU, WARM_UP
from benchmarks.workloads import WORKLOADS, prepare

SECONDS: Final = {"cpu": 3.0, "cuda": 1.0}
"""Seconds for which each network is measured; a GPU takes as many images in a third of the time."""
FIRST: Final = "packtrain"
TITLES: Final = {
    ALONE: "loader alone",
    "small": "a network of two layers",
    "resnet18": "ResNet-18",
    "shufflenet_v2_x0_5": "ShuffleNet v2 0.5",
}
AUTHORS: Final = {"dali-gpu": "3,910", "dali-cpu": "1,816", "files": "1,058"}
"""Images per second with ShuffleNet v2 0.5 that the author of the recipe measured on a V100, with Pillow-SIMD."""


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of every back end; all of them take turns in each round."""
    device = "cuda" if has_gpu() else "cpu"
    names = [name for name in BACKENDS if device == "cuda" or name not in ON_GPU]
    missing: dict[str, str] = {} if device == "cuda" else dict.fromkeys(ON_GPU, "no GPU here")

    def measured(name: str, folder: Path, seconds: float) -> dict[str, float]:
        try:
            answer: dict[str, float] = training_child("rate", name, folder, device, seconds)
        except NotInstalled as error:
            missing[name] = why_missing(environment_of(name)) if name.startswith("dali") else f"{error} is missing"
            raise
        except RuntimeError as error:
            missing[name] = f"failed: {str(error).strip().splitlines()[-1]}"
            raise NotInstalled(name) from error
        return answer

    samples, result = take_turns(
        names, partial(prepare, WORKLOADS["jpeg"], real_list()), measured, quick=quick, seconds=SECONDS[device]
    )
    rates = {
        network: {name: [figures[network] for figures in rounds] for name, rounds in samples.items()}
        for network in NETWORKS[device]
    }
    return {
        **result,
        "settings": {**result["settings"], "batch_size": BATCH[device], "warm_up_batches": WARM_UP, "device": device},
        # Figures with a GPU do not replace those without one.
        **({"gpu": gpu_name(), "variant": f"gpu-{result['variant']}"} if device == "cuda" else {}),
        "missing": missing,
        "images_per_second": rates,
        "median_images_per_second": {network: medians(figures) for network, figures in rates.items()},
        "ratios": {
            network: {name: ratio(figures[FIRST], figures[name]) for name in figures}
            for network, figures in rates.items()
            if FIRST in figures
        },
        "v100_of_the_recipe_s_author": AUTHORS,
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rates = result["median_images_per_second"]
    rows = [
        [
            title,
            *(f"{rates[network][name]:,.0f}" if name in rates[network] else "-" for network in rates),
            _author(name),
        ]
        for name, title in BACKENDS.items()
    ]
    where = result.get("gpu", "no GPU")
    print_table([f"images/s; {where}", *(TITLES[network] for network in rates), "V100 of the recipe's author"], rows)
    print("\nThe last column is for orientation: ShuffleNet v2 0.5, measured by somebody else.")
    for name, reason in result["missing"].items():
        print(f"- {BACKENDS[name]}: {reason.splitlines()[0]}")


def _author(name: str) -> str:
    return AUTHORS.get(name, "-")


def training_child(what: str, backend: str, *arguments: object) -> Any:
    """Runs `training` in a process of its own, in the interpreter of the back end.

    Raises:
        NotInstalled: Something is not installed there.
        RuntimeError: It failed.
    """
    return child("training", what, backend, *arguments, python=interpreter(environment_of(backend)))


def environment_of(backend: str) -> str | None:
    """The name of the environment of a back end; None for packtrain's own."""
    return "dali" if backend.startswith("dali") else None


def gpu_name() -> str:
    """The name of the GPU, as the driver gives it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
