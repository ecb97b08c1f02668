"""Not a loader: one thread copies crops from mapped records into a batch. Nothing is drawn or checked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from .common import BATCH, SEED, SIDE, Batch, arrays, random_crop

OPTIONS: Final = {"order": "shuffled once", "slots": "one batch"}


def raw(folder: Path) -> Iterator[Batch]:
    random.seed(SEED)
    samples = [(random_crop(image), label) for image, label in arrays(folder)]
    random.shuffle(samples)
    whole = range(0, len(samples) - BATCH + 1, BATCH)
    batches = [tuple(zip(*samples[start : start + BATCH], strict=True)) for start in whole]
    slots = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
    targets = list(slots)
    while True:
        for crops, labels in batches:
            for target, crop in zip(targets, crops, strict=True):
                np.copyto(target, crop)
            yield slots, labels
