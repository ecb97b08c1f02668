"""What all contestants get: the same images and the same crops, and the numbers that must be the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BATCH: Final = 128
WORKERS: Final = 2
SIDE: Final = 224
SEED: Final = 0
PACKED: Final = "packed"
"""The folder with packtrain's dataset."""
ORIGINALS: Final = "originals.txt"
"""The list that shrunk files were made from; paths are absolute."""
SHARD_BYTES: Final = 64 << 20
"""Size that shards aim at, where a peer asks for one."""
EPOCH: Final = 1_000_000
"""Images of an epoch, where a loader needs a number: more than a measurement takes, so that none has a break in it."""

Batch = tuple[Any, Any]
"""uint8 images [128, 224, 224, 3] in either order of dimensions, and labels [128]."""
Pixels = npt.NDArray[np.uint8]


def files(folder: Path) -> list[tuple[str, int]]:
    """Path and label of each loose file."""
    return _listed(folder / "train.txt")


def originals(folder: Path) -> list[tuple[str, int]]:
    """Path and label of each image before it was shrunk; nothing if that was not done."""
    return _listed(folder / ORIGINALS) if (folder / ORIGINALS).exists() else []


def _listed(path: Path) -> list[tuple[str, int]]:
    pairs = (line.rsplit(None, 1) for line in path.read_text().splitlines())
    return [(str(path.parent / name), int(label)) for name, label in pairs]


def arrays(folder: Path) -> list[tuple[Pixels, int]]:
    """Pixels [height, width, 3] and label of each raw image: views of one mapped file."""
    # Copied on write, since torch warns of arrays that cannot be written to.
    pixels = np.memmap(folder / "pixels.bin", np.uint8, "c").view(np.ndarray)
    table = np.load(folder / "pixels.npy")
    return [
        (pixels[offset : offset + height * width * 3].reshape(height, width, 3), int(label))
        for offset, height, width, label in table.tolist()
    ]


def random_crop(image: Pixels) -> Pixels:
    """A view [224, 224, 3] of a random place."""
    height, width, _ = image.shape
    top, left = int(random.random() * (height - SIDE + 1)), int(random.random() * (width - SIDE + 1))
    return image[top : top + SIDE, left : left + SIDE]
