"""Randomness of an order in chunks, compared with that of a full shuffle and of blocks of a disk.

Figures of which records share a batch, and trainings of a small network. The dataset is one of numbers: what matters is
where records lie and of which class they are. Packed by default, records lie in random places; with ``--keep-order``,
those of a class lie together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measure import print_table
from benchmarks.scale.eviction import Places
from packtrain._core.keys import mixed
from packtrain._readers.loader.schedule import Schedule
from packtrain.orders import BlockShuffled, ChunkShuffled, Order, Shuffled

Integers = npt.NDArray[np.int64]

CHUNKS: Final = 12_000
"""ImageNet in chunks of 12 MiB."""
RECORDS: Final = 107
CLASSES: Final = 1_000
RANKS: Final = 8
BATCH: Final = 256
PAIRS: Final = 200_000
BATCHES: Final = 200
PLACES: Final = ("random places", "by class")

# The trainings: as small a part of the dataset is worked on at any time as with ImageNet.
TRAINED: Final = 60_000
TRAINED_CHUNKS: Final = 6_000
TRAINED_CLASSES: Final = 100
FEATURES: Final = 64
EPOCHS: Final = 4
SEEDS: Final = 4


def orders(places: Places, nodes: int) -> dict[str, Order]:
    """The orders that are compared."""
    return {
        "Shuffled": Shuffled(len(places)),
        "BlockShuffled": BlockShuffled(places),
        "ChunkShuffled": ChunkShuffled(places).fitted(nodes * RANKS * BATCH, nodes),
    }


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Figures of batches, and accuracies of the trained network."""
    places = Places(CHUNKS // (10 if quick else 1), RECORDS)
    rows = {}
    for nodes in (1, 16):
        for name, order in orders(places, nodes).items():
            rows[f"{name}, {nodes} machine{'s' * (nodes > 1)}"] = _figures(order, places, nodes)
    return {
        "input": {"chunks": CHUNKS, "records_per_chunk": RECORDS, "classes": CLASSES},
        "settings": {"ranks_per_node": RANKS, "batch_size": BATCH, "epochs": EPOCHS, "seeds": SEEDS},
        "figures": rows,
        "trainings": _trainings(1 if quick else SEEDS, 1 if quick else EPOCHS),
        "targets": [],
    }


def _figures(order: Order, places: Places, nodes: int) -> dict[str, float]:
    key, count = mixed(1, 2), len(places)
    every = order.rows(key, 0, count)
    position = np.empty(count, np.int64)
    position[every] = np.arange(count)
    generator = np.random.default_rng(0)
    first = generator.integers(0, count, PAIRS)
    chunk = first // RECORDS
    second = chunk * RECORDS + generator.integers(0, RECORDS, PAIRS)
    apart = np.abs(position[first] - position[second])[first != second] / count
    world = nodes * RANKS
    of_rank, of_node = [], []
    classes: dict[str, list[int]] = {name: [] for name in PLACES}
    shuffle = np.random.default_rng(1).permutation(count) * CLASSES // count
    steps = count // (world * BATCH)
    for step in np.unique(np.linspace(0, steps - 1, BATCHES).astype(int)).tolist():
        batches = []
        for rank in range(RANKS):
            schedule = Schedule(count, BATCH, rank, world, False, order.dealing, order.lanes, nodes)
            taken = schedule.step(step * world * BATCH)
            assert taken is not None
            batches.append(every[taken.positions])
        of_rank += [_same_chunk(batch) for batch in batches]
        of_node.append(_same_chunk(np.concatenate(batches)))
        # A chunk by class lies in the order of the list.
        for name, labels in zip(PLACES, (shuffle, np.arange(count) * CLASSES // count), strict=True):
            classes[name] += [len(np.unique(labels[batch])) for batch in batches[:2]]
    return {
        "pairs of a batch that share a chunk, %": round(100 * statistics.mean(of_rank), 4),
        "of all batches of a machine's step, %": round(100 * statistics.mean(of_node), 4),
        "median distance of two records of a chunk, % of an epoch": round(100 * float(np.median(apart)), 3),
        "99 % of them are closer than, %": round(100 * float(np.quantile(apart, 0.99)), 3),
        **{f"classes of a batch, {name}": round(statistics.mean(found), 1) for name, found in classes.items()},
    }


def _same_chunk(rows: Integers) -> float:
    counts = np.unique(rows // RECORDS, return_counts=True)[1]
    return float((counts * (counts - 1)).sum() / (len(rows) * (len(rows) - 1)))


def _trainings(seeds: int, epochs: int) -> dict[str, dict[str, float]]:
    """Accuracy on other samples after some epochs, by order and place: mean and standard deviation over the seeds."""
    torch.set_num_threads(1)
    places = Places(TRAINED_CHUNKS, TRAINED // TRAINED_CHUNKS)
    found = {}
    made = {
        "Shuffled": lambda: Shuffled(TRAINED),
        "BlockShuffled": lambda: BlockShuffled(places, block=TRAINED // TRAINED_CHUNKS, window=64),
        "ChunkShuffled": lambda: ChunkShuffled(places),
    }
    for where in PLACES:
        for name, make in made.items():
            accuracies = [_accuracy(make, where, seed, epochs) for seed in range(seeds)]
            deviation = statistics.stdev(accuracies) if seeds > 1 else 0.0
            found[f"{name}, {where}"] = {
                "accuracy, %": round(100 * statistics.mean(accuracies), 2),
                "deviation, %": round(100 * deviation, 2),
            }
    return found


def _accuracy(make: Callable[[], Order], where: str, seed: int, epochs: int) -> float:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    prototypes = torch.randn(TRAINED_CLASSES, 8, FEATURES, generator=generator)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(TRAINED_CLASSES, (count,), generator=generator)
        which = torch.randint(8, (count,), generator=generator)
        noise = torch.randn(count, FEATURES, generator=generator)
        return prototypes[labels, which] + 1.3 * noise, labels

    images, labels = samples(TRAINED)
    if where == "by class":
        by_class = torch.argsort(labels, stable=True)
        images, labels = images[by_class], labels[by_class]
    hidden = 256
    layers = [torch.nn.Linear(FEATURES, hidden), torch.nn.BatchNorm1d(hidden), torch.nn.ReLU()]
    layers += [torch.nn.Linear(hidden, hidden), torch.nn.BatchNorm1d(hidden), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(hidden, TRAINED_CLASSES))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)
    order, steps = make(), TRAINED // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=epochs * steps)
    for epoch in range(epochs):
        rows = torch.from_numpy(order.rows(mixed(seed, epoch), 0, TRAINED))
        for step in range(steps):
            batch = rows[step * BATCH : (step + 1) * BATCH]
            loss = torch.nn.functional.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval()
    images, labels = samples(20_000)
    with torch.no_grad():
        return float((network(images).argmax(1) == labels).float().mean())


def show(result: dict[str, Any]) -> None:
    """Prints the figures and the accuracies."""
    for title, key in (("order", "figures"), ("order, where records lie", "trainings")):
        rows = result[key]
        heads = list(next(iter(rows.values())))
        print_table([title, *heads], [[name, *(f"{row[head]:g}" for head in heads)] for name, row in rows.items()])
        print()
