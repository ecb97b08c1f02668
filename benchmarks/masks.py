"""Images with segmentation masks: RandomResizedCrop(224) and a flip, which act on both alike.

On one side torch's DataLoader reads loose files (JPEG and PNG), makes a `tv_tensors.Mask` of each mask, and applies
torchvision's v2 transforms to image and mask together. On the other side packtrain's Loader reads a crop-ready tar
dataset, with masks as PNG or as raw values. Both make uint8 images, uint8 masks and labels.

    python -m benchmarks.masks CONTESTANT FOLDER SECONDS

measures one side once, in a process of its own.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.contestants import CONTESTANTS, PACKTRAIN, TORCH
from benchmarks.loaders import rate, versions
from benchmarks.measure import child, describe_list, medians, print_table, ratio, real_list, repeated_list, target
from benchmarks.peers.common import BATCH, EPOCH, SIDE, WORKERS, Batch, files
from benchmarks.rounds import WARM_UP, take_turns
from benchmarks.torchvision_import import import_torchvision
from benchmarks.workloads import file_paths, write_files

SECONDS: Final = 4.0

CLASSES: Final = 21
BLOBS: Final = 8
MASKS: Final = "masks"
LISTED: Final = "list.csv"
RAW: Final = "packtrain, raw masks"
UNMASKED: Final = "packtrain, without masks"
STORED: Final = {PACKTRAIN: "png", RAW: "raw", UNMASKED: "png"}
"""packtrain's contestants: how the masks of what they read are stored."""
SIDES: Final = (*STORED, TORCH)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Images per second of all contestants."""
    samples, result = take_turns(SIDES, partial(prepare, real_list()), _rate, quick=quick, seconds=SECONDS)
    ratios = {side: ratio(samples[side], samples[TORCH]) for side in STORED}
    return {
        **result,
        "contestants": {side: versions(CONTESTANTS[PACKTRAIN if side in STORED else side]) for side in SIDES},
        "images_per_second": samples,
        "median_images_per_second": medians(samples),
        "ratios": ratios,
        "targets": [
            target(f"{side} over torch's DataLoader, image and mask", ratios[side], least=2.0)
            for side in (PACKTRAIN, RAW)
        ],
    }


def show(result: dict[str, Any]) -> None:
    ratios = result["ratios"]
    rows = [
        [side, f"{value:,.0f}", f"{ratios[side]:.2f}" if side in ratios else ""]
        for side, value in result["median_images_per_second"].items()
    ]
    print_table([f"image and mask, RandomResizedCrop({SIDE}) and flip", "images/s", f"over {TORCH}"], rows)


def prepare(images: Path, folder: Path, lines: int) -> dict[str, Any]:
    """Writes loose images and masks, their list, and packtrain's two datasets of them.

    Args:
        images: The list of real images.
        folder: Where to write; it must not exist.
        lines: The list is repeated to about this length.

    Returns:
        A description of the input for the result file.
    """
    from packtrain import Columns, FieldColumn, PackOptions, pack

    (folder / MASKS).mkdir(parents=True)
    text, repeats, count = repeated_list(images, lines)
    labels = [int(line.rsplit(None, 1)[1]) for line in text.splitlines()]
    file_bytes = write_files(folder, list(zip(file_paths(images) * repeats, labels, strict=True)))
    # All repetitions of an image have the same mask, each in a file of its own, as the images are.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = list(pool.map(label_map, range(len(labels) // repeats), file_paths(images), chunksize=16))
    samples = files(folder)
    with (folder / LISTED).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "label", "mask"])
        for number, (path, label) in enumerate(samples):
            _mask_path(path).write_bytes(made[number % len(made)])
            writer.writerow([path, label, _mask_path(path)])
    for encoding in ("png", "raw"):
        column = FieldColumn("mask", "mask", "mask", by_path=True, encoding=encoding)
        options = PackOptions(columns=Columns("image", "label", (column,)), seed=None)
        pack(folder / LISTED, folder / encoding, options)
    return {
        **describe_list(images),
        "repeats": repeats,
        "lines": count,
        "note": "each repetition is a file of its own",
        "classes": CLASSES,
        "file_bytes": file_bytes,
        "mask_bytes": sum(len(made[number % len(made)]) for number in range(count)),
        "packed_bytes": {
            encoding: sum(path.stat().st_size for path in (folder / encoding).rglob("*") if path.is_file())
            for encoding in ("png", "raw")
        },
    }


def label_map(seed: int, image: str) -> bytes:
    """A mask for an image: a PNG of blobs on a background of 0, with a palette, as the masks of VOC are."""
    random = np.random.default_rng(seed)
    with Image.open(image) as file:
        width, height = file.size
    mask = Image.new("P", (width, height))
    mask.putpalette([value for index in range(256) for value in (index * 37 % 256, index * 91 % 256, index)])
    draw = ImageDraw.Draw(mask)
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    for _ in range(BLOBS):
        centre = random.random(2) * (width, height)
        # A circle whose radius swings a little as it goes round.
        swing = 1 + 0.25 * np.sin(random.integers(2, 6) * angles + random.random() * 6)
        radius = (0.05 + 0.2 * random.random()) * min(width, height) * swing
        outline = centre + radius[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
        draw.polygon([(float(x), float(y)) for x, y in outline], fill=int(random.integers(1, CLASSES)))
    out = io.BytesIO()
    mask.save(out, "PNG")
    return out.getvalue()


def _mask_path(image: str) -> Path:
    return Path(image).parents[1] / MASKS / f"{Path(image).stem}.png"


def batches(side: str, folder: Path) -> Iterator[tuple[Any, Any, Any]]:
    """An endless stream of one side's batches: images, masks (None without them) and labels."""
    return _torch(folder) if side == TORCH else _packtrain(folder / STORED[side], masks=side != UNMASKED)


