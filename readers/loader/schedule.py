"""Positions of an epoch that a rank takes in each step: arithmetic only, so any number of ranks can resume it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Dealing = Literal["blocks", "interleaved", "lanes"]


class Step(NamedTuple):
    """Positions that one rank takes in one training step.

    Attributes:
        positions: Positions of this rank's samples in the epoch, int64 [at most batch_size].
        consumed: Number of positions of the epoch that all ranks together have used up after this step.
    """

    positions: npt.NDArray[np.int64]
    consumed: int


@dataclass(frozen=True)
class Schedule:
    """A step takes the next ``world_size * batch_size`` positions. Each rank takes one block of them, in order of rank.

    Interleaved, rank r takes the r-th position of every ``world_size`` instead.

    By lanes, position p belongs to lane ``p % lanes``. The positions of a step are sorted by lane, and the ranks of
    each node take one block of them, in order of rank. So a node takes whole lanes if each lane has as many positions
    in a step as all others, and the number of nodes divides that of lanes. Of those of its node, each rank takes a
    block in the order of the epoch, and so from all lanes of the node.

    At the end of an epoch fewer positions may be left. They are dropped, or dealt out evenly. If they cannot be dealt
    out evenly, positions from the beginning of the epoch fill the blocks, so that all ranks make batches of equal size.

    Attributes:
        length: Number of positions in the epoch.
        batch_size: Number of samples that one rank takes in one step.
        rank: Rank of this process.
        world_size: Number of ranks.
        drop_last: True to drop an incomplete step, False to deal it out.
        dealing: ``"blocks"``, ``"interleaved"`` or ``"lanes"``.
        lanes: Number of lanes.
        nodes: Number of nodes, by lanes: each has as many ranks, which follow each other.
    """

    length: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    dealing: Dealing = "blocks"
    lanes: int = 1
    nodes: int = 1

    def steps(self, consumed: int = 0) -> int:
        """Number of steps left in the epoch after `consumed` positions."""
        left, whole = max(0, self.length - consumed), self.world_size * self.batch_size
        return left // whole if self.drop_last else -(-left // whole)

    def remainder(self, consumed: int = 0) -> int:
        """Number of positions left for an incomplete step at the end of the epoch; 0 if there is none."""
        left, whole = max(0, self.length - consumed), self.world_size * self.batch_size
        return 0 if self.drop_last else left % whole

    def step(self, consumed: int) -> Step | None:
        """The step after `consumed` positions; None at the end of the epoch."""
        left = self.length - consumed
        block = min(self.batch_size, -(-left // self.world_size))
        if block <= 0 or (self.drop_last and left < self.world_size * self.batch_size):
            return None
        return Step(self._positions(consumed, block), min(self.length, consumed + self.world_size * block))

    def _positions(self, consumed: int, block: int) -> npt.NDArray[np.int64]:
        """The positions of a block of this rank."""
        mine = np.arange(block, dtype=np.int64)
        if self.dealing == "interleaved":
            return (consumed + self.rank + self.world_size * mine) % self.length
        if self.dealing == "blocks" or self.nodes == 1:
            return (consumed + self.rank * block + mine) % self.length
        ranks = self.world_size // self.nodes
        node, rank = divmod(self.rank, ranks)
        of_node = self._of_node(consumed, self.world_size * block, node * ranks * block, (node + 1) * ranks * block)
        return (consumed + of_node[rank * block : (rank + 1) * block]) % self.length

    def _of_node(self, consumed: int, taken: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Of the `taken` next positions by lane, those from `start` to `stop`; counted from `consumed`, ascending."""
        if consumed + taken > self.length:
            # Some are positions from the beginning of the epoch.
            lanes = np.arange(consumed, consumed + taken) % self.length % self.lanes
            return np.sort(np.argsort(lanes, kind="stable")[start:stop])
        # Lane l has its first position of the step at `ahead`, and then one more after each `lanes` positions.
        ahead = (np.arange(self.lanes, dtype=np.int64) - consumed) % self.lanes
        ends = np.cumsum((taken - ahead + self.lanes - 1) // self.lanes)
        mine = np.arange(start, stop, dtype=np.int64)
        lane = np.searchsorted(ends, mine, side="right")
        before = np.concatenate([[0], ends[:-1]])
        return np.sort(ahead[lane] + (mine - before[lane]) * self.lanes)
