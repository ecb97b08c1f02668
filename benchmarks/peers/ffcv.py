"""FFCV: one file, compiled pipelines, threads. It encodes JPEGs again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.fields.rgb_image import ResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.reader import Reader
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from .common import BATCH, EPOCH, SIDE, WORKERS, Batch, Pixels, arrays, files, originals

JPEG: Final = "ffcv-jpeg.beton"
RAW: Final = "ffcv-raw.beton"
OPTIONS: Final = {
    "num_workers": WORKERS,
    "batches_ahead": "default, 3",
    "order": "random",
    "os_cache": True,
    "jpeg": "encoded again at the default quality, 90; at full resolution, or with max_resolution=500",
    "resize": "OpenCV's INTER_AREA, as everywhere in FFCV",
    "epoch": "as long as the measurement: indices",
}


MAX_RESOLUTION: Final = 500
"""Longest side of the images where all other contestants get shrunk files."""


class Files:
    def __init__(self, samples: list[tuple[str, int]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Pixels, int]:
        path, label = self.samples[row]
        return np.array(Image.open(path).convert("RGB")), label


def write_jpeg(folder: Path) -> None:
    whole = originals(folder)
    # FFCV shrinks the originals itself, so that they are encoded only once.
    options = {"write_mode": "jpg", **({"max_resolution": MAX_RESOLUTION} if whole else {})}
    _write(folder / JPEG, Files(whole or files(folder)), options)


def write_raw(folder: Path) -> None:
    _write(folder / RAW, arrays(folder), {"write_mode": "raw"})


def jpeg(folder: Path, *, once: bool = False) -> Iterator[Batch]:
    return _batches(folder / JPEG, _resized_crop(), once=once)


def raw_rrc(folder: Path) -> Iterator[Batch]:
    return _batches(folder / RAW, _resized_crop())


def raw(folder: Path) -> Iterator[Batch]:
    return _batches(folder / RAW, [PlainRandomCrop((SIDE, SIDE))])


def _resized_crop() -> list[Any]:
    return [RandomResizedCropRGBImageDecoder((SIDE, SIDE)), RandomHorizontalFlip()]


class PlainRandomCrop(ResizedCropRGBImageDecoder):  # type: ignore[misc]
    """A crop without a resize, for which FFCV has no decoder; only the box differs from its own decoder."""

    scale = (1.0, 1.0)
    ratio = (1.0, 1.0)

    @property
    def get_crop_generator(self) -> Any:
        return _plain_box


def _plain_box(height: int, width: int, scale: Any, ratio: Any) -> tuple[int, int, int, int]:
    top = int(np.random.uniform(0, height - 224 + 1))
    left = int(np.random.uniform(0, width - 224 + 1))
    return top, left, 224, 224


def _write(out: Path, samples: Any, options: dict[str, Any]) -> None:
    fields = {"image": RGBImageField(**options), "label": IntField()}
    DatasetWriter(str(out), fields, num_workers=WORKERS).from_indexed_dataset(samples)


def _batches(path: Path, pipeline: list[Any], *, once: bool = False) -> Iterator[Batch]:
    pipelines = {"image": [*pipeline, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor(), Squeeze()]}
    options = {"order": OrderOption.RANDOM, "os_cache": True, "drop_last": True, "pipelines": pipelines}
    rows = np.arange(Reader(str(path)).num_samples, dtype=np.uint64)
    indices = rows if once else np.tile(rows, EPOCH // len(rows) + 1)
    return iter(Loader(str(path), BATCH, num_workers=WORKERS, indices=indices, **options))
