"""torchvision's transforms, for every contestant that decodes with Pillow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.torchvision_import import import_torchvision

from .common import SIDE, Pixels

transforms = import_torchvision().transforms


def train_transform() -> Callable[[Any], torch.Tensor]:
    """From a PIL image to a tensor, uint8 [224, 224, 3]."""
    # Not PILToTensor: it permutes the dimensions, which makes collating 5 % slower. Permuting the whole batch is free.
    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), np.array, torch.from_numpy]
    composed: Callable[[Any], torch.Tensor] = transforms.Compose(steps)
    return composed


def array_transform() -> Callable[[Pixels], torch.Tensor]:
    """The same, from an array, uint8 [height, width, 3]."""
    transform = train_transform()
    return lambda image: transform(Image.fromarray(image))
