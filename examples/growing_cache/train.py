"""Trains on a cache that a slow store fills meanwhile, and beside it on the first samples alone.

python examples/growing_cache/train.py CACHE --figures figures.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from sampler import VALIDATION, connect, fetch  # type: ignore[import-not-found]  # the file beside this one
from torch import nn

from packtrain import GrowingCache, Loader
from packtrain.errors import PacktrainError

CLASSES: Final = 4


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training.

    Attributes:
        budget: The most that the cache takes.
        shard_size: Size of a shard.
        rate: Bytes per second that the store sends.
        samples: Training ends when so many samples have arrived.
        batch_size: Pictures per step.
        workers: Processes that load pictures.
        every: Seconds between two figures.
        seed: Seed of the weights and the order.
    """

    budget: str = "16MiB"
    shard_size: str = "512KiB"
    rate: float = 1e6
    samples: int = 8_000
    batch_size: int = 64
    workers: int = 1
    every: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Figure:
    """State of cache and training at one moment.

    Attributes:
        seconds: Seconds since training began.
        epoch: Number of the epoch.
        generation: Number of the generation that is trained on.
        samples: Number of samples in it.
        arrived: Samples that have come from the store.
        used_bytes: Size of the cache on its disk.
        evicted_shards: Shards that made room for newer ones.
        wait_share: Part of the time that training has waited for data since the last figure.
        loss: Mean loss on pictures that are not for training.
        loss_of_first: The same of the network that is trained on the samples of the first epoch only.
    """

    seconds: float
    epoch: int
    generation: int
    samples: int
    arrived: int
    used_bytes: int
    evicted_shards: int
    wait_share: float
    loss: float
    loss_of_first: float


class Learner:
    """A small network that learns.

    Args:
        seed: Seed of its weights.
    """

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._model = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        )
        self._optimizer = torch.optim.Adam(self._model.parameters(), 0.003)

    def step(self, pictures: torch.Tensor, labels: torch.Tensor) -> None:
        """Learns from a batch, float32 [batch, 1, 32, 32] and int64 [batch]."""
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(pictures), labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    @torch.inference_mode()
    def loss(self, pictures: torch.Tensor, labels: torch.Tensor) -> float:
        """Mean loss on pictures that it does not learn from."""
        self._model.eval()
        found = F.cross_entropy(self._model(pictures), labels).item()
        self._model.train()
        return found


@contextmanager
def slow_store(rate: float) -> Iterator[None]:
    """Runs the store, and puts its address where the sampler looks for it."""
    command = [sys.executable, str(Path(__file__).with_name("store.py")), "--rate", str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    os.environ["STORE"] = process.stdout.readline().strip()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def validation() -> tuple[torch.Tensor, torch.Tensor]:
    """The pictures that are not for training, and their labels."""
    connection = connect()
    found = [fetch(connection, number) for number in range(VALIDATION)]
    connection.close()
    pictures = torch.from_numpy(np.stack([each["picture"] for each in found]))
    return pictures, torch.tensor([each["label"] for each in found])


def train(cache: GrowingCache, options: TrainOptions) -> Iterator[Figure]:
    """Trains a network on what the cache has, and another one on what it had first. Yields now and then."""
    # Two small networks are no work for several threads.
    torch.set_num_threads(1)
    unseen = validation()
    cache.fill("sampler:samples")
    dataset = cache.dataset(timeout=60)
    learner, limited = Learner(options.seed), Learner(options.seed)
    first: list[Any] = []
    random = torch.Generator().manual_seed(options.seed)
    started = last = time.perf_counter()
    waited = 0.0
    with Loader(dataset, options.batch_size, shuffle=True, seed=options.seed, num_workers=options.workers) as loader:
        for epoch in count(1):
            for batch in loader:
                if epoch == 1:
                    first.append((batch.picture.clone(), batch.label.clone()))
                learner.step(batch.picture, batch.label)
                # As many steps, but always of the same samples.
                limited.step(*first[int(torch.randint(len(first), (), generator=random))])
                if (now := time.perf_counter()) - last < options.every:
                    continue
                filled, waiting = cache.status().figures, loader.stats.total.waiting_seconds
                yield Figure(
                    seconds=now - started,
                    epoch=epoch,
                    generation=dataset.generation,
                    samples=len(dataset),
                    arrived=filled.samples,
                    used_bytes=filled.used_bytes,
                    evicted_shards=filled.evicted_shards,
                    wait_share=(waiting - waited) / (now - last),
                    loss=learner.loss(*unseen),
                    loss_of_first=limited.loss(*unseen),
                )
                last, waited = now, waiting
                if filled.samples >= options.samples:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on a cache that grows meanwhile.")
    parser.add_argument("cache")
    parser.add_argument("--figures", type=Path, help="a file for the figures, which chart.py draws")
    for name, default in asdict(TrainOptions()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    arguments = vars(parser.parse_args())
    root, path = arguments.pop("cache"), arguments.pop("figures")
    options = TrainOptions(**arguments)
    figures = []
    try:
        with slow_store(options.rate), GrowingCache(root, options.budget, shard_size=options.shard_size) as cache:
            for each in train(cache, options):
                figures.append(asdict(each))
                print(
                    f"{each.seconds:3.0f} s, epoch {each.epoch}: generation {each.generation}, {each.samples:,} samples"
                    f" ({each.arrived:,} arrived, {each.evicted_shards} shards evicted), waited {each.wait_share:.1%},"
                    f" loss {each.loss:.3f}, with the first samples only {each.loss_of_first:.3f}",
                    flush=True,
                )
            budget = cache.status().budget_bytes
    except PacktrainError as error:
        sys.exit(f"error: {error}")
    if path is not None:
        path.write_text(json.dumps({"budget_bytes": budget, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
