"""The recipes that people train with, pasted unchanged: torchvision's and timm's, over loose files and packtrain.

On one side files are read as ImageFolder does, and every transform runs as its library made it. On the other side the
same transforms are given to `open_dataset` over a crop-ready tar dataset, and packtrain takes them apart as far as it
knows them. Both are measured twice: sample by sample on one core, and by whole loaders with two workers.

    python -m benchmarks.recipes MODE CONTESTANT RECIPE FOLDER SECONDS

measures one side once, in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from PIL import Image, ImageOps

from benchmarks.contestants import CONTESTANTS, PACKTRAIN, TORCH
from benchmarks.loaders import rate, versions
from benchmarks.measure import child, medians, pillow_build, print_table, ratio, real_list, target
from benchmarks.peers.common import PACKED, SEED, SIDE, Batch, files
from benchmarks.rounds import WARM_UP, take_turns
from benchmarks.torchvision_import import import_torchvision
from benchmarks.workloads import WORKLOADS, prepare

SECONDS: Final = 3.0
WARM_UP_SAMPLES: Final = 64
SAMPLES_AT_ONCE: Final = 32
"""Samples between two looks at the clock."""

MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
SIDES: Final = (PACKTRAIN, TORCH)
MODES: Final = {"one_core": "one core, sample by sample", "loaders": "whole loaders, two workers"}
LEAST: Final = {"pillow-simd": 2.0, "pillow": 2.5}
"""By what factor packtrain should be faster, by the Pillow that both sides have."""
LEAST_EVALUATING: Final = 2.0


@dataclass(frozen=True)
class Recipe:
    """Transforms of the images.

    Attributes:
        title: Its line in the table.
        transform: Makes the transforms, from the module `torchvision.transforms`.
        dtype: What the images of a batch are.
        training: True for training, False for evaluation.
        bound: True if packtrain's lead has a target.
    """

    title: str
    transform: Callable[[Any], list[Any]]
    dtype: str = "float32"
    training: bool = True
    bound: bool = True


class Samples(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


def _crop(vision: Any) -> list[Any]:
    return [vision.RandomResizedCrop(SIDE), vision.RandomHorizontalFlip()]


def _tensor(vision: Any) -> list[Any]:
    return [vision.ToTensor(), vision.Normalize(MEAN, STD)]


def _evaluation(vision: Any) -> list[Any]:
    return [vision.Resize(256), vision.CenterCrop(SIDE)]


def _augmented(name: str, *arguments: Any) -> Callable[[Any], list[Any]]:
    """A policy of torchvision, as in its reference recipes."""

    def transform(vision: Any) -> list[Any]:
        return [*_crop(vision), getattr(vision, name)(*arguments), *_tensor(vision), vision.RandomErasing(0.1)]

    return transform


def _simclr(vision: Any) -> list[Any]:
    jitter = vision.RandomApply([vision.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    return [*_crop(vision), jitter, vision.RandomGrayscale(0.2), vision.GaussianBlur(23), *_tensor(vision)]


def _timm(vision: Any) -> list[Any]:
    data: Any = import_module("timm.data")
    # timm asks for 0 bits now and then. Before version 13, Pillow's answer was a black image; now it is an error.
    posterize = ImageOps.posterize
    ImageOps.posterize = lambda image, bits: posterize(image, max(bits, 1)) if bits else Image.new("RGB", image.size)
    return [data.create_transform(SIDE, is_training=True, auto_augment="rand-m9-mstd0.5-inc1")]


RECIPES: Final = {
    "bytes": Recipe("RandomResizedCrop, flip: uint8, nothing else", _crop, "uint8", bound=False),
    "tensor": Recipe(
        "RandomResizedCrop, flip, ToTensor, Normalize", lambda vision: [*_crop(vision), *_tensor(vision)], bound=False
    ),
    "trivial-augment": Recipe("... with TrivialAugmentWide, RandomErasing(0.1)", _augmented("TrivialAugmentWide")),
    "rand-augment": Recipe("... with RandAugment(2, 9), RandomErasing(0.1)", _augmented("RandAugment", 2, 9)),
    "auto-augment": Recipe(
        "... with AutoAugment", lambda vision: [*_crop(vision), vision.AutoAugment(), *_tensor(vision)]
    ),
    "color-jitter": Recipe(
        "... with ColorJitter(0.4, 0.4, 0.4)",
        lambda vision: [*_crop(vision), vision.ColorJitter(0.4, 0.4, 0.4), *_tensor(vision)],
    ),
    "simclr": Recipe("SimCLR: ... with ColorJitter and hue, RandomGrayscale, GaussianBlur(23)", _simclr),
    "timm": Recipe("timm: create_transform with rand-m9-mstd0.5-inc1", _timm),
    "validation": Recipe("evaluation: Resize(256), CenterCrop(224), uint8", _evaluation, "uint8", training=False),
    "evaluation": Recipe(
        "evaluation: Resize(256), CenterCrop(224), ToTensor, Normalize",
        lambda vision: [*_evaluation(vision), *_tensor(vision)],
        training=False,
    ),
}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of both sides at every recipe, in both modes; all of them take turns in each round."""
    cases = [(mode, recipe, side) for mode in MODES for recipe in RECIPES for side in SIDES]
    samples, result = take_turns(
        cases, partial(prepare, WORKLOADS["jpeg"], real_list()), _rate, quick=quick, seconds=SECONDS
    )
    # A recipe is left out if what it needs is not installed.
    recipes = [recipe for recipe in RECIPES if all(case in samples for case in cases if case[1] == recipe)]
    found = {mode: _figures({name: {s: samples[mode, name, s] for s in SIDES} for name in recipes}) for mode in MODES}
    return {
        **result,
        "contestants": {side: versions(CONTESTANTS[side]) for side in SIDES},
        "missing": sorted(set(RECIPES).difference(recipes)),
        **found,
        "targets": [
            target(f"{MODES[mode]}: {RECIPES[recipe].title}", found[mode]["ratios"][recipe], least=_least(recipe))
            for mode in MODES
            for recipe in recipes
            if RECIPES[recipe].bound
        ],
    }


