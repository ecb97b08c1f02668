"""The orders in which an epoch goes through a dataset: arithmetic from position to row, with no list in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._core.arguments import unexpected, whole
from packtrain._core.errors import UsageError
from packtrain._core.keys import mixed
from packtrain._core.overriding import override
from packtrain._core.permutation import Permutation

from ..dataset.image_dataset import ImageDataset, samples_of
from .randomness import uniforms
from .schedule import Dealing

Rows = npt.NDArray[np.int64]

# Mixed into the key, from which the caller may also draw augmentations: an order draws other numbers.
_DRAWS, _ROTATION, _BLOCKS, _WINDOWS = range(0x6F72646572, 0x6F72646576)

# Enough rows that the fixed cost of a call no longer matters: 64 KiB.
_AHEAD: Final = 8192
# DeiT takes so many rows, or a multiple of them.
_ROUND: Final = 256
# Number of records whose place on disk a state remembers.
_PROBES: Final = 1024


class Order(ABC):
    """A sequence of rows for every epoch.

    An order of your own has `__len__` and `rows`. It may have `batch_rows` as well, if that can be faster.

    Attributes:
        dataset_rows: Number of rows of the dataset that the order is for; None: any.
        dealing: How the positions of a step are dealt out to the ranks, see `Schedule`.
        lanes: Number of lanes, if positions are dealt out by lanes.
    """

    dataset_rows: int | None = None
    dealing: Dealing = "blocks"
    lanes = 1

    @abstractmethod
    def __len__(self) -> int:
        """Number of positions in an epoch."""

    @abstractmethod
    def rows(self, key: int, start: int, stop: int) -> Rows:
        """Return the rows at positions `start` to `stop`, int64 [stop - start]. Earlier calls make no difference.

        Args:
            key: Key of the epoch in [0, 2**64). Equal keys give equal rows, different keys unrelated ones.
            start: First position.
            stop: One past the last position.

        Raises:
            IndexError: There are no such positions.
        """

    def batch_rows(self, key: int, positions: Rows) -> Rows:
        """Return the rows of a batch; both int64 [n].

        Args:
            key: Key of the epoch.
            positions: Positions that a rank takes in a step, in any order.
        """
        first, last = int(positions[0]), int(positions[-1])
        apart = int(positions[1]) - first if len(positions) > 1 else 1
        if apart > 0 and last - first == apart * (len(positions) - 1):
            found = self.rows(key, first, last + 1)
            return found if apart == 1 else found[::apart]
        # They continue at the beginning of the epoch.
        return np.concatenate([self.rows(key, position, position + 1) for position in positions.tolist()])

    @property
    def parameters(self) -> Mapping[str, int]:
        """Everything that decides the rows besides key and length. A state can be loaded only where this is equal."""
        return {}


class Sequential(Order):
    """The rows in their order in the dataset.

    Args:
        rows: Number of rows.
    """

    def __init__(self, rows: int) -> None:
        self.dataset_rows = self._rows = whole("rows", rows, 0)

    def __len__(self) -> int:
        return self._rows

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        check_range(self, start, stop)
        return np.arange(start, stop, dtype=np.int64)


class Shuffled(Order):
    """Every row once, in a different order for every key.

    Args:
        rows: Number of rows.
    """

    def __init__(self, rows: int) -> None:
        self.dataset_rows = self._rows = whole("rows", rows, 0)

    def __len__(self) -> int:
        return self._rows

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        check_range(self, start, stop)
        return _shuffled(self._rows, key, start, stop)


class Placed(Protocol):
    """The part of a dataset that `BlockShuffled` needs."""

    def __len__(self) -> int:
        """Number of rows."""

    def rows_at(self, places: Rows) -> Rows:
        """The rows whose records lie at these places in the order on disk; int64, with the shape of `places`."""


class BlockShuffled(Order):
    """Every row once, for disks that are slow at random reads.

    The places of a dataset, which are the order of its records on disk, are cut into blocks. The blocks are shuffled.
    Then the records within every `window` consecutive blocks are shuffled. So at any time, reads come from a few
    stretches of the disk: what the disk reads next to a record is soon needed, and seeks are short. The loader asks for
    the records of a batch, not for whole blocks.

    How random that is: as in a full shuffle, every record is equally likely at every position, and its place says
    nothing about its position. What differs is which records share a batch. Two records of one batch come from the same
    block with a probability of 1 / `window`, where a full shuffle of n rows has `block` / n. A batch of B records
    touches about ``window * (1 - exp(-B / window))`` blocks instead of B. With the defaults, 0.8 % of the pairs in a
    batch share a block, and a batch of 256 touches 111 blocks. Where blocks begin is drawn, too, so the records in a
    block change with the key. And since the packer puts records in random places, blocks are not classes, unless the
    order of the list was kept.

    Args:
        dataset: A packed dataset, or a subset or concatenation of packed datasets.
        block: Number of records that are read in one go. 64 JPEGs of ImageNet are 7 MB: a disk with 10 ms per seek and
            200 MB/s spends three quarters of its time reading.
        window: Number of blocks that are shuffled together. The page cache should hold two windows, which are
            2 * `block` * `window` records.

    Raises:
        UsageError: The dataset does not know where its records lie, or `block` or `window` is less than 1.
    """

    def __init__(self, dataset: ImageDataset | Placed, *, block: int = 64, window: int = 128) -> None:
        self._placed: Final[Placed] = placed(dataset, "BlockShuffled", "rows_at", "where its records lie on disk")
        self.dataset_rows = self._rows = len(self._placed)
        self._block: Final = whole("block", block, 1)
        self._window_blocks: Final = whole("window", window, 1)
        self._whole_blocks: Final = self._rows // self._block
        self._windows: Final = max(1, -(-self._whole_blocks // self._window_blocks))

    def __len__(self) -> int:
        return self._rows

    @cached_property
    @override
    def parameters(self) -> Mapping[str, int]:
        return {"block": self._block, "window": self._window_blocks, "places": probed(self._placed)}

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        return self._placed.rows_at(self.places(key, start, stop))

    def places(self, key: int, start: int, stop: int) -> Rows:
        """The places of the records at positions `start` to `stop`, int64 [stop - start]; otherwise like `rows`."""
        check_range(self, start, stop)
        pieces = [np.empty(0, np.int64)]
        while start < stop:
            pieces.append(self._in_window(key, self._window(start), start, stop))
            start += len(pieces[-1])
        # The rotation moves the borders of the blocks, and also the last block, which is shorter and always comes last.
        return (np.concatenate(pieces) + mixed(key, _ROTATION) % max(1, self._rows)) % max(1, self._rows)

    def _window(self, position: int) -> int:
        # The largest w with _first_block(w) * block <= position.
        if self._windows == 1:
            return 0
        block = min(position // self._block, self._whole_blocks - 1)
        return ((block + 1) * self._windows - 1) // self._whole_blocks

    def _first_block(self, window: int) -> int:
        # Windows have equal size, give or take one block, so the last one mixes as well as the others.
        return window * self._whole_blocks // self._windows

    def _in_window(self, key: int, window: int, start: int, stop: int) -> Rows:
        first, last = self._first_block(window), self._first_block(window + 1)
        blocks = _shuffled(self._whole_blocks, mixed(key, _BLOCKS), first, last)
        begin, end = first * self._block, last * self._block
        if window == self._windows - 1:
            blocks, end = np.append(blocks, self._whole_blocks), self._rows
        key = mixed(key, _WINDOWS, window)
        slots = _shuffled(end - begin, key, start - begin, min(stop, end) - begin)
        return blocks[slots // self._block] * self._block + slots % self._block


class Weighted(Order):
    """Rows drawn with replacement, each as often as its weight says: `torch.utils.data.WeightedRandomSampler`.

    Args:
        weights: One weight per row, [rows]: not negative, and not all zero. They need not add up to 1. Kept as float64.
        samples: Number of positions in an epoch; None: as many as rows.

    Raises:
        UsageError: The weights are not such numbers, or `samples` is negative.
    """

    def __init__(self, weights: npt.ArrayLike, samples: int | None = None) -> None:
        try:
            values = np.asarray(weights, np.float64)
        except (TypeError, ValueError):
            raise unexpected("weights", weights, "one number per row") from None
        if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
            raise UsageError("weights must be one finite number per row, none of them negative")
        with np.errstate(over="ignore"):
            self._cumulated: Final = np.cumsum(values)
        self.dataset_rows = len(values)
        self._samples: Final = len(values) if samples is None else whole("samples", samples, 0)
        if self._samples and not (len(values) and 0 < self._cumulated[-1] < np.inf):
            raise UsageError("weights must not be all zero, and their sum must be finite")

    def __len__(self) -> int:
        return self._samples

    @cached_property
    @override
    def parameters(self) -> Mapping[str, int]:
        return {"weights": checksum(self._cumulated)}

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        check_range(self, start, stop)
        if start == stop:
            return np.empty(0, np.int64)
        total = self._cumulated[-1]
        draws = uniforms(mixed(key, _DRAWS), start, stop, 1)[:, 0] * total
        # A weight of zero has an empty interval, which a search from the right never finds, unless the product was
        # rounded up to the total.
        found: Rows = np.searchsorted(self._cumulated, draws, side="right").astype(np.int64, copy=False)
        np.minimum(found, np.searchsorted(self._cumulated, total), out=found)
        return found


class RepeatedAugmentation(Order):
    """Each row several times in a row, in different augmentations: timm's `RepeatAugSampler`, DeiT's `RASampler`.

    Consecutive positions go to different ranks, so that the augmentations of a row are in the same step, each on a rank
    of its own as far as there are as many. By default an epoch is as long as theirs, which is about as many positions
    as there are rows: with 3 repeats, a third of the rows take part in an epoch.

    Args:
        rows: Number of rows, which are shuffled; or another order, of whose positions each is repeated.
        repeats: How often each row comes in a row.
        samples: Number of positions in an epoch, over all ranks. None: the number of rows, rounded down to a multiple
            of 256 if it is larger. timm's ``selected_round`` and ``selected_ratio`` are
            ``samples=world_size * int(rows // selected_round * selected_round / selected_ratio)``.

    Raises:
        UsageError: An argument is of the wrong type or out of its range; `samples` is more than all rows repeated.
    """

    dealing = "interleaved"

    def __init__(self, rows: int | Order, repeats: int = 3, *, samples: int | None = None) -> None:
        self._order: Final = rows if isinstance(rows, Order) else Shuffled(rows)
        self.dataset_rows = self._order.dataset_rows
        self._repeats: Final = whole("repeats", repeats, 1)
        count = len(self._order)
        most = count * self._repeats
        self._samples: Final = (count // _ROUND * _ROUND or count) if samples is None else whole("samples", samples, 0)
        if self._samples > most:
            raise UsageError(
                f"samples={self._samples}: {count} rows, each {self._repeats} times, are only {most} positions"
            )

    def __len__(self) -> int:
        return self._samples

    @cached_property
    @override
    def parameters(self) -> Mapping[str, int]:
        inner = crc32c(type(self._order).__name__.encode())
        return {**self._order.parameters, "order": inner, "positions": len(self._order), "repeats": self._repeats}

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        check_range(self, start, stop)
        if start == stop:
            return np.empty(0, np.int64)
        first = start // self._repeats
        found = self._order.rows(key, first, (stop - 1) // self._repeats + 1)
        repeated: Rows = found[np.arange(start, stop) // self._repeats - first]
        return repeated


class CacheOrder(Order):
    """Order of an epoch in which ranks have several growing caches, as the ranks of one cache see it.

    Position p of the epoch belongs to rank ``p % world_size``, and is that rank's turn ``p // world_size``. The ranks
    of a cache deal its own order out among themselves: in turn t, the i-th of its k ranks takes position ``t * k + i``
    of it. So each row of a cache comes at most as often as in its own order, whatever the other caches hold, and all
    ranks have equally many turns. An epoch has whole turns only, and loaders stop between two of them, so no step ever
    has to be filled up. What is left of the larger caches is left out of this epoch, another part each time if the
    order is random.

    The positions of other caches' ranks have rows of this one, too, which nobody uses.

    Args:
        order: The order of the cache's generation.
        ranks: The ranks that read this cache.
        world_size: Number of all ranks.
        turns: Number of turns: as many as the smallest cache has.
    """

    dealing = "interleaved"

    def __init__(self, order: Order, ranks: Sequence[int], world_size: int, turns: int) -> None:
        self.generation: Final = order
        self.dataset_rows = order.dataset_rows
        self._count: Final = len(ranks)
        self._turns: Final = turns
        self._own: Final = frozenset(ranks)
        self._number = np.zeros(world_size, np.int64)
        """Number of a rank among the ranks of this cache, int64 [world_size]."""
        self._number[list(ranks)] = np.arange(len(ranks))

    def __len__(self) -> int:
        return self._turns * len(self._number)

    def has(self, position: int) -> bool:
        """Return True if the row at a position is one of this cache."""
        return position % len(self._number) in self._own

    @property
    @override
    def parameters(self) -> Mapping[str, int]:
        return self.generation.parameters

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        check_range(self, start, stop)
        if start == stop:
            return np.empty(0, np.int64)
        turns, ranks = np.divmod(np.arange(start, stop), len(self._number))
        positions = turns * self._count + self._number[ranks]
        first = int(positions.min())
        found: Rows = self.generation.rows(key, first, int(positions.max()) + 1)[positions - first]
        return found


class Buffered(Order):
    """The same order, faster for consecutive ranges: their rows are computed many at a time.

    In batches of 256, a row of a `Shuffled` order costs 3 us; computed 8,192 at a time, 0.3 us. With several ranks,
    each asks for only a part of every step. Then nothing is computed ahead, because the rows in between would be
    wasted.
    """

    def __init__(self, order: Order) -> None:
        self._order: Final = order
        self._next: tuple[int, int] | None = None
        self._held: tuple[int, int, Rows] = (0, 0, np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self._order)

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        check_range(self, start, stop)
        in_sequence, self._next = self._next == (key, start), (key, stop)
        held_key, first, held = self._held
        if not (held_key == key and first <= start and stop <= first + len(held)):
            if not in_sequence or stop - start >= _AHEAD:
                return self._order.rows(key, start, stop)
            first, held = start, self._order.rows(key, start, min(start + _AHEAD, len(self)))
            self._held = key, first, held
        return held[start - first : stop - first].copy()


def _shuffled(size: int, key: int, start: int, stop: int) -> Rows:
    return Permutation(size, key).range(start, stop) if start < stop else np.empty(0, np.int64)


def placed(dataset: Any, order: str, method: str, what: str) -> Any:
    """Return what knows the places of a dataset.

    Args:
        dataset: The dataset.
        order: Name of the order that asks.
        method: What it must have.
        what: What that tells.

    Raises:
        UsageError: It does not have it.
    """
    samples = samples_of(dataset)
    # Not `or`: samples without rows are false.
    found = dataset if samples is None else samples
    if not hasattr(found, method):
        raise UsageError(
            f"an object of type {type(dataset).__name__} does not know {what}: give {order} a dataset from "
            "open_dataset or concat, or a subset of one; or use Shuffled"
        )
    return found


def probed(dataset: Placed) -> int:
    """A checksum of where some records of a dataset lie: one that was packed in another order has another."""
    rows = len(dataset)
    return checksum(dataset.rows_at(np.linspace(0, rows - 1, min(rows, _PROBES)).astype(np.int64)))


def checksum(numbers: Rows | npt.NDArray[np.float64]) -> int:
    """The crc32c of numbers, which is the same on all machines."""
    return crc32c(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes())


def check_range(order: Order, start: int, stop: int) -> None:
    """Raise an IndexError unless an order has these positions."""
    if not 0 <= start <= stop <= len(order):
        raise IndexError(f"positions {start} to {stop} of an order of {len(order)} positions")
