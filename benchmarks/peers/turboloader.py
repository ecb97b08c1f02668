"""TurboLoader: threads in C++ decode the crop, resize and flip it.

Its batches are float32, and it has no labels: they are looked up by the places in the tar file that it hands out.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import torch
from turboloader import DataLoader

from .common import BATCH, SEED, SIDE, Batch, files

TAR: Final = "turboloader.tar"
OPTIONS: Final = {
    "threads": "its own pool, one per core",
    "prefetch_batches": "default, 4",
    "train_aug": "fused RandomResizedCrop and flip, which decodes only the crop; antialias=True",
    "transform": "none: values are not normalised",
    "epoch": "endless: epoch after epoch",
}


def write_jpeg(folder: Path) -> None:
    with tarfile.open(folder / TAR, "w") as out:
        for number, (path, _) in enumerate(files(folder)):
            out.add(path, f"{number:06d}.jpg")


def jpeg(folder: Path, *, once: bool = False) -> Iterator[Batch]:
    labels = torch.tensor([label for _, label in files(folder)])
    options = {"image_size": SIDE, "output_format": "pytorch", "train_aug": True, "antialias": True}
    loader = DataLoader(str(folder / TAR), batch_size=BATCH, shuffle=True, seed=SEED, drop_last=True, **options)
    for epoch in count():
        loader.set_epoch(epoch)
        for images, meta in loader:
            yield torch.from_numpy(images), labels[np.asarray(meta["indices"])]
        if once:
            return
