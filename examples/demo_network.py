"""A small convolutional network, and how the demo trains and tests it on crops of packed photographs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from packtrain import ImageDataset, Loader
from packtrain.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

SIDE: Final = 64
"""Pixels per side of what the network sees."""
TRAINING: Final = [RandomResizedCrop(SIDE, scale=(0.25, 1)), RandomHorizontalFlip()]
TESTING: Final = [Resize(SIDE), CenterCrop(SIDE)]


class Epoch(NamedTuple):
    """The state after a pass over the training images.

    Attributes:
        loss: Mean cross entropy over the training images.
        accuracy: Share of the held-out images that are classified correctly.
        seconds: Time since the beginning of the training, tests included.
    """

    loss: float
    accuracy: float
    seconds: float


def network(classes: int) -> nn.Sequential:
    """Four convolutions: float32 [N, 3, 64, 64] in, logits [N, classes] out."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64), (64, 128)):
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def learn(training: ImageDataset, held_out: ImageDataset, classes: int, epochs: int = 8) -> Iterator[Epoch]:
    """Trains a new network, and tests it after each pass. Yields each pass."""
    torch.manual_seed(0)
    model = network(classes)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    begin = time.perf_counter()
    with (
        Loader(training.with_transform(TRAINING), 32, shuffle=True, num_workers=1) as train,
        Loader(held_out.with_transform(TESTING), 100, num_workers=0) as test,
    ):
        steps = epochs * len(train)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        for _ in range(epochs):
            model.train()
            total = 0.0
            for images, labels in train:
                loss = F.cross_entropy(model(images.float() / 127.5 - 1), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                total += loss.item() * len(labels)
            model.eval()
            with torch.inference_mode():
                right = sum(
                    int((model(images.float() / 127.5 - 1).argmax(1) == labels).sum()) for images, labels in test
                )
            yield Epoch(total / len(training), right / len(held_out), time.perf_counter() - begin)
