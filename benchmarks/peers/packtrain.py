"""packtrain itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packtrain.readers import Loader, concat, open_dataset
from packtrain.readers.dataset import ImageDataset
from packtrain.readers.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop

from .common import BATCH, EPOCH, SEED, SIDE, WORKERS, Batch

OPTIONS: Final = {"num_workers": WORKERS, "check": True, "scaled": False, "epoch": "as long as the measurement: concat"}


def jpeg(folder: Path) -> Iterator[Batch]:
    return batches(jpeg_dataset(folder))


def raw(folder: Path) -> Iterator[Batch]:
    return batches(repeated(open_dataset(folder / "raw", RandomCrop(SIDE))))


def jpeg_dataset(folder: Path) -> ImageDataset:
    return repeated(open_dataset(folder / "crop-ready", [RandomResizedCrop(SIDE), RandomHorizontalFlip()]))


def batches(dataset: ImageDataset) -> Iterator[Batch]:
    with Loader(dataset, batch_size=BATCH, num_workers=WORKERS, seed=SEED) as loader:
        yield from loader


def repeated(dataset: ImageDataset) -> ImageDataset:
    return concat([dataset] * (EPOCH // len(dataset) + 1))
