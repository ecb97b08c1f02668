"""torch's DataLoader over loose files, as torchvision's ImageFolder reads them, and over arrays in one mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler

from .common import BATCH, EPOCH, WORKERS, Batch, Pixels, arrays, files, random_crop
from .vision import train_transform

OPTIONS: Final = {
    "num_workers": WORKERS,
    "persistent_workers": True,
    "prefetch_factor": "default, 2",
    "pin_memory": False,
    "collate_fn": "default",
    "start": "fork",
    "epoch": "as long as the measurement: RandomSampler(num_samples=...)",
}


class Files(Dataset[tuple[Any, int]]):
    def __init__(self, samples: list[tuple[str, int]], transform: Callable[[Any], Any]) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        path, label = self.samples[row]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), label


class Crops(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, samples: list[tuple[Pixels, int]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image, label = self.samples[row]
        return torch.from_numpy(random_crop(image)), label


def jpeg(folder: Path) -> Iterator[Batch]:
    return batches(jpeg_dataset(folder))


def raw(folder: Path) -> Iterator[Batch]:
    return batches(Crops(arrays(folder)))


def jpeg_dataset(folder: Path) -> Files:
    return Files(files(folder), train_transform())


def batches(dataset: Files | Crops) -> Iterator[Batch]:
    sampler = RandomSampler(dataset, num_samples=EPOCH)
    return iter(DataLoader(dataset, BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True))
