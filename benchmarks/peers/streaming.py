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
    transform = train_transform()
    load: Load = lambda data: transform(Image.open(io.BytesIO(data)).convert("RGB"))  # noqa: E731
    return _batches(folder / "streaming-jpeg", load, once=once)


def raw(folder: Path) -> Iterator[Batch]:
    return _batches(folder / "streaming-raw", lambda image: torch.from_numpy(random_crop(image)))


def raw_rrc(folder: Path) -> Iterator[Batch]:
    return _batches(folder / "streaming-raw", array_transform())


class Images(StreamingDataset):  # type: ignore[misc]
    def __init__(self, path: Path, load: Load, epoch: int | None) -> None:
        super().__init__(local=str(path), batch_size=BATCH, shuffle=True, epoch_size=epoch)
        self.load = load

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(row)
        return self.load(sample["image"]), sample["label"]


def _batches(path: Path, load: Load, *, once: bool = False) -> Iterator[Batch]:
    dataset = Images(path, load, None if once else EPOCH)
    return iter(DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True))
