"""Photographs of 12 megapixels: RandomResizedCrop(224) exactly and scaled, and how far scaled pixels are off."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.crops import (
    SEED,
    TRAIN,
    drawn_steps,
    load_file,
    one_thread,
    pack_images,
    packed,
    plain,
    rates,
    require_same_pixels,
)
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
from packtrain import PackedDataset, open_dataset
from packtrain._core.options import StoreOptions

REPETITIONS: Final = 7
COUNT: Final = 24
SIZE: Final = (4000, 3000)
NOISE: Final = 4
"""Standard deviation of the sensor's noise, in steps of 8 bits."""
QUALITY: Final = 92
FILES: Final = "files, Pillow"
CONTESTANTS: Final = {
    f"{store}, {decoder}{', scaled' * scaled}": (store, decoder, scaled)
    for store in ("crop-ready", "verbatim")
    for decoder in ("auto", "pillow")
    for scaled in (False, True)
}
"""Store mode, decoder, and whether the decoder may shrink."""


def measure() -> dict[str, Any]:
    one_thread()
    with scratch() as folder:
        images = _make_photographs(real_list(), folder / "files")
        paths = [str(path) for path in sorted((folder / "files").glob("*.jpg"))]
        for store in ("crop-ready", "verbatim"):
            pack_images(images, folder / store, StoreOptions(store=store))
        require_same_pixels(folder / "crop-ready", TRAIN, load_file, paths)
        cases = {
            name: packed(folder / store, TRAIN, decoder=decoder, scaled=scaled)
            for name, (store, decoder, scaled) in CONTESTANTS.items()
        }
        exact = open_dataset(folder / "crop-ready", TRAIN)
        cases[FILES] = plain(load_file, paths, drawn_steps(exact, TRAIN))
        samples = alternate(cases, REPETITIONS)
        deviations = _deviations(exact, open_dataset(folder / "crop-ready", TRAIN, scaled=True))
        described, output = describe_list(images), kind_of(folder)
    middle = medians(samples)
    return {
        **pillow_build(),
        "input": {**described, "pixels": SIZE, "quality": QUALITY, "note": "real images, enlarged, with noise"},
        "output": output,
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating", "threads": 1, "check": True},
        "microseconds": samples,
        "median_microseconds": middle,
        "median_images_per_second": rates(middle),
        "ratios_over_files": {name: ratio(samples[FILES], figures) for name, figures in samples.items()},
        "scaled_deviation": deviations,
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    rows = [
        [name, f"{value / 1000:.1f}", f"{1e6 / value:,.1f}", f"{result['ratios_over_files'][name]:.2f}"]
        for name, value in result["median_microseconds"].items()
    ]
    print_table(["4000 x 3000, RandomResizedCrop(224)", "ms", "images/s", "over files"], rows)
    print()
    print_table(
        ["scaled against exact, steps of 8 bits", ""],
        [[name.replace("_", " "), f"{value:.2f}"] for name, value in result["scaled_deviation"].items()],
    )


def _make_photographs(images: Path, folder: Path) -> Path:
    """Enlarges real images and adds a sensor's noise, without which they would take few bits; returns their list."""
    folder.mkdir()
    random = np.random.default_rng(SEED)
    lines = images.read_text().splitlines()
    for number in range(COUNT):
        name = lines[number * len(lines) // COUNT].rsplit(None, 1)[0]
        with Image.open(images.parent / name) as file:
            pixels = np.asarray(file.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS), np.float32)
        noisy = pixels + NOISE * random.standard_normal(pixels.shape, np.float32)
        photograph = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        photograph.save(folder / f"{number:03d}.jpg", quality=QUALITY, subsampling="4:2:0")
    out = folder / "train.txt"
    out.write_text("".join(f"{number:03d}.jpg {number}\n" for number in range(COUNT)))
    return out


def _deviations(exact: PackedDataset, scaled: PackedDataset) -> dict[str, float]:
    """Of all values of all crops together, and of the crop that is off most."""
    differences = [np.abs(one - other) for one, other in zip(_crops(exact), _crops(scaled), strict=True)]
    squares = [float(np.square(each).mean()) for each in differences]
    return {
        "mean_absolute": float(np.mean([each.mean() for each in differences])),
        "largest": float(max(each.max() for each in differences)),
        "PSNR_dB": _psnr(float(np.mean(squares))),
        "PSNR_of_the_worst_crop_dB": _psnr(max(squares)),
        "crops_with_the_same_pixels": float(sum(not each.any() for each in differences)),
    }


def _crops(dataset: PackedDataset) -> list[npt.NDArray[np.int16]]:
    torch.manual_seed(SEED)
    return [dataset[row][0].numpy().astype(np.int16) for row in range(len(dataset))]


def _psnr(mean_square: float) -> float:
    return 10 * math.log10(255**2 / mean_square) if mean_square else math.inf
