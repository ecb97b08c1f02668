"""packtrain's DaliLoader on the processor: packtrain reads, plans and cuts; DALI decodes, resizes and flips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from packtrain import ImageDataset
from packtrain.dali import DaliLoader

from .common import BATCH, PACKED, SEED, WORKERS, Batch
from .packtrain import evaluation_dataset, jpeg_dataset, repeated

OPTIONS: Final = {
    "num_threads": WORKERS,
    "prefetch_factor": "default, 2",
    "epoch": "as long as the measurement: concat",
}


def jpeg(folder: Path, *, once: bool = False, packed: str = PACKED) -> Iterator[Batch]:
    return batches(jpeg_dataset(folder, once=once, packed=packed))


def evaluation(folder: Path, *, packed: str = PACKED) -> Iterator[Batch]:
    return batches(repeated(evaluation_dataset(folder, packed)))


def batches(dataset: ImageDataset, **options: Any) -> Iterator[Batch]:
    with DaliLoader(dataset, BATCH, shuffle=True, num_threads=WORKERS, seed=SEED, **options) as loader:
        yield from loader
