"""litdata: optimize() into chunks, StreamingDataset and StreamingDataLoader."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from litdata import ParallelStreamingDataset, StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader
from PIL import Image

from .common import BATCH, SEED, WORKERS, Batch, Pixels, arrays, files, random_crop
from .vision import array_transform, train_transform

Load = Callable[[Any], torch.Tensor]

OPTIONS: Final = {
    "num_workers": WORKERS,
    "chunk_bytes": "64MB, the default",
    "persistent_workers": True,
    "prefetch_factor": "default, 2",
    "shuffle": True,
    "batch_decode": "item; from a store: all, which reads a chunk that two workers share once, not once per image",
    "epoch": "endless: ParallelStreamingDataset(length=inf)",
}


def write_jpeg(folder: Path) -> None:
    _write(folder / "litdata-jpeg", _file, files(folder))


def write_raw(folder: Path) -> None:
    samples = arrays(folder)
    _write(folder / "litdata-raw", partial(_array, samples), list(range(len(samples))))


def jpeg(folder: Path, *, once: bool = False) -> Iterator[Batch]:
    return _batches(folder / "litdata-jpeg", _decoded(), once=once)


def raw(folder: Path) -> Iterator[Batch]:
    return _batches(folder / "litdata-raw", lambda image: torch.from_numpy(random_crop(image)))


def raw_rrc(folder: Path) -> Iterator[Batch]:
    return _batches(folder / "litdata-raw", array_transform())


def _file(sample: tuple[str, int]) -> dict[str, Any]:
    path, label = sample
    return {"image": Path(path).read_bytes(), "label": label}


def _array(samples: list[tuple[Pixels, int]], row: int) -> dict[str, Any]:
    image, label = samples[row]
    return {"image": np.array(image), "label": label}


def _write(out: Path, read: Callable[[Any], dict[str, Any]], inputs: list[Any]) -> None:
    optimize(fn=read, inputs=inputs, output_dir=str(out), chunk_bytes="64MB", num_workers=WORKERS)


def remote(stream: str, address: str, folder: Path, limit: int | None) -> Callable[[], Iterator[Batch]]:
    load = _decoded() if stream == "jpeg" else array_transform()
    # It has no option for a store that is reached by plain HTTP. And 0.2.76 cuts off the end of a chunk that it fetches
    # in parallel ranges, since its index says how long the records are, without the table in front of them.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    downloader._PARALLEL_GET_MIN_BYTES = sys.maxsize
    # A chunk that two workers share is not mapped, but read: by 0.2.76 whole, once for each image, or for each few of
    # them, unless all of its images are decoded at once (item_loader.py, _load_batched_item). They stay JPEGs there.
    # Without a limit it leaves 50 GB of the disk free, and in /dev/shm there may be less.
    images = Images(address, load, cache_dir=str(folder), max_cache_size=limit or "100GB", batch_decode="all")
    loader = StreamingDataLoader(images, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)


class Images(StreamingDataset):  # type: ignore[misc]
    def __init__(self, source: str, load: Load, *, batch_decode: str = "item", **options: Any) -> None:
        super().__init__(source, shuffle=True, seed=SEED, batch_decode=batch_decode, **options)
        self.load = load

    def __getitem__(self, row: Any) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(row)
        return self.load(sample["image"]), sample["label"]


def _decoded() -> Load:
    transform = train_transform()
    return lambda data: transform(Image.open(io.BytesIO(data)).convert("RGB"))


def _batches(path: Path, load: Load, *, once: bool = False) -> Iterator[Batch]:
    images = Images(str(path), load)
    dataset = images if once else ParallelStreamingDataset([images], length=math.inf, transform=_alone)
    return iter(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True))


def _alone(samples: tuple[Any]) -> Any:
    return samples[0]
