"""slipstream: threads decode whole JPEGs, or convert whole pictures from the YUV420 planes that it has stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.torchvision_import import import_torchvision

from .common import BATCH, EPOCH, SEED, SIDE, WORKERS, Batch, files

# slipstream imports it, too.
import_torchvision()
from slipstream.cache import OptimizedCache, build_yuv420_cache  # noqa: E402
from slipstream.decoders import DecodeRandomResizedCrop  # noqa: E402
from slipstream.loader import SlipstreamLoader  # noqa: E402
from slipstream.transforms import RandomHorizontalFlip  # noqa: E402

CACHE: Final = "slipstream"
OPTIONS: Final = {
    "num_threads": f"{WORKERS}, and one that reads ahead; its default would be one less than there are cores",
    "batches_ahead": "default, 3",
    "flip": "RandomHorizontalFlip, of a whole batch, in torch",
    "images": "uint8, a view of a buffer that the next batch overwrites: not ToTorchImage, which makes them float",
    "epoch": "as long as the measurement: indices",
}


class Files:
    """The dataset that slipstream packs and opens: the bytes of each file and its label."""

    field_types: Final = {"image": "ImageBytes", "label": "int"}

    def __init__(self, folder: Path) -> None:
        self.cache_path = folder / CACHE
        self.samples = files(folder)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, Any]:
        path, label = self.samples[row]
        return {"image": Path(path).read_bytes(), "label": label}


def write_jpeg(folder: Path) -> None:
    dataset = Files(folder)
    OptimizedCache.build(dataset, verbose=False)
    build_yuv420_cache(dataset.cache_path, verbose=False)


def jpeg(folder: Path, *, once: bool = False, planes: bool = False) -> Iterator[Batch]:
    dataset = Files(folder)
    rows = np.arange(len(dataset))
    crop = DecodeRandomResizedCrop(SIDE, num_threads=WORKERS, seed=SEED, to_tensor=True)
    pipeline = [crop, _channels_first, RandomHorizontalFlip()]
    loader = SlipstreamLoader(
        dataset,
        BATCH,
        indices=rows if once else np.tile(rows, EPOCH // len(rows) + 1),
        pipelines={"image": pipeline},
        image_format="yuv420" if planes else "jpeg",
        verbose=False,
    )
    return ((batch["image"], batch["label"]) for batch in loader)


def _channels_first(images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 3, 1, 2)
