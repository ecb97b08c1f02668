"""For tests of epochs over a growing cache: a cache that grows between them, and what a loader must hand out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.filling import fill

from packtrain import Loader
from packtrain._core.generations import Generation, generation_numbers
from packtrain._growing.options import FillOptions
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GrowingDataset, newest
from packtrain._readers.dataset.samples import PackedSamples

VALUES = 128
SHARD = 64 << 10
BUDGET = 12 << 20
HEADROOM = 0.9
"""So much that a generation keeps only a tenth of the budget, and nothing ever waits for a reader."""


def sample(number: int) -> dict[str, Any]:
    """The sample of this number: its values say which one it is."""
    return {"x": np.arange(number, number + VALUES, dtype=np.int64), "n": np.int64(number), "label": number % 7}


def grow(root: Path, samples: int, budget: int = BUDGET) -> Generation:
    """Adds samples to a cache, whose oldest go when it is full, and returns its newest generation."""
    numbers = generation_numbers(root)
    first = Generation.load(root, numbers[-1]).end_sample if numbers else 0

    def source() -> Iterator[dict[str, Any]]:
        return map(sample, range(first, first + samples))

    fill(root, source, FillOptions(budget=budget, shard_size=SHARD, headroom=HEADROOM))
    return last(root)


def last(root: Path) -> Generation:
    """The newest generation of a cache."""
    return Generation.load(root, generation_numbers(root)[-1])


def opened(root: Path, keep: float = 3600) -> GrowingDataset:
    """The newest generation of a cache, as a dataset that can move on. States keep a generation for `keep` seconds."""
    dataset = GrowingDataset(PackedSamples(newest(CacheFiles(root)), fields=("x", "n", "label")))
    dataset.keep_generation = keep
    return dataset


def numbers(batches: Any) -> list[int]:
    """The numbers of the samples in some batches, whose values must be theirs."""
    found: list[int] = []
    for batch in batches:
        assert (batch.x == batch.n[:, None] + torch.arange(VALUES)).all()
        assert (batch.label == batch.n % 7).all()
        found += batch.n.tolist()
    return found


def of(generation: Generation) -> list[int]:
    """The numbers of the samples of a generation."""
    return list(range(generation.first_sample, generation.end_sample))


def loader_of(dataset: Any, batch_size: int = 8, **arguments: Any) -> Loader:
    """A loader that shuffles with a seed, in this process unless told otherwise."""
    order = {} if "sampler" in arguments else {"shuffle": True}
    return Loader(dataset, batch_size, **{"seed": 3, "num_workers": 0, **order, **arguments})
