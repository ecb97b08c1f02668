"""webdataset: tar shards with ShardWriter; WebDataset and WebLoader, torch's collate."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import webdataset
from PIL import Image

from .common import BATCH, WORKERS, Batch, arrays, files, random_crop
from .vision import array_transform, train_transform

Load = Callable[[bytes], torch.Tensor]
SHARDS: Final = 8
BUFFER: Final = 1000
OPTIONS: Final = {
    "num_workers": WORKERS,
    "shards": SHARDS,
    "shuffle": BUFFER,
    "batches": "collate_fn of the loader, faster than batched()",
    "epoch": "repeat()",
}


def write_jpeg(folder: Path) -> None:
    samples = files(folder)
    _write(folder / "webdataset-jpeg", [{"jpg": path, "cls": label} for path, label in samples])


def write_raw(folder: Path) -> None:
    _write(folder / "webdataset-raw", [{"npy": image, "cls": label} for image, label in arrays(folder)])


def jpeg(folder: Path, *, once: bool = False) -> Iterator[Batch]:
    transform = train_transform()
    load: Load = lambda data: transform(Image.open(io.BytesIO(data)).convert("RGB"))  # noqa: E731
    return _batches(folder / "webdataset-jpeg", "jpg", load, once=once)


def raw(folder: Path) -> Iterator[Batch]:
    return _batches(
        folder / "webdataset-raw", "npy", lambda data: torch.from_numpy(random_crop(np.load(io.BytesIO(data))))
    )


def raw_rrc(folder: Path) -> Iterator[Batch]:
    transform = array_transform()
    return _batches(folder / "webdataset-raw", "npy", lambda data: transform(np.load(io.BytesIO(data))))


def _write(out: Path, samples: list[dict[str, Any]]) -> None:
    out.mkdir()
    with webdataset.ShardWriter(f"{out}/%06d.tar", maxcount=-(-len(samples) // SHARDS), verbose=0) as sink:
        for number, sample in enumerate(samples):
            data = {"jpg": Path(sample["jpg"]).read_bytes()} if "jpg" in sample else {}
            sink.write({"__key__": f"{number:06d}", **sample, **data})


def _batches(shards: Path, name: str, load: Load, *, once: bool = False) -> Iterator[Batch]:
    dataset = webdataset.WebDataset(sorted(map(str, shards.glob("*.tar"))), shardshuffle=SHARDS).shuffle(BUFFER)
    dataset = dataset.to_tuple(name, "cls").map_tuple(load, int)
    if not once:
        dataset = dataset.repeat()
    return iter(webdataset.WebLoader(dataset, batch_size=BATCH, num_workers=WORKERS))