def _packtrain(dataset: Path, *, masks: bool) -> Iterator[tuple[Any, Any, Any]]:
    from benchmarks.peers.packtrain import batches, repeated
    from packtrain import open_dataset
    from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

    transform = [RandomResizedCrop(SIDE), RandomHorizontalFlip()]
    fields = ("image", "mask", "label") if masks else None
    stream: Iterator[Any] = batches(repeated(open_dataset(dataset, transform, fields=fields)))
    for batch in stream:
        # Without `fields`, a batch is a plain pair.
        images, labels = batch[0], batch[-1]
        yield images, batch.mask if masks else None, labels


def _torch(folder: Path) -> Iterator[tuple[Any, Any, Any]]:
    import torch
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    import_torchvision()
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()])

    class Files(Dataset[tuple[Any, Any, int]]):
        def __init__(self, samples: Sequence[tuple[str, int]]) -> None:
            self.samples = samples

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, row: int) -> tuple[Any, Any, int]:
            path, label = self.samples[row]
            with Image.open(path) as file:
                image = file.convert("RGB")
            with Image.open(_mask_path(path)) as file:
                mask = tv_tensors.Mask(torch.from_numpy(np.array(file)))
            image, mask = transform(image, mask)
            # As in peers/vision.py: this collates faster than what PILToTensor returns.
            return torch.from_numpy(np.array(image)), mask.as_subclass(torch.Tensor), label

    dataset = Files(files(folder))
    sampler = RandomSampler(dataset, num_samples=EPOCH)
    return iter(DataLoader(dataset, BATCH, sampler=sampler, num_workers=WORKERS, drop_last=True))


def images_and_labels(stream: Iterator[tuple[Any, Any, Any]], *, masks: bool = True) -> Iterator[Batch]:
    """The batches without their masks, as `rate` takes them.

    Raises:
        RuntimeError: Masks are not what they should be.
    """
    for images, mask, labels in stream:
        if masks and (tuple(mask.shape) != (BATCH, SIDE, SIDE) or "uint8" not in str(mask.dtype)):
            raise RuntimeError(f"masks of {tuple(mask.shape)}, {mask.dtype}")
        yield images, labels


def _rate(side: str, folder: Path, seconds: float) -> float:
    return float(child("masks", side, folder, seconds)["images_per_second"])


def main() -> None:
    side, folder, seconds = sys.argv[1:]
    stream = images_and_labels(batches(side, Path(folder)), masks=side != UNMASKED)
    print(json.dumps(rate(stream, WARM_UP, float(seconds))), flush=True)


if __name__ == "__main__":
    main()
