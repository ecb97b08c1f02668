"""Raw records, short side 256, on one core: packtrain against arrays in memory and what users write around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.crops import (
    TRAIN,
    drawn_steps,
    file_paths,
    microseconds,
    one_thread,
    pack_images,
    packed,
    plain,
    rates,
    require_same_pixels,
    steady,
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
    target,
)
from packtrain import open_dataset
from packtrain._codec.geometry import Crop
from packtrain._core.options import StoreOptions
from packtrain._readers.transforms.compose import compose
from packtrain.transforms import Compose, RandomCrop

REPETITIONS: Final = 15
UNTIMED: Final = 2
SHORT: Final = 256
RESIZE: Final = f"short={SHORT}"
CROP: Final = compose(RandomCrop(224))
RESIZED: Final = "RandomResizedCrop(224)"
CROPPED: Final = "RandomCrop(224)"
PACKED: Final = "packtrain"
ALONE: Final = "packtrain, alone"
UNCHECKED: Final = "packtrain, check=False"
FROM_ARRAY: Final = "arrays, Image.fromarray"
SLICED: Final = "arrays, sliced and copied"


def measure() -> dict[str, Any]:
    one_thread()
    images = real_list()
    with scratch() as folder:
        store = StoreOptions(store="raw", resize=RESIZE)
        path = pack_images(images, folder / "raw", store)
        large = pack_images(_large_ones(images, folder / "train.txt"), folder / "large", store, root=images.parent)
        # The rate of a process that does nothing else; what is compared shares caches and interpreter with the others.
        alone = steady(packed(path, TRAIN), UNTIMED)
        samples = {f"{RESIZED}: {ALONE}": [alone() for _ in range(REPETITIONS)]}
        samples |= alternate({**_cases(path, RESIZED, TRAIN), **_cases(large, CROPPED, CROP)}, REPETITIONS)
        record_bytes = {name: _record_bytes(folder) for name, folder in ((RESIZED, path), (CROPPED, large))}
        output = kind_of(folder)
    middle = medians(samples)
    speeds = rates(middle)
    return {
        **pillow_build(),
        "input": {**describe_list(images), "note": f"{CROPPED} without images that are smaller than that"},
        "output": output,
        "record_bytes": record_bytes,
        "settings": {
            "repetitions": REPETITIONS,
            "warm_up": 1,
            "untimed_passes": UNTIMED,
            "order": "alternating",
            "threads": 1,
            "resize": RESIZE,
        },
        "microseconds": samples,
        "median_microseconds": middle,
        "median_images_per_second": speeds,
        "ratios_over_arrays": {
            name: ratio(samples[f"{transform}: {FROM_ARRAY}"], figures)
            for name, figures in samples.items()
            for transform in (name.partition(":")[0],)
        },
        # Plain Pillow alone takes longer than that for the resize.
        "targets": [target(f"{RESIZED}: images/s", speeds[f"{RESIZED}: {ALONE}"], least=8000)]
        if pillow_build()["variant"] == "pillow-simd"
        else [],
    }


def show(result: dict[str, Any]) -> None:
    rows = [
        [name, f"{value:.1f}", f"{1e6 / value:,.0f}", f"{result['ratios_over_arrays'][name]:.2f}"]
        for name, value in result["median_microseconds"].items()
    ]
    print_table([f"raw, short side {SHORT}", "us", "images/s", f"over {FROM_ARRAY}"], rows)


def _large_ones(images: Path, out: Path) -> Path:
    """The list without images from which no crop could be taken: packing enlarges none."""
    with out.open("w") as lines:
        for line, path in zip(images.read_text().splitlines(), file_paths(images), strict=True):
            with Image.open(path) as file:
                if min(file.size) >= SHORT:
                    lines.write(f"{line}\n")
    return out


def _record_bytes(path: Path) -> float:
    return float(np.mean(open_dataset(path).store.index["length"]))


def _cases(path: Path, name: str, transform: Compose) -> dict[str, Callable[[], float]]:
    dataset = open_dataset(path)
    arrays = [np.array(dataset.image(row)) for row in range(len(dataset))]
    require_same_pixels(path, transform, Image.fromarray, arrays)
    steps = drawn_steps(dataset, transform)
    cases: dict[str, Callable[[], float]] = {
        f"{name}: {PACKED}": packed(path, transform),
        f"{name}: {UNCHECKED}": packed(path, transform, check=False),
        f"{name}: {FROM_ARRAY}": plain(Image.fromarray, arrays, steps),
    }
    # Where nothing is resized, an array can do without Pillow.
    if boxes := [only.box for only, *others in steps if isinstance(only, Crop) and not others]:
        cases[f"{name}: {SLICED}"] = partial(microseconds, _sliced, list(zip(arrays, boxes, strict=True)))
    return {name: steady(case, UNTIMED) for name, case in cases.items()}


def _sliced(work: tuple[npt.NDArray[np.uint8], tuple[int, int, int, int]]) -> torch.Tensor:
    array, (left, top, width, height) = work
    return torch.from_numpy(array[top : top + height, left : left + width].copy()).permute(2, 0, 1)
