"""Shared by all contestants: the images, the crops, and the numbers that must be the same for all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BATCH: Final = 128
WORKERS: Final = 2
SIDE: Final = 224
SHORT: Final = 256
"""The short side to which images are resized for an evaluation."""
SEED: Final = 0
PACKED: Final = "packed"
"""Name of the folder with packtrain's dataset."""
VERBATIM: Final = "verbatim"
"""Name of the folder with packtrain's dataset of the unchanged files, where there is one."""
COEFFICIENTS: Final = "coefficients"
"""Name of the folder with packtrain's dataset of coefficients, where there is one."""
ORIGINALS: Final = "originals.txt"
"""Name of the list of files that the shrunk files were made from; its paths are absolute."""
SHARD_BYTES: Final = 64 << 20
"""Target size of a shard in bytes, for peers that ask for one."""
EPOCH: Final = 1_000_000
"""Images of an epoch, for loaders that need a number: more than a measurement takes, so that no epoch ends in it."""

Batch = tuple[Any, Any]
"""uint8 images [128, 224, 224, 3] in either order of dimensions, and labels [128]."""
Pixels = npt.NDArray[np.uint8]


def files(folder: Path) -> list[tuple[str, int]]:
    """Path and label of each loose file."""
    return _listed(folder / "train.txt")


def originals(folder: Path) -> list[tuple[str, int]]:
    """Path and label of each image before it was shrunk; empty if the files were not shrunk."""
    return _listed(folder / ORIGINALS) if (folder / ORIGINALS).exists() else []


def _listed(path: Path) -> list[tuple[str, int]]:
    pairs = (line.rsplit(None, 1) for line in path.read_text().splitlines())
    return [(str(path.parent / name), int(label)) for name, label in pairs]


def arrays(folder: Path) -> list[tuple[Pixels, int]]:
    """Pixels [height, width, 3] and label of each raw image: views of one mapped file."""
    # Copy-on-write, since torch warns about arrays that are not writable.
    pixels = np.memmap(folder / "pixels.bin", np.uint8, "c").view(np.ndarray)
    table = np.load(folder / "pixels.npy")
    return [
        (pixels[offset : offset + height * width * 3].reshape(height, width, 3), int(label))
        for offset, height, width, label in table.tolist()
    ]


def random_crop(image: Pixels) -> Pixels:
    """A view of a random place of the image, uint8 [224, 224, 3]."""
    height, width, _ = image.shape
    top, left = int(random.random() * (height - SIDE + 1)), int(random.random() * (width - SIDE + 1))
    return image[top : top + SIDE, left : left + SIDE]
