"""Photographs of 12 megapixels: RandomResizedCrop(224) on one core, exact and with `scaled=True`.

Also how far the pixels of `scaled=True` are from the exact ones. The photographs are real images, enlarged, with the
noise of a sensor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.measure import (
    alternate,
    describe_list,
    kind_of,
    medians,
    pillow_build,
    print_table,
    ratio,
    real_list,
    scratch,
)
from benchmarks.peers.common import SEED, SIDE, files
from packtrain import PackedDataset, PackOptions, StoreOptions, open_dataset, pack
from packtrain.transforms import RandomResizedCrop

REPETITIONS: Final = 7
COUNT: Final = 24
QUICK_COUNT: Final = 4
PASSES: Final = 3
"""Passes over the photographs that make one figure, each with other boxes."""
SIZE: Final = (4000, 3000)
NOISE: Final = 4
"""Standard deviation of the sensor's noise, in steps of 8 bits."""
QUALITY: Final = 92
STORES: Final = ("crop-ready", "verbatim")
FILES: Final = "files, torchvision"


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Microseconds per photograph of ``dataset[row]``, and of torchvision's transforms over the files."""
    # What is measured is one core.
    torch.set_num_threads(1)
    repetitions = 1 if quick else REPETITIONS
    with scratch() as folder:
        listed = _make_photographs(real_list(), folder, QUICK_COUNT if quick else COUNT)
        cases: dict[str, Callable[[], float]] = {}
        for store in STORES:
            pack(listed, folder / store, PackOptions(store=StoreOptions(store=store), seed=None))
            for scaled in (False, True):
                dataset = _opened(folder / store, scaled=scaled)
                cases[f"{store}{', scaled' * scaled}"] = partial(_microseconds, dataset.__getitem__, len(dataset))
        cases[FILES] = partial(_microseconds, _files_getter(folder), len(dataset))
        samples = alternate(cases, repetitions)
        exact, scaled_pixels = (_crops(_opened(folder / STORES[0], scaled=scaled)) for scaled in (False, True))
        described, output = describe_list(listed), kind_of(folder)
    middle = medians(samples)
    return {
        **pillow_build(),
        "input": {**described, "pixels": SIZE, "quality": QUALITY, "note": "real images, enlarged, with noise"},
        "output": output,
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating", "threads": 1, "check": True},
        "microseconds": samples,
        "median_microseconds": middle,
        "ratios_over_files": {name: ratio(samples[FILES], figures) for name, figures in samples.items()},
        "scaled_deviation": deviations(exact, scaled_pixels),
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rows = [
        [name, f"{value / 1000:.1f}", f"{1e6 / value:,.1f}", f"{result['ratios_over_files'][name]:.2f}"]
        for name, value in result["median_microseconds"].items()
    ]
    print_table([f"4000 x 3000, RandomResizedCrop({SIDE})", "ms", "images/s", "over files"], rows)
    print()
    print_table(
        ["scaled against exact, steps of 8 bits", ""],
        [[name.replace("_", " "), f"{value:.2f}"] for name, value in result["scaled_deviation"].items()],
    )


def deviations(exact: list[npt.NDArray[np.int16]], scaled: list[npt.NDArray[np.int16]]) -> dict[str, float]:
    """Compare scaled crops with exact ones: the distance of all together, and that of the crop that is off most."""
    differences = [np.abs(one - other) for one, other in zip(exact, scaled, strict=True)]
    squares = [float(np.square(each).mean()) for each in differences]
    return {
        "mean_absolute": float(np.mean([each.mean() for each in differences])),
        "largest": float(max(each.max() for each in differences)),
        "PSNR_dB": _psnr(float(np.mean(squares))),
        "PSNR_of_the_worst_crop_dB": _psnr(max(squares)),
        "share_of_crops_with_the_same_pixels": float(np.mean([not each.any() for each in differences])),
    }


def _make_photographs(images: Path, folder: Path, count: int) -> Path:
    """Enlarges real images and adds a sensor's noise, without which they would take few bits; returns their list."""
    random = np.random.default_rng(SEED)
    lines = images.read_text().splitlines()
    for number in range(count):
        name = lines[number * len(lines) // count].rsplit(None, 1)[0]
        with Image.open(images.parent / name) as file:
            pixels = np.asarray(file.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS), np.float32)
        noisy = pixels + NOISE * random.standard_normal(pixels.shape, np.float32)
        photograph = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        photograph.save(folder / f"{number:03d}.jpg", quality=QUALITY, subsampling="4:2:0")
    out = folder / "train.txt"
    out.write_text("".join(f"{number:03d}.jpg {number}\n" for number in range(count)))
    return out


def _opened(path: Path, *, scaled: bool) -> PackedDataset:
    return open_dataset(path, RandomResizedCrop(SIDE), scaled=scaled)


def _files_getter(folder: Path) -> Callable[[int], object]:
    """Reads a file as torchvision's ImageFolder does, with torchvision's transform."""
    from benchmarks.peers.torch_loader import Files
    from benchmarks.peers.vision import transforms

    steps = [transforms.RandomResizedCrop(SIDE), transforms.PILToTensor()]
    return Files(files(folder), transforms.Compose(steps)).__getitem__


def _microseconds(get: Callable[[int], object], count: int) -> float:
    """Mean time per row. All datasets of packtrain get the same boxes, and so does each round."""
    torch.manual_seed(SEED)
    started = time.perf_counter()
    for _ in range(PASSES):
        for row in range(count):
            get(row)
    return (time.perf_counter() - started) / (PASSES * count) * 1e6


def _crops(dataset: PackedDataset) -> list[npt.NDArray[np.int16]]:
    torch.manual_seed(SEED)
    return [dataset[row][0].numpy().astype(np.int16) for row in range(len(dataset))]


def _psnr(mean_square: float) -> float:
    return 10 * math.log10(255**2 / mean_square) if mean_square else math.inf
