"""Threads and two queues, the loader that packtrain's replaced: see examples/two_queues."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .common import BATCH, SEED, WORKERS, Batch, files
from .vision import train_transform

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from two_queues.loader import TwoQueues

OPTIONS: Final = {"readers": 1, "decoders": WORKERS, "batches_ahead": 4, "epoch": "endless: epoch after epoch"}


def jpeg(folder: Path, *, once: bool = False) -> Iterator[Batch]:
    return batches(jpeg_dataset(folder), once=once)


def jpeg_dataset(folder: Path) -> TwoQueues:
    options: dict[str, Any] = {"decoders": WORKERS, "batches_ahead": OPTIONS["batches_ahead"], "seed": SEED}
    return TwoQueues(files(folder), BATCH, train_transform(), drop_last=True, **options)


def batches(loader: TwoQueues, *, once: bool = False) -> Iterator[Batch]:
    return iter(loader) if once else itertools.chain.from_iterable(itertools.repeat(loader))
