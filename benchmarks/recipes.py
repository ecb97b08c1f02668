"""The transforms that people train with: torchvision's over loose files, and the same ones behind packtrain's crop.

On one side torch's DataLoader reads the files as ImageFolder does, and every transform is torchvision's. On the other
side packtrain's Loader reads a crop-ready tar dataset, crop, resize and flip are packtrain's, and whatever follows is
torchvision's as before. The more time a recipe spends in what follows, the smaller is packtrain's lead.

    python -m benchmarks.recipes CONTESTANT RECIPE FOLDER SECONDS

measures one side once, in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, PACKTRAIN, TORCH
from benchmarks.loaders import rate, versions
from benchmarks.measure import alternate, child, kind_of, medians, pillow_build, print_table, ratio, real_list, scratch
from benchmarks.peers.common import BATCH, PACKED, SIDE, WORKERS, Batch, files
from benchmarks.torchvision_import import import_torchvision
from benchmarks.workloads import LINES, QUICK_LINES, WORKLOADS, prepare

REPETITIONS: Final = 5
WARM_UP: Final = 8
SECONDS: Final = 3.0
QUICK_SECONDS: Final = 1.0

MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Recipe:
    """What images go through.

    Attributes:
        title: Its line in the table.
        after: Makes the transforms behind the crop, from the module `torchvision.transforms`.
        dtype: What the images of a batch are.
        training: True for RandomResizedCrop(224) and a flip; False for Resize(256) and CenterCrop(224).
    """

    title: str
    after: Callable[[Any], list[Any]]
    dtype: str = "float32"
    training: bool = True


def _tensor(vision: Any) -> list[Any]:
    return [vision.ToTensor(), vision.Normalize(MEAN, STD)]


def _erased(vision: Any) -> list[Any]:
    return [*_tensor(vision), vision.RandomErasing(0.1)]


def _simclr(vision: Any) -> list[Any]:
    jitter = vision.RandomApply([vision.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    blur = vision.RandomApply([vision.GaussianBlur(23)], p=0.5)
    return [jitter, vision.RandomGrayscale(p=0.2), blur, vision.ToTensor()]


RECIPES: Final = {
    "bytes": Recipe("uint8, nothing else", lambda vision: [], "uint8"),
    "tensor": Recipe("ToTensor, Normalize", _tensor),
    "trivial-augment": Recipe(
        "TrivialAugmentWide, ToTensor, Normalize, RandomErasing(0.1)",
        lambda vision: [vision.TrivialAugmentWide(), *_erased(vision)],
    ),
    "rand-augment": Recipe(
        "RandAugment(2, 9), ToTensor, Normalize, RandomErasing(0.1)",
        lambda vision: [vision.RandAugment(2, 9), *_erased(vision)],
    ),
    "auto-augment": Recipe("AutoAugment, ToTensor, Normalize", lambda vision: [vision.AutoAugment(), *_tensor(vision)]),
    "color-jitter": Recipe(
        "ColorJitter(0.4, 0.4, 0.4), ToTensor, Normalize",
        lambda vision: [vision.ColorJitter(0.4, 0.4, 0.4), *_tensor(vision)],
    ),
    "simclr": Recipe("SimCLR: ColorJitter with hue, RandomGrayscale, GaussianBlur(23), ToTensor", _simclr),
    "validation": Recipe("validation: Resize(256), CenterCrop(224), uint8", lambda vision: [], "uint8", training=False),
}
SIDES: Final = (PACKTRAIN, TORCH)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of both sides at every recipe; all recipes take turns in each round."""
    repetitions, seconds = (1, QUICK_SECONDS) if quick else (REPETITIONS, SECONDS)
    with scratch() as outer:
        folder, output = outer / "data", kind_of(outer)
        described = prepare(WORKLOADS["jpeg"], real_list(), folder, QUICK_LINES if quick else LINES)
        cases = {(recipe, side): partial(_rate, side, recipe, folder, seconds) for recipe in RECIPES for side in SIDES}
        # Each process warms up by itself.
        samples = alternate(cases, repetitions, warm_up=0)
    rates = {recipe: {side: samples[recipe, side] for side in SIDES} for recipe in RECIPES}
    return {
        **pillow_build(),
        "input": described,
        "output": output,
        "settings": {
            "batch_size": BATCH,
            "workers": WORKERS,
            "warm_up_batches": WARM_UP,
            "seconds": seconds,
            "repetitions": repetitions,
            "order": "alternating, each in a fresh process",
        },
        "contestants": {side: versions(CONTESTANTS[side]) for side in SIDES},
        "images_per_second": rates,
        "median_images_per_second": {recipe: medians(sides) for recipe, sides in rates.items()},
        "ratios": {recipe: ratio(sides[PACKTRAIN], sides[TORCH]) for recipe, sides in rates.items()},
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rows = [
        [RECIPES[recipe].title, *(f"{rates[side]:,.0f}" for side in SIDES), f"{result['ratios'][recipe]:.2f}"]
        for recipe, rates in result["median_images_per_second"].items()
    ]
    print_table([f"images/s; after RandomResizedCrop({SIDE}) and flip", *SIDES, "packtrain over it"], rows)


def batches(side: str, recipe: Recipe, folder: Path) -> Iterator[Batch]:
    """An endless stream of one side's batches."""
    return (_packtrain if side == PACKTRAIN else _torch)(recipe, folder, import_torchvision().transforms)


def _packtrain(recipe: Recipe, folder: Path, vision: Any) -> Iterator[Batch]:
    from benchmarks.peers.packtrain import batches, repeated
    from packtrain import open_dataset
    from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

    before = [RandomResizedCrop(SIDE), RandomHorizontalFlip()] if recipe.training else [Resize(256), CenterCrop(SIDE)]
    return batches(repeated(open_dataset(folder / PACKED, [*before, *recipe.after(vision)])))


def _torch(recipe: Recipe, folder: Path, vision: Any) -> Iterator[Batch]:
    import numpy as np
    import torch

    from benchmarks.peers.torch_loader import Files, batches

    training = [vision.RandomResizedCrop(SIDE), vision.RandomHorizontalFlip()]
    before = training if recipe.training else [vision.Resize(256), vision.CenterCrop(SIDE)]
    # As in peers/vision.py: this collates faster than what PILToTensor returns.
    after = recipe.after(vision) or [np.array, torch.from_numpy]
    return batches(Files(files(folder), vision.Compose([*before, *after])))


def _rate(side: str, recipe: str, folder: Path, seconds: float) -> float:
    return float(child("recipes", side, recipe, folder, seconds)["images_per_second"])


def main() -> None:
    side, recipe, folder, seconds = sys.argv[1:]
    chosen = RECIPES[recipe]
    found = rate(batches(side, chosen, Path(folder)), WARM_UP, float(seconds), dtype=chosen.dtype)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
