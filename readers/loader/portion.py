"""The share of an epoch that comes from one cache, if the ranks read several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from typing_extensions import override

from .order import Order, Rows


class Portion(Order):
    """What the ranks of one cache take of an epoch in which other ranks have other caches.

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
        self.portioned: Final = order
        self.dataset_rows = order.dataset_rows
        self._count: Final = len(ranks)
        self._turns: Final = turns
        self._own: Final = frozenset(ranks)
        self._place = np.zeros(world_size, np.int64)
        """Which of the cache's ranks a rank is, int64 [world_size]."""
        self._place[list(ranks)] = np.arange(len(ranks))

    def __len__(self) -> int:
        return self._turns * len(self._place)

    def has(self, position: int) -> bool:
        """True if the row at a position is one of this cache."""
        return position % len(self._place) in self._own

    @property
    @override
    def parameters(self) -> Mapping[str, int]:
        return self.portioned.parameters

    @override
    def rows(self, key: int, start: int, stop: int) -> Rows:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"positions {start} to {stop} of an order of {len(self)} positions")
        if start == stop:
            return np.empty(0, np.int64)
        turns, ranks = np.divmod(np.arange(start, stop), len(self._place))
        positions = turns * self._count + self._place[ranks]
        first = int(positions.min())
        found: Rows = self.portioned.rows(key, first, int(positions.max()) + 1)[positions - first]
        return found
