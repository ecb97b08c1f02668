"""Packs a list and trains on it, and keeps what came of it: run in this process, or as a program in another one.

python -m helpers.packing_and_training LIST OUT STORE RESULT.npz
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from packtrain import Loader, PackOptions, open_dataset, pack, verify
from packtrain._core.options import StoreOptions
from packtrain.transforms import ColorJitter, RandomCrop, RandomHorizontalFlip, RandomResizedCrop


def train(listing: Path, out: Path, store: str, *, num_workers: int = 0) -> dict[str, Any]:
    """Whole images by row, and batches of images by what was done to them."""
    pack(listing, out, PackOptions(store=StoreOptions(store)))
    assert not verify(out, decode_images=True).problems
    crops = [RandomCrop(40, padding=8), RandomHorizontalFlip()]
    dataset = open_dataset(out)
    found = {str(row): np.asarray(dataset[row][0]) for row in range(len(dataset))}
    found["value"] = np.asarray(dataset.value(0, "image"))
    transforms: dict[str, list[Any]] = {
        "cropped": crops,
        "resized": [RandomResizedCrop(32)],
        "coloured": [RandomCrop(32), ColorJitter(0.4), *crops],
    }
    for name, those in transforms.items():
        with Loader(dataset.with_transform(those), 4, seed=1, num_workers=num_workers) as loader:
            found[name] = np.concatenate([images.numpy() for images, _ in loader])
    return found


if __name__ == "__main__":
    np.savez(sys.argv[4], **train(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], num_workers=1))
    assert "PIL.Image" not in sys.modules
