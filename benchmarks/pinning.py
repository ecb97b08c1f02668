"""Pinned against unpinned memory: uint8 batches of packtrain's Loader, copied to a GPU with non_blocking.

The same few batches are handed out again and again, so that no decoding is measured. The copies are measured alone, and
next to the training steps of a ResNet-18.

    python -m benchmarks.pinning SIDE FOLDER SECONDS

measures one side once, in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.backends import gpu_name
from benchmarks.measure import Unmeasurable, child, medians, print_table, ratio, real_list
from benchmarks.peers.common import SEED, SIDE, WORKERS
from benchmarks.peers.packtrain import jpeg_dataset
from benchmarks.rounds import has_gpu, take_turns
from benchmarks.training import ALONE, MEAN, STD, Trainer, classes_of, wait
from benchmarks.workloads import WORKLOADS, prepare
from packtrain import Loader

SECONDS: Final = 1.0
BATCH: Final = 256
STEPS: Final = 16
"""Steps between two looks at the clock, and before it starts."""
BYTES: Final = 3 * SIDE * SIDE
"""Bytes of an image."""
NETWORK: Final = "resnet18"
MODES: Final = {ALONE: "copies alone", NETWORK: "copies and steps of ResNet-18"}
PINNED, UNPINNED = "pinned", "unpinned"
SIDES: Final = (PINNED, UNPINNED)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of both sides, in both modes.

    Raises:
        Unmeasurable: There is no GPU, or torch has no CUDA.
    """
    if not has_gpu():
        raise Unmeasurable(
            "no GPU here: torch pins memory only for one, so not even the cost of pinning can be measured"
        )
    samples, result = take_turns(
        SIDES, partial(prepare, WORKLOADS["jpeg"], real_list()), _rates, quick=quick, seconds=SECONDS
    )
    if set(samples) != set(SIDES):
        raise Unmeasurable("torch in this environment has no CUDA, or torchvision is missing")
    rates = {mode: {side: [figures[mode] for figures in samples[side]] for side in SIDES} for mode in MODES}
    return {
        **result,
        "gpu": gpu_name(),
        "settings": {**result["settings"], "batch_size": BATCH, "image_bytes": BYTES, "warm_up_batches": STEPS},
        "images_per_second": rates,
        "median_images_per_second": {mode: medians(figures) for mode, figures in rates.items()},
        "ratios": {mode: ratio(figures[PINNED], figures[UNPINNED]) for mode, figures in rates.items()},
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rows = [
        [
            MODES[mode],
            *(f"{rates[side]:,.0f}" for side in SIDES),
            *(f"{rates[side] * BYTES / 1e9:.2f}" for side in SIDES),
            f"{result['ratios'][mode]:.2f}",
        ]
        for mode, rates in result["median_images_per_second"].items()
    ]
    figures = [f"{side}, {unit}" for unit in ("images/s", "GB/s") for side in SIDES]
    print_table([result["gpu"], *figures, "pinned over unpinned"], rows)


def rates(side: str, folder: Path, least_seconds: float, device: torch.device) -> dict[str, float]:
    """Images per second of one side in every mode."""
    options: dict[str, Any] = {"shuffle": True, "seed": SEED, "num_workers": WORKERS}
    with Loader(jpeg_dataset(folder), BATCH, pin_memory=side == PINNED, **options) as loader, loader.headspace():
        batches = iter(loader)
        return {
            mode: _rate(batches, Trainer(mode, classes_of(folder), device), device, least_seconds) for mode in MODES
        }


def _rate(batches: Iterator[Any], trainer: Trainer, device: torch.device, least_seconds: float) -> float:
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) * 255 for values in (MEAN, STD))

    def steps() -> None:
        for images, labels in islice(batches, STEPS):
            copied = images.to(device, non_blocking=True)
            if trainer.learns:
                trainer.step((copied - mean) / std, labels)
        # A copy that is queued is not done.
        wait(device)

    steps()
    started, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < least_seconds:
        steps()
        count += STEPS
    return count * BATCH / seconds


def _rates(side: str, folder: Path, seconds: float) -> dict[str, float]:
    answer: dict[str, float] = child("pinning", side, folder, seconds)
    return answer


def main() -> None:
    side, folder, seconds = sys.argv[1:]
    if not torch.cuda.is_available():
        print(json.dumps({"missing": "torch with CUDA"}))
        return
    print(json.dumps(rates(side, Path(folder), float(seconds), torch.device("cuda"))), flush=True)


if __name__ == "__main__":
    main()
