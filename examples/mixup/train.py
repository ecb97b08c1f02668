"""Trains a small network on batches mixed by mixup or cutmix, on CPU or GPU.

python examples/mixup/train.py DATASET --mix cutmix --epochs 10
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from packtrain import ImageDataset, Loader, PackedDataset, open_dataset
from packtrain.errors import PacktrainError
from packtrain.transforms import RandomResizedCrop

MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Mixup:
    """Blends each image with another of its batch, and their labels in the same proportion (Zhang et al., 2018).

    Attributes:
        classes: Number of classes.
        alpha: Both parameters of the beta distribution from which each batch draws its share.
    """

    classes: int
    alpha: float = 0.2

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # The loader seeds numpy for each batch, so that any number of workers mixes in the same way.
        share = float(np.random.beta(self.alpha, self.alpha))
        # The batch is shuffled already: flipping it pairs random images, without sending indices to the device.
        return torch.lerp(images.flip(0), images, share), blended(labels, self.classes, share)


@dataclass(frozen=True)
class CutMix:
    """Pastes a box of another image into each image, and weights the labels by area (Yun et al., 2019).

    Attributes:
        classes: Number of classes.
        alpha: Both parameters of the beta distribution from which each batch draws its share.
    """

    classes: int
    alpha: float = 1.0

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = images.shape[2:]
        side = math.sqrt(1 - float(np.random.beta(self.alpha, self.alpha)))
        top, bottom = span(height, side)
        left, right = span(width, side)
        mixed = images.clone()
        mixed[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return mixed, blended(labels, self.classes, share)


def span(size: int, part: float) -> tuple[int, int]:
    """Start and stop of a stretch of `size * part` pixels around a random pixel, clipped to the image."""
    centre, half = int(np.random.randint(size)), round(size * part) // 2
    return max(0, centre - half), min(size, centre + half)


def blended(labels: torch.Tensor, classes: int, share: float) -> torch.Tensor:
    """Class probabilities, float32 [batch, classes]."""
    one_hot = F.one_hot(labels, classes).float()
    return torch.lerp(one_hot.flip(0), one_hot, share)


MIXES: Final[dict[str, Callable[[int], Mixup | CutMix]]] = {"mixup": Mixup, "cutmix": CutMix}


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training.

    Attributes:
        mix: ``"mixup"`` or ``"cutmix"``.
        epochs: Passes over the dataset.
        batch_size: Images per step.
        workers: Processes that load images; 0 loads them in this process.
        device: ``"cpu"`` or ``"cuda"``.
        seed: Seed of the weights, the order, the crops and the mixing.
    """

    mix: str = "mixup"
    epochs: int = 1
    batch_size: int = 64
    workers: int = 2
    device: str = "cpu"
    seed: int = 0


def train(dataset: ImageDataset, classes: int, options: TrainOptions) -> list[float]:
    """Trains a small network. Returns the mean loss of each epoch."""
    torch.manual_seed(options.seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    ).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    # With `mean` and `std` the loader delivers normalised floats on the device; `batch_transform` mixes them there.
    loader = Loader(
        dataset.with_transform(RandomResizedCrop(32)),
        options.batch_size,
        shuffle=True,
        seed=options.seed,
        num_workers=options.workers,
        device=options.device,
        mean=MEAN,
        std=STD,
        batch_transform=MIXES[options.mix](classes),
    )
    losses = []
    with loader:
        for _ in range(options.epochs):
            # Kept on the device: calling .item() at every step would make the CPU wait for the GPU.
            loss_sum = torch.zeros((), device=options.device)
            for images, probabilities in loader:
                loss = F.cross_entropy(model(images), probabilities)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss_sum += loss.detach()
            losses.append(loss_sum.item() / len(loader))
    return losses


def count_classes(dataset: PackedDataset) -> int:
    """One more than the largest label."""
    return int(dataset.targets.max()) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on batches mixed by mixup or cutmix.")
    parser.add_argument("dataset")
    parser.add_argument("--mix", choices=sorted(MIXES), default="mixup")
    for name in ("epochs", "batch_size", "workers", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(TrainOptions, name))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = vars(parser.parse_args())
    try:
        dataset = open_dataset(arguments.pop("dataset"))
        for number, loss in enumerate(train(dataset, count_classes(dataset), TrainOptions(**arguments)), 1):
            print(f"epoch {number}: loss {loss:.3f}")
    except PacktrainError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
