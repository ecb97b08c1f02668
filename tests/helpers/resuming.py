"""A training run that is saved, stopped and restarted, and a model in plain Python of what it must see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import islice
from typing import Any, NamedTuple, Self

import torch
import torch.distributed
from helpers.batching import Numbers, steps, through_json

from packtrain import Loader
from packtrain._readers.dataset.image_dataset import samples_of
from packtrain._readers.loader.state import identity_of
from packtrain.orders import BlockShuffled, ChunkShuffled, Order, RepeatedAugmentation, Sequential, Shuffled, Weighted

SEED = 7
FIELDS = ("position", "row")

ORDERS: dict[str, Callable[[Any], Order]] = {
    "shuffled": lambda dataset: Shuffled(len(dataset)),
    "sequential": lambda dataset: Sequential(len(dataset)),
    "weighted": lambda dataset: Weighted(range(1, len(dataset) + 1), len(dataset) * 5 // 4),
    "blocks": lambda dataset: BlockShuffled(dataset, block=3, window=2),
    "chunks": lambda dataset: ChunkShuffled(dataset, lanes=5, window=2),
    "repeated": lambda dataset: RepeatedAugmentation(len(dataset), samples=len(dataset) * 5 // 4),
}


class Topology(NamedTuple):
    """Options that may change from one start to the next."""

    world: int
    batch: int
    drop_last: bool
    workers: int


@lru_cache
def numbers(rows: int) -> Numbers:
    """One dataset for each size, so that `epoch_of` can cache it."""
    return Numbers(rows)


@cache
def epoch_of(dataset: Any, order: str, epoch: int) -> tuple[Any, ...]:
    """Image, label and row of each position of an epoch, from an uninterrupted pass in this process."""
    loader = Loader(dataset, 1, seed=SEED, sampler=ORDERS[order](dataset), num_workers=0, fields=FIELDS)
    loader.set_epoch(epoch)
    found = [(image[0], int(label[0]), int(row)) for image, label, _, row in loader]
    assert len(found) == len(ORDERS[order](dataset))
    return tuple(found)


def content(dataset: Any, order: str, epoch: int, positions: list[int]) -> tuple[Any, Any, list[int]]:
    """The images, labels and rows that a batch of these positions must have."""
    images, labels, rows = zip(*(epoch_of(dataset, order, epoch)[position] for position in positions), strict=True)
    return torch.stack(images), torch.tensor(labels), list(rows)


@dataclass
class Model:
    """Knows what must be handed out next, in positions only."""

    length: int
    order: str
    made: Order
    parameters: dict[str, Any]
    epoch: int = 0
    consumed: int = 0
    began: int = 0
    handed: int = 0
    left: list[tuple[list[list[int]], int]] | None = None

    @classmethod
    def of(cls, dataset: Any, order: str) -> Self:
        made = ORDERS[order](dataset)
        packed = samples_of(dataset)
        identity = {} if packed is None else {"dataset": identity_of(packed.stores)}
        parameters = {"parameters": dict(made.parameters)} if made.parameters else {}
        return cls(len(made), order, made, parameters | identity)

    def begin(self, topology: Topology) -> None:
        if self.handed:
            self.move(*((self.epoch, self.began) if self.look else (self.epoch + 1,)))
        world, batch, drop_last, _ = topology
        to_come = steps(
            self.length,
            self.consumed,
            batch=batch,
            world=world,
            drop_last=drop_last,
            dealing=self.made.dealing,
            lanes=self.made.lanes,
            # Of ranks that are given by hand, each is a node.
            nodes=world,
        )
        self.left = list(to_come)

    def take(self) -> list[list[int]] | None:
        """The next positions of every rank, or None at the end of the epoch."""
        assert self.left is not None
        self.began = self.began if self.handed else self.consumed
        self.handed += 1
        if not self.left:
            self.move(self.epoch + 1)
            return None
        positions, self.consumed = self.left.pop(0)
        return positions

    @property
    def look(self) -> bool:
        """True if the pass would count for nothing if it were left now: after one batch that is not the last."""
        return self.handed == 1 and bool(self.left)

    def move(self, epoch: int, consumed: int = 0) -> None:
        self.epoch, self.consumed, self.handed, self.left = epoch, consumed, 0, None

    @property
    def state(self) -> dict[str, Any]:
        order = type(ORDERS[self.order](numbers(1))).__name__
        place = {"seed": SEED, "epoch": self.epoch, "consumed": self.consumed}
        return {"version": 1, **place, "length": self.length, "order": order, **self.parameters}


@dataclass
class Run:
    """The loaders of all ranks in one process, compared with the model after every action."""

    dataset: Any
    order: str
    topology: Topology
    model: Model = field(init=False)
    loaders: list[Loader] = field(init=False)
    passes: list[Iterator[Any]] | None = None
    saved: dict[str, Any] | None = None
    batches: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        self.model = Model.of(self.dataset, self.order)
        self._stack = ExitStack()
        self._start(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def do(self, name: str, *arguments: Any) -> None:
        getattr(self, name)(*arguments)
        states = [loader.state_dict() for loader in self.loaders]
        assert states == [self.model.state] * len(states)
        assert through_json(states[0]) == states[0]

    def take(self, count: int) -> None:
        """Takes that many steps on all ranks. The end of the epoch counts as one."""
        for _ in range(count):
            if self.passes is None:
                self.begin()
            assert self.passes is not None
            epoch, expected = self.model.epoch, self.model.take()
            found = [next(part, None) for part in self.passes]
            if expected is None:
                assert found == [None] * len(found)
                self.passes = None
                continue
            for positions, batch in zip(expected, found, strict=True):
                assert batch is not None, f"{positions} are missing"
                images, labels, rows = content(self.dataset, self.order, epoch, positions)
                assert (batch[2].tolist(), batch[3].tolist()) == (positions, rows)
                assert torch.equal(batch[0], images) and torch.equal(batch[1], labels)
                self.batches += 1

    def begin(self) -> None:
        """Begins a pass without taking anything of it."""
        self.model.begin(self.topology)
        self.passes = [iter(loader) for loader in self.loaders]

    def leave(self) -> None:
        """Stops the pass early."""
        self.passes = None

    def set_epoch(self, epoch: int) -> None:
        if self.model.look and epoch == self.model.epoch:
            self.model.move(epoch, self.model.began)
        elif self.model.handed or epoch != self.model.epoch:
            self.model.move(epoch)
        for loader in self.loaders:
            loader.set_epoch(epoch)
        self.passes = None

    def save(self) -> None:
        self.saved = through_json(self.loaders[-1].state_dict())

    def load(self) -> None:
        """Goes back to the saved state, in the same loaders."""
        if self.saved is not None:
            self.model.move(self.saved["epoch"], self.saved["consumed"])
            for loader in self.loaders:
                loader.load_state_dict(self.saved)
            self.passes = None

    def restart(self, topology: Topology) -> None:
        """Continues from here with new loaders."""
        state = through_json(self.loaders[0].state_dict())
        self.model.move(state["epoch"], state["consumed"])
        self._stack.close()
        self.topology, self.passes = topology, None
        self._start(state)
        self.restarts += 1

    def _start(self, state: dict[str, Any] | None) -> None:
        world, batch, drop_last, workers = self.topology
        self.loaders = []
        for rank in range(world):
            loader = Loader(
                self.dataset,
                batch,
                # The seed is in the state.
                seed=SEED if state is None else 0,
                drop_last=drop_last,
                sampler=ORDERS[self.order](self.dataset),
                num_workers=workers,
                multiprocessing_context="fork",
                fields=FIELDS,
                rank=rank,
                world_size=world,
            )
            if state is not None:
                loader.load_state_dict(state)
            self.loaders.append(self._stack.enter_context(loader))


ROWS = 23
"""Number of rows in the dataset that `loader_of` goes through."""


def loader_of(batch: int = 3, **options: Any) -> Loader:
    options = {"shuffle": "sampler" not in options, "seed": SEED, "num_workers": 0, "fields": FIELDS, **options}
    return Loader(Numbers(ROWS), batch, **options)


def go_on(rank: int, world: int, state: Any, count: int | None, batch: int, workers: int = 0) -> Any:
    """Takes some steps on a rank of the process group.

    Returns:
        Positions of each step, the state then, and the number of batches in an epoch.
    """
    with loader_of(batch, num_workers=workers, multiprocessing_context="fork") as loader:
        assert (loader.rank, loader.world_size) == (rank, world)
        if state is not None:
            loader.load_state_dict(state)
        found = []
        for images, labels, positions, rows in islice(loader, count):
            assert torch.equal(images[:, 0], labels.double()) and torch.equal(labels, rows)
            found.append(positions.tolist())
            # Like an exchange of gradients, this would hang if one rank had fewer steps.
            torch.distributed.barrier()
        return found, loader.state_dict(), len(loader)
