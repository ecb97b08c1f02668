"""The order for a dataset of which only a part is on this machine."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol, Self

import numpy as np

from packtrain._core.arguments import whole
from packtrain._core.overriding import override
from packtrain._storage.streams.order import ChunkOrder
from packtrain._storage.streams.policy import least_bytes

from ..dataset.image_dataset import ImageDataset
from .order import Order, Placed, Rows, checksum, placed, probed

# Number of lanes, at least, and how many times as many may be taken so that they divide a step.
_LANES: Final = 32
_TIMES: Final = 4


class Chunked(Placed, Protocol):
    """The part of a dataset that `ChunkShuffled` needs."""

    def chunk_bounds(self) -> Rows:
        """The places at which its chunks begin, and the number of places: int64 [chunks + 1]."""


@dataclass(frozen=True)
class Room:
    """Room in the cache of each machine.

    Attributes:
        bytes: For the chunks that are worked on.
        sizes: Size of each chunk of the cache that the order goes through, int64 [any].
        share: Part of the order's chunks that lies in the cache.
        world_size: Number of ranks.
        batch_size: Number of positions that one rank takes in a step.
    """

    bytes: int
    sizes: Rows
    share: float
    world_size: int
    batch_size: int

    def holds(self, lanes: int, window: int, nodes: int) -> bool:
        """True if there is room for the present window and the next one of all lanes that a machine's ranks take."""
        least = least_bytes(self.sizes, self._lanes_of_rank(lanes), window, self.share)
        return -(-self.world_size // nodes) * least <= self.bytes

    def _lanes_of_rank(self, lanes: int) -> int:
        """The most lanes that a rank takes positions from."""
        each, rest = divmod(self.world_size * self.batch_size, lanes)
        if not each:
            return lanes
        if not rest and (self.batch_size % each == 0 or each % self.batch_size == 0):
            return max(1, self.batch_size // each)
        return min(lanes, self.batch_size // each + 2)


class ChunkShuffled(Order):
    """Every row once, in an order that a cache for a part of the dataset can serve.

    A dataset in an object store comes to this machine in *chunks*: runs of records of 12 to 16 MiB. The chunks are
    shuffled and dealt out to *lanes*. In each lane, the records of the next `window` chunks are shuffled, and a batch
    takes equally many records from every lane. So each machine works on about `at_once` chunks at any time, and when it
    has gone through these it does not need them again in this epoch.

    How random that is: every chunk is equally likely at every position, so the place of a record says nothing about its
    position. What differs is which records share a batch. On one machine, two records of a batch come from the same
    chunk with a probability of about 1 / `at_once`. A chunk is used up in ``at_once / chunks`` of an epoch.
    The packer puts records in random places, so chunks are not classes, unless the order of the list was kept.

    A machine takes its positions from lanes of its own, and each of its ranks from all of these. So the records of a
    chunk meet only those that the same machine takes, as if the dataset had been divided among the machines anew for
    each epoch.

    Lanes and window are chosen as an epoch begins. A state keeps them, so the rest of an epoch can be taken by other
    numbers of ranks and machines, which then fetch some chunks twice. If ranks are given by hand, nobody knows which
    of them run on the same machine, so each is treated as a machine of its own.

    Args:
        dataset: A packed dataset, or a subset or concatenation of packed datasets. On a local disk, too.
        lanes: Number of lanes; None: a multiple of the number of machines, at least 32, that divides the number of
            records in a step if that can be had.
        window: Number of chunks of a lane that are shuffled together; None: as `at_once` says.
        at_once: About how many chunks each machine works on at any time. Its cache must hold twice as many, and those
            that are being fetched.

    Raises:
        UsageError: The dataset does not know its chunks, or a number is less than 1.
    """

    dealing = "lanes"

    def __init__(
        self,
        dataset: ImageDataset | Chunked,
        *,
        lanes: int | None = None,
        window: int | None = None,
        at_once: int = 64,
    ) -> None:
        self._placed: Final[Chunked] = placed(dataset, "ChunkShuffled", "chunk_bounds", "its chunks")
        self._lanes: Final = None if lanes is None else whole("lanes", lanes, 1)
        self._window: Final = None if window is None else whole("window", window, 1)
        self._at_once: Final = whole("at_once", at_once, 1)
        self._rooms: Sequence[Room] = ()
        self._take(ChunkOrder(self._placed.chunk_bounds(), *self._sizes(1, 1)))
        self.dataset_rows = len(self)

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    @override
    def parameters(self) -> Mapping[str, int]:
        return {"lanes": self.chunks.lanes, "window": self.chunks.window, **self._of_dataset}

    @cached_property
    def _of_dataset(self) -> Mapping[str, int]:
        return {"chunks": checksum(self.chunks.bounds), "places": probed(self._placed)}

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        return self._placed.rows_at(self.chunks.places(key, start, stop))

    @override
    def batch_rows(self, key: int, positions: Rows) -> Rows:
        return self._placed.rows_at(self.chunks.places_of(key, positions))

    def fitted(self, step: int, nodes: int) -> Self:
        """Return the order for an epoch that begins now. An epoch that has begun keeps its order.

        Args:
            step: Number of positions that all ranks together take in a step.
            nodes: Number of machines that they run on.
        """
        return self._with(*self._sizes(step, nodes))

    def resumed(self, parameters: Mapping[str, int]) -> Self:
        """Return the order for the rest of an epoch whose state has these parameters, as far as they can be used."""
        lanes, window = parameters.get("lanes"), parameters.get("window")
        if not (type(lanes) is int and type(window) is int and min(lanes, window) > 0):
            return self
        return self._with(lanes, window)

    def within(self, rooms: Sequence[Room]) -> Self:
        """The same, but with fewer chunks at once from the next epoch on if one of the caches has no room for more."""
        other = copy.copy(self)
        other._rooms = rooms
        return other

    def is_of(self, dataset: Chunked) -> bool:
        """True if the places of a dataset are those of the dataset that this was made for, as far as probes tell."""
        return self._placed is dataset or (
            np.array_equal(self.chunks.bounds, dataset.chunk_bounds()) and probed(dataset) == self._of_dataset["places"]
        )

    def _with(self, lanes: int, window: int) -> Self:
        if (lanes, window) == (self.chunks.lanes, self.chunks.window):
            return self
        other = copy.copy(self)
        other._take(ChunkOrder(self.chunks.bounds, lanes, window))
        return other

    def _take(self, chunks: ChunkOrder) -> None:
        """Takes an order of the places, on which all else is built."""
        self.chunks, self.lanes = chunks, chunks.lanes

    def _sizes(self, step: int, nodes: int) -> tuple[int, int]:
        """Lanes and window for ranks that take `step` positions together, on this many machines."""
        lanes, window = self._wanted_sizes(step, nodes)
        if self._window is None:
            window = next((each for each in range(window, 1, -1) if self._have_room(lanes, each, nodes)), 1)
        if self._lanes is None and not self._have_room(lanes, window, nodes):
            fewer = range(lanes - nodes, nodes, -nodes)
            lanes = next((each for each in fewer if self._have_room(each, window, nodes)), min(lanes, nodes))
        return lanes, window

    def _have_room(self, lanes: int, window: int, nodes: int) -> bool:
        return all(room.holds(lanes, window, nodes) for room in self._rooms)

    def _wanted_sizes(self, step: int, nodes: int) -> tuple[int, int]:
        """The same, whatever room there is."""
        lanes = self._lanes
        if lanes is None:
            least = -(-_LANES // nodes)
            multiples = range(least, least * _TIMES + 1)
            lanes = nodes * next((each for each in multiples if step % (each * nodes) == 0), least)
        window = self._window
        return lanes, max(1, round(self._at_once * nodes / lanes)) if window is None else window
