"""Ten views of each image, as DINO trains with: two crops of 224 pixels and eight of 96.

On one side torch's DataLoader reads loose files, decodes each image once, makes its views by torchvision's v2
transforms and collates them by `default_collate`. On the other side packtrain's Loader reads a crop-ready tar dataset
with packtrain's `Views`. Both make uint8 batches with a tensor for each view.

    python -m benchmarks.views CONTESTANT FOLDER SECONDS

measures one side once, in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, PACKTRAIN, TORCH
from benchmarks.loaders import rate, versions
from benchmarks.measure import child, medians, print_table, ratio, real_list, target
from benchmarks.peers.common import PACKED, SIDE, Batch, files
from benchmarks.rounds import WARM_UP, take_turns
from benchmarks.torchvision_import import import_torchvision
from benchmarks.workloads import WORKLOADS, prepare

SECONDS: Final = 4.0

SMALL: Final = 96
GLOBAL_SCALE: Final = (0.4, 1.0)
LOCAL_SCALE: Final = (0.05, 0.4)
GLOBALS: Final = 2
LOCALS: Final = 8
SIDES: Final = (PACKTRAIN, TORCH)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of both sides; each image has ten views."""
    write = partial(prepare, WORKLOADS["jpeg"], real_list())
    samples, result = take_turns(SIDES, write, _rate, quick=quick, seconds=SECONDS)
    lead = ratio(samples[PACKTRAIN], samples[TORCH])
    return {
        **result,
        "views": [SIDE] * GLOBALS + [SMALL] * LOCALS,
        "contestants": {side: versions(CONTESTANTS[side]) for side in SIDES},
        "images_per_second": samples,
        "median_images_per_second": medians(samples),
        "ratio": lead,
        "targets": [target("packtrain over torch's DataLoader, ten views of each image", lead, least=2.0)],
    }


def show(result: dict[str, Any]) -> None:
    rates = result["median_images_per_second"]
    rows = [[side, f"{rates[side]:,.0f}", f"{rates[PACKTRAIN] / rates[side]:.2f}"] for side in SIDES]
    title = f"{GLOBALS} views of {SIDE} and {LOCALS} of {SMALL} pixels"
    print_table([title, "images/s", "packtrain over it"], rows)


def batches(side: str, folder: Path) -> Iterator[tuple[Any, Any]]:
    """An endless stream of one side's batches: a sequence of tensors, one per view, and labels."""
    return _packtrain(folder) if side == PACKTRAIN else _torch(folder)


def _packtrain(folder: Path) -> Iterator[tuple[Any, Any]]:
    from benchmarks.peers.packtrain import batches, repeated
    from packtrain import open_dataset
    from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop, Views

    large = [RandomResizedCrop(SIDE, GLOBAL_SCALE), RandomHorizontalFlip()]
    small = [RandomResizedCrop(SMALL, LOCAL_SCALE), RandomHorizontalFlip()]
    return batches(repeated(open_dataset(folder / PACKED, Views([large] * GLOBALS + [small] * LOCALS))))


def _torch(folder: Path) -> Iterator[tuple[Any, Any]]:
    import numpy as np
    import torch

    from benchmarks.peers.torch_loader import Files, batches

    import_torchvision()
    from torchvision.transforms import v2

    def view(side: int, scale: tuple[float, float]) -> Callable[[Any], Any]:
        # As in peers/vision.py: this collates faster than what PILToTensor returns.
        crop = v2.RandomResizedCrop(side, scale=scale)
        made: Callable[[Any], Any] = v2.Compose([crop, v2.RandomHorizontalFlip(), np.array, torch.from_numpy])
        return made

    views = [view(SIDE, GLOBAL_SCALE)] * GLOBALS + [view(SMALL, LOCAL_SCALE)] * LOCALS
    return batches(Files(files(folder), lambda image: tuple(make(image) for make in views)))


def first_views(stream: Iterator[tuple[Any, Any]]) -> Iterator[Batch]:
    """The batches with the first of their views only, which is as large as the images of the other benchmarks.

    Raises:
        RuntimeError: A batch has other views than it should.
    """
    for views, labels in stream:
        sides = [sorted(view.shape[1:])[1] for view in views]
        if sides != [SIDE] * GLOBALS + [SMALL] * LOCALS:
            raise RuntimeError(f"a batch with views of {sides} pixels")
        yield views[0], labels


def _rate(side: str, folder: Path, seconds: float) -> float:
    return float(child("views", side, folder, seconds)["images_per_second"])


def main() -> None:
    side, folder, seconds = sys.argv[1:]
    print(json.dumps(rate(first_views(batches(side, Path(folder))), WARM_UP, float(seconds))), flush=True)


if __name__ == "__main__":
    main()
