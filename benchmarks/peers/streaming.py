"""mosaicml-streaming: MDS shards; StreamingDataset and torch's DataLoader, as in its documentation for images."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from torch.utils.data import DataLoader

from .common import BATCH, EPOCH, SHARD_BYTES, WORKERS, Batch, arrays, files, random_crop
from .vision import array_transform, train_transform

# After vision, which lets it import torchvision.
from streaming import MDSWriter, StreamingDataset  # isort: skip
from streaming.base.util import clean_stale_shared_memory  # isort: skip

SHUFFLE_BLOCK: Final = 512
"""Samples that are shuffled together if the cache is limited: those of two shards of raw images."""
Load = Callable[[Any], torch.Tensor]
OPTIONS: Final = {
    "num_workers": WORKERS,
    "shard_bytes": SHARD_BYTES,
    "persistent_workers": True,
    "prefetch_factor": "default, 2",
    "shuffle": "default, py1e",
    "epoch": "as long as the measurement: epoch_size",
}


def write_jpeg(folder: Path) -> None:
    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(folder / "streaming-jpeg"), columns=columns, size_limit=SHARD_BYTES) as sink:
        for path, label in files(folder):
            sink.write({"image": Path(path).read_bytes(), "label": label})


def write_raw(folder: Path) -> None:
    columns = {"image": "ndarray:uint8", "label": "int"}
    with MDSWriter(out=str(folder / "streaming-raw"), columns=columns, size_limit=SHARD_BYTES) as sink:
        for image, label in arrays(folder):
            sink.write({"image": image, "label": label})


def jpeg(folder: Path, *, once: bool = False) -> Iterator[Batch]:
    return _batches(folder / "streaming-jpeg", _decoded(), once=once)


def raw(folder: Path) -> Iterator[Batch]:
    return _batches(folder / "streaming-raw", lambda image: torch.from_numpy(random_crop(image)))


def raw_rrc(folder: Path) -> Iterator[Batch]:
    return _batches(folder / "streaming-raw", array_transform())


def remote(stream: str, address: str, folder: Path, limit: int | None) -> Callable[[], Iterator[Batch]]:
    load = _decoded() if stream == "jpeg" else array_transform()
    # What a killed process has left would be taken for this one's.
    clean_stale_shared_memory()
    # By default it shuffles all of a gigabyte at once, and fetches most shards anew for each few samples.
    block = None if limit is None else SHUFFLE_BLOCK
    dataset = Images(load, remote=address, local=str(folder), cache_limit=limit, shuffle_block_size=block)
    loader: DataLoader[Any] = DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)


class Images(StreamingDataset):  # type: ignore[misc]
    def __init__(self, load: Load, **options: Any) -> None:
        super().__init__(batch_size=BATCH, shuffle=True, **options)
        self.load = load

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(row)
        return self.load(sample["image"]), sample["label"]


def _decoded() -> Load:
    transform = train_transform()
    return lambda data: transform(Image.open(io.BytesIO(data)).convert("RGB"))


def _batches(path: Path, load: Load, *, once: bool = False) -> Iterator[Batch]:
    dataset = Images(load, local=str(path), epoch_size=None if once else EPOCH)
    return iter(DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True))
