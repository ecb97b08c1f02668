"""Trains a small network to name the class of each pixel, on CPU or GPU.

python examples/segmentation/train.py DATASET --epochs 10
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from packtrain import Loader, PackedDataset, open_dataset
from packtrain.errors import PacktrainError
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
SIZE: Final = 64
IGNORED: Final = 255
"""The value of pixels that count as no class, as in the masks of Pascal VOC and Cityscapes."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training.

    Attributes:
        epochs: Passes over the dataset.
        batch_size: Images per step.
        workers: Processes that load images; 0 loads them in this process.
        device: ``"cpu"`` or ``"cuda"``.
        seed: Seed of the weights, the order and the crops.
    """

    epochs: int = 5
    batch_size: int = 16
    workers: int = 2
    device: str = "cpu"
    seed: int = 0


class Epoch(NamedTuple):
    """Results of a pass over the dataset.

    Attributes:
        loss: Mean loss.
        overlap: Intersection over union of each class that occurred, averaged over these classes.
    """

    loss: float
    overlap: float


def network(classes: int) -> nn.Module:
    """Takes images [batch, 3, height, width] and gives scores [batch, classes, height, width]."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, classes, 1),
        nn.Upsample(scale_factor=4, mode="bilinear"),
    )


def opened(path: str) -> PackedDataset:
    """The dataset, whose crops and flips act on image and mask alike."""
    transform = [RandomResizedCrop(SIZE, scale=(0.4, 1.0)), RandomHorizontalFlip()]
    return open_dataset(path, transform, fields=("image", "mask"))


def class_names(dataset: PackedDataset) -> tuple[str, ...]:
    """The names that ``--mask-classes`` gave."""
    names = dataset.schema["mask"].classes
    if names is None:
        sys.exit("the classes of the masks have no names: pack with --mask-classes mask=classes.txt")
    return names


def train(dataset: PackedDataset, options: TrainOptions) -> Iterator[Epoch]:
    """Trains a small network, and yields after each pass."""
    torch.manual_seed(options.seed)
    classes = len(class_names(dataset))
    model = network(classes).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loader = Loader(
        dataset,
        options.batch_size,
        shuffle=True,
        drop_last=True,
        seed=options.seed,
        num_workers=options.workers,
        # The image is normalised, the mask is not.
        device=options.device,
        mean=MEAN,
        std=STD,
    )
    with loader:
        for _ in range(options.epochs):
            # Kept on the device: calling .item() at every step would make the CPU wait for the GPU.
            loss_sum = torch.zeros((), device=options.device)
            counts = torch.zeros(classes, classes, dtype=torch.int64, device=options.device)
            for batch in loader:
                # Masks travel as bytes, and become the int64 that cross_entropy needs on the device.
                truth = batch.mask.long()
                scores = model(batch.image)
                loss = F.cross_entropy(scores, truth, ignore_index=IGNORED)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss_sum += loss.detach()
                counts += confusion(scores.argmax(1), truth, classes)
            yield Epoch(loss_sum.item() / len(loader), mean_overlap(counts))


def confusion(found: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
    """Count the pixels of each true class (row) by the class that was found (column): int64 [classes, classes]."""
    counted = truth != IGNORED
    pairs = truth[counted] * classes + found[counted]
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def mean_overlap(counts: torch.Tensor) -> float:
    """Intersection over union, averaged over the classes that occur in a confusion matrix."""
    right = counts.diag()
    union = counts.sum(0) + counts.sum(1) - right
    there = union > 0
    return float((right[there] / union[there]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on images and masks.")
    parser.add_argument("dataset")
    for name in ("epochs", "batch_size", "workers", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(TrainOptions, name))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = vars(parser.parse_args())
    try:
        dataset = opened(arguments.pop("dataset"))
        for number, epoch in enumerate(train(dataset, TrainOptions(**arguments)), 1):
            print(f"epoch {number}: loss {epoch.loss:.3f}, mean IoU {epoch.overlap:.2f}")
    except PacktrainError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
