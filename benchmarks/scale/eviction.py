"""Share of a dataset that is fetched per epoch through a cache that holds a part of it: a simulation of chunks.

Time goes by windows of the order. Before each, a machine has its chunks, and fetches those of the window after it; what
must go for them is chosen by a rule. Orders that know no windows are simulated record by record, with a cache that
drops what was used least recently.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.measure import print_table, target
from packtrain._core.keys import mixed
from packtrain._readers.loader.schedule import Dealing, Schedule
from packtrain._storage.streams.order import ChunkOrder
from packtrain._storage.streams.policy import Policy, Reading
from packtrain.orders import BlockShuffled, ChunkShuffled, Order, Shuffled

Integers = npt.NDArray[np.int64]
Windows = list[list[Integers]]
"""The chunks that a machine uses, by epoch and window."""
Rule = Callable[[Integers, Integers], Integers]
"""Priority of eviction, higher first, from next use and last use of a chunk, in windows; all int64 [chunks]."""

CHUNKS: Final = 12_000
"""ImageNet in chunks of 12 MiB."""
RECORDS: Final = 107
"""Records of a chunk."""
CACHES: Final = (0.1, 0.25, 0.5, 0.75)
NODES: Final = (1, 4, 12, 16, 256)
RANKS: Final = 8
BATCH: Final = 256
EPOCHS: Final = 8
LONG: Final = 48
"""Epochs after which the caches of many machines are full."""
SETTLING: Final = 3
"""Epochs before the steady state."""
RULES: Final[dict[str, Rule]] = {
    "farthest next use": lambda following, last: following,
    "most recently used": lambda following, last: last,
    "least recently used": lambda following, last: -last,
}
BELADY, RECENT, LRU = RULES
POLICY: Final = "by the state machine of the cache"
# Of the orders that are simulated record by record.
SMALL_CHUNKS: Final = 1_500
SMALL_RECORDS: Final = 80


class Places:
    """A dataset whose rows lie on disk in the order of their numbers, in equal chunks."""

    def __init__(self, chunks: int, records: int) -> None:
        self._bounds = np.arange(chunks + 1, dtype=np.int64) * records

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def rows_at(self, places: Integers) -> Integers:
        """The rows at these places."""
        return places

    def chunk_bounds(self) -> Integers:
        """Positions at which the chunks begin."""
        return self._bounds


def windows_of(order: ChunkOrder, nodes: int, epochs: int) -> list[Windows]:
    """The chunks that each machine uses."""
    found: list[Windows] = [[] for _ in range(nodes)]
    for epoch in range(epochs):
        visits = order.visits(mixed(7, epoch))
        # With lanes that are no multiple of the machines, neighbours share lanes.
        first, last = visits.lane * nodes // order.lanes, ((visits.lane + 1) * nodes - 1) // order.lanes
        for node, windows in enumerate(found):
            mine = (first <= node) & (node <= last)
            codes = np.unique(visits.window[mine] * order.chunk_count + visits.chunk[mine])
            window, chunk = np.divmod(codes, order.chunk_count)
            windows.append(np.split(chunk, np.searchsorted(window, np.arange(1, order.windows))))
    return found


def fetched(epochs: Windows, chunks: int, capacity: int, rule: Rule) -> list[int]:
    """The number of chunks that a machine fetches in each epoch.

    Args:
        epochs: The chunks that it uses.
        chunks: Number of chunks of the dataset.
        capacity: Number of chunks that its cache holds.
        rule: Which chunk goes.

    Raises:
        ValueError: The cache cannot hold two windows.
    """
    never = np.iinfo(np.int64).max // 2
    flat = [window for windows in epochs for window in windows]
    each = len(epochs[0])
    times = np.repeat(np.arange(len(flat)), [len(window) for window in flat])
    order = np.lexsort((times, np.concatenate(flat)))
    sorted_chunks, times = np.concatenate(flat)[order], times[order]
    pointer = np.searchsorted(sorted_chunks, np.arange(chunks))
    ends = np.searchsorted(sorted_chunks, np.arange(chunks), side="right")
    present, last = np.zeros(chunks, bool), np.full(chunks, -1, np.int64)
    counts = [0] * len(epochs)

    def following(now: int) -> Integers:
        use = np.where(pointer < ends, times[np.minimum(pointer, len(times) - 1)], never)
        # Of the epochs, this one and the next are known.
        return np.where(use < (now // each + 2) * each, use, never)

    def require(wanted: Integers, keep: Integers, now: int, epoch: int) -> None:
        missing = wanted[~present[wanted]]
        counts[epoch] += len(missing)
        surplus = int(present.sum()) + len(missing) - capacity
        if surplus > 0:
            kept = np.zeros(chunks, bool)
            kept[keep] = True
            there = np.flatnonzero(present & ~kept)
            if surplus > len(there):
                raise ValueError(f"a cache of {capacity} chunks cannot hold two windows")
            worth = rule(following(now)[there], last[there])
            present[there[np.argsort(-worth, kind="stable")[:surplus]]] = False
        present[missing] = True

    require(flat[0], flat[0], 0, 0)
    for now, window in enumerate(flat):
        ahead = flat[now + 1] if now + 1 < len(flat) else window
        require(ahead, np.concatenate([window, ahead]), now, min(now + 1, len(flat) - 1) // each)
        pointer[window] += 1
        last[window] = now
    return counts


def fetched_by_policy(order: ChunkOrder, nodes: int, node: int, capacity: int, epochs: int) -> list[int]:
    """The number of chunks that a machine fetches in each epoch as packtrain's own state machine says.

    Args:
        order: The order.
        nodes: Number of machines. The ranks of each are one reader.
        node: Which of them this is.
        capacity: Number of chunks that its cache holds.
        epochs: Number of epochs.
    """
    policy = Policy(order.bounds, np.ones(order.chunk_count, np.int64), capacity)
    counts = []
    for epoch in range(epochs):
        keys = mixed(7, epoch), mixed(7, epoch + 1)
        counts.append(0)
        for window in range(order.windows):
            consumed = window * (len(order) // order.lanes) // order.windows * order.lanes
            policy.read("reader", Reading(node, nodes, RANKS * BATCH, order.lanes, order.window, keys, consumed))
            while fetching := _fetch_some(policy):
                counts[-1] += fetching
    return counts


def _fetch_some(policy: Policy) -> int:
    """Fetches what is wanted now; returns how many chunks that is."""
    count = 0
    for chunk in policy.wanted():
        victims = policy.victims(1, chunk)
        if victims is None:
            break
        for victim in victims:
            policy.gone(victim)
        policy.begin(chunk)
        policy.arrived(chunk)
        count += 1
    return count


def fetched_record_by_record(
    order: Order, nodes: int, capacity: int, *, dealing: Dealing, epochs: int = 4, ranks: int = 1, batch: int = 64
) -> float:
    """Datasets that all machines together fetch in an epoch, each with a cache that drops the least recently used."""
    total = 0
    caches = [OrderedDict[int, None]() for _ in range(nodes)]
    for epoch in range(epochs):
        key = mixed(7, epoch)
        for node, cache in enumerate(caches):
            for chunk in _chunks_of(order, key, node, nodes, dealing, ranks, batch):
                if chunk in cache:
                    cache.move_to_end(chunk)
                    continue
                # The first epoch fills the caches.
                total += epoch > 0
                cache[chunk] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return total / (epochs - 1) / SMALL_CHUNKS


def _chunks_of(
    order: Order, key: int, node: int, nodes: int, dealing: Dealing, ranks: int, batch: int
) -> Iterator[int]:
    # The ranks of a machine read together, so they are simulated as one.
    schedule = Schedule(len(order), batch * ranks, node, nodes, False, dealing, order.lanes, nodes)
    places, consumed = order.rows(key, 0, len(order)), 0
    while step := schedule.step(consumed):
        yield from dict.fromkeys((places[step.positions] // SMALL_RECORDS).tolist())
        consumed = step.consumed


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Datasets fetched per epoch, by rule, number of machines, lanes, and share of the dataset that a cache holds."""
    chunks, nodes_of, epochs = (3_000, (1, 4), 4) if quick else (CHUNKS, NODES, EPOCHS)
    places = Places(chunks, RECORDS)
    default = ChunkShuffled(places)
    runs = []
    for nodes in nodes_of:
        fitted = default.fitted(nodes * RANKS * BATCH, nodes)
        kinds = {(32, max(1, 64 * nodes // 32)), (96, max(1, 64 * nodes // 96)), (fitted.lanes, fitted.chunks.window)}
        for lanes, window in sorted(kinds):
            order = ChunkOrder(places.chunk_bounds(), lanes, window)
            found = windows_of(order, nodes, epochs)
            for share in CACHES:
                for name, rule in RULES.items():
                    if nodes > 16 and (name != BELADY or lanes != fitted.lanes):
                        continue
                    runs.append(
                        {
                            "nodes": nodes,
                            "lanes": lanes,
                            "window": window,
                            "default": lanes == fitted.lanes,
                            "cache": share,
                            "rule": name,
                            "datasets_per_epoch": _steady(found, chunks, int(share * chunks), rule),
                        }
                    )
    small = Places(SMALL_CHUNKS, SMALL_RECORDS)
    others = {} if quick else _others(small)
    return {
        "input": {"chunks": chunks, "records_per_chunk": RECORDS, "epochs": epochs, "settling": SETTLING},
        "settings": {"ranks_per_node": RANKS, "batch_size": BATCH, "small_chunks": SMALL_CHUNKS},
        "runs": runs,
        "others": others,
        "targets": [] if quick else _targets(runs),
    }


def _steady(found: Sequence[Windows], chunks: int, capacity: int, rule: Rule) -> float:
    counts = np.sum([fetched(windows, chunks, capacity, rule) for windows in found], axis=0)
    return round(float(np.mean(counts[min(SETTLING, len(counts) - 1) :])) / chunks, 4)


def _others(small: Places) -> dict[str, float]:
    today, aligned = BlockShuffled(small, block=80, window=128), ChunkShuffled(small, lanes=32, window=2)
    found = {}
    for share in (0.1, 0.25):
        capacity = int(share * SMALL_CHUNKS)
        for name, order in (("Shuffled", Shuffled(len(small))), ("BlockShuffled", today), ("ChunkShuffled", aligned)):
            found[f"{name}, cache {share}, least recently used"] = fetched_record_by_record(
                order, 1, capacity, dealing="blocks", epochs=2 if order is not aligned else 4
            )
    for dealing in ("blocks", "lanes"):
        found[f"ChunkShuffled, 16 nodes, cache 0.5, dealt by {dealing}"] = fetched_record_by_record(
            ChunkShuffled(small, lanes=32, window=4), 16, SMALL_CHUNKS // 2, dealing=dealing, epochs=2
        )
    places = Places(CHUNKS // 4, RECORDS)
    chunks = ChunkOrder(places.chunk_bounds(), 32, 2)
    for share in CACHES:
        counts = fetched_by_policy(chunks, 1, 0, int(share * chunks.chunk_count), SETTLING + 2)
        found[f"ChunkShuffled, cache {share}, {POLICY}"] = float(np.mean(counts[SETTLING:])) / chunks.chunk_count
    for nodes in (4, 16):
        order_of_many = ChunkOrder(places.chunk_bounds(), 32, 64 * nodes // 32)
        windows = windows_of(order_of_many, nodes, LONG)
        for share in CACHES:
            capacity = int(share * order_of_many.chunk_count)
            counts = np.sum([fetched(each, order_of_many.chunk_count, capacity, RULES[BELADY]) for each in windows], 0)
            name = f"ChunkShuffled, {nodes} nodes, cache {share}, {BELADY}, in the long run"
            found[name] = float(np.mean(counts[-8:])) / order_of_many.chunk_count
    return {name: round(value, 3) for name, value in found.items()}


def _targets(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    def of(nodes: int, cache: float, rule: str = BELADY) -> float:
        return next(
            float(run["datasets_per_epoch"])
            for run in runs
            if run["default"] and (run["nodes"], run["cache"], run["rule"]) == (nodes, cache, rule)
        )

    return [
        *(
            target(f"fetched with a cache of {share}, datasets per epoch", of(1, share), most=1 - share + 0.05)
            for share in (0.25, 0.5, 0.75)
        ),
        target("fetched with a cache of 0.5, to that of least recently used", of(1, 0.5) / of(1, 0.5, LRU), most=2 / 3),
        target("fetched by 16 machines together, datasets per epoch", of(16, 0.1), most=1.1),
    ]


def show(result: dict[str, Any]) -> None:
    """Prints the datasets fetched per epoch."""
    runs = result["runs"]
    rows = []
    for nodes, lanes, rule in dict.fromkeys((run["nodes"], run["lanes"], run["rule"]) for run in runs):
        mine = [run for run in runs if (run["nodes"], run["lanes"], run["rule"]) == (nodes, lanes, rule)]
        values = {run["cache"]: f"{run['datasets_per_epoch']:.2f}" for run in mine}
        rows.append([str(nodes), f"{lanes}{' (default)' * mine[0]['default']}", rule, *map(values.get, CACHES)])
    print_table(["machines", "lanes", "what goes", *(f"cache {share}" for share in CACHES)], rows)
    if result["others"]:
        print()
        print_table(
            ["order", "datasets per epoch"], [[name, f"{value:.2f}"] for name, value in result["others"].items()]
        )
