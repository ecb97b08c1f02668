"""torch's DataLoader over loose files, as torchvision's ImageFolder reads them, and over arrays in one mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler

from .common import BATCH, EPOCH, WORKERS, Batch, Pixels, arrays, files, random_crop
from .vision import array_transform, train_transform

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


class Arrays(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, samples: list[tuple[Pixels, int]], transform: Callable[[Pixels], torch.Tensor]) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image, label = self.samples[row]
        return self.transform(image), label


def jpeg(folder: Path, *, once: bool = False, pin_memory: bool = False) -> Iterator[Batch]:
    return batches(jpeg_dataset(folder), once=once, pin_memory=pin_memory)


def raw(folder: Path, *, pin_memory: bool = False) -> Iterator[Batch]:
    return batches(Arrays(arrays(folder), cropped), pin_memory=pin_memory)


def raw_rrc(folder: Path, *, pin_memory: bool = False) -> Iterator[Batch]:
    return batches(Arrays(arrays(folder), array_transform()), pin_memory=pin_memory)


def cropped(image: Pixels) -> torch.Tensor:
    return torch.from_numpy(random_crop(image))


def jpeg_dataset(folder: Path) -> Files:
    return Files(files(folder), train_transform())


def batches(dataset: Files | Arrays, *, once: bool = False, pin_memory: bool = False) -> Iterator[Batch]:
    sampler = RandomSampler(dataset, num_samples=None if once else EPOCH)
    options: dict[str, Any] = {"persistent_workers": True, "pin_memory": pin_memory, "drop_last": True}
    return iter(DataLoader(dataset, BATCH, sampler=sampler, num_workers=WORKERS, **options))