def _figures(rates: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    return {
        "images_per_second": rates,
        "median_images_per_second": {recipe: medians(sides) for recipe, sides in rates.items()},
        "ratios": {recipe: ratio(sides[PACKTRAIN], sides[TORCH]) for recipe, sides in rates.items()},
    }


def _least(recipe: str) -> float:
    return LEAST[pillow_build()["variant"]] if RECIPES[recipe].training else LEAST_EVALUATING


def show(result: dict[str, Any]) -> None:
    for mode, title in MODES.items():
        figures = result[mode]
        rows = [
            [RECIPES[recipe].title, *(f"{rates[side]:,.0f}" for side in SIDES), f"{figures['ratios'][recipe]:.2f}"]
            for recipe, rates in figures["median_images_per_second"].items()
        ]
        print_table([f"images/s; {title}", *SIDES, "packtrain over it"], rows)
        print()
    if result["missing"]:
        print(f"not measured, because what they need is not installed: {', '.join(result['missing'])}")


def samples(side: str, recipe: Recipe, folder: Path) -> Samples:
    """The dataset of one side, over what `workloads.prepare` wrote."""
    import numpy as np
    import torch

    from packtrain import open_dataset

    vision = import_torchvision().transforms
    transform = recipe.transform(vision)
    if side == PACKTRAIN:
        return open_dataset(folder / PACKED, transform)
    from benchmarks.peers.torch_loader import Files

    if recipe.dtype == "uint8":
        # As in peers/vision.py: this collates faster than what PILToTensor returns.
        transform += [np.array, torch.from_numpy]
    return Files(files(folder), vision.Compose(transform))


def batches(side: str, recipe: Recipe, folder: Path) -> Iterator[Batch]:
    """An endless stream of one side's batches."""
    from benchmarks.peers import packtrain, torch_loader

    dataset: Any = samples(side, recipe, folder)
    return packtrain.batches(packtrain.repeated(dataset)) if side == PACKTRAIN else torch_loader.batches(dataset)


def one_core(dataset: Samples, seconds: float) -> dict[str, float]:
    """Images per second of processor time of one process on one core, which takes samples in random order."""
    import torch

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    random, count = Random(SEED), len(dataset)
    for _ in range(WARM_UP_SAMPLES):
        dataset[random.randrange(count)]
    done, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < seconds:
        for _ in range(SAMPLES_AT_ONCE):
            dataset[random.randrange(count)]
        done += SAMPLES_AT_ONCE
    return {"images_per_second": done / elapsed, "seconds": elapsed}


def _rate(case: tuple[str, str, str], folder: Path, seconds: float) -> float:
    mode, recipe, side = case
    return float(child("recipes", mode, side, recipe, folder, seconds)["images_per_second"])


def main() -> None:
    mode, side, name, folder, seconds = sys.argv[1:]
    recipe = RECIPES[name]
    try:
        recipe.transform(import_torchvision().transforms)
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    if mode == "one_core":
        found = one_core(samples(side, recipe, Path(folder)), float(seconds))
    else:
        found = rate(batches(side, recipe, Path(folder)), WARM_UP, float(seconds), dtype=recipe.dtype)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
