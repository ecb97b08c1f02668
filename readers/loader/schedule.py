"""Which positions of an epoch a rank takes in which step: arithmetic only, so any number of ranks can resume it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Step(NamedTuple):
    """What one rank takes in one training step.

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

    At the end of an epoch fewer positions may be left. They are dropped, or dealt out evenly. If they cannot be dealt
    out evenly, positions from the beginning of the epoch fill the blocks, so that all ranks make batches of equal size.

    Attributes:
        length: Number of positions in the epoch.
        batch_size: Number of samples that one rank takes in one step.
        rank: Rank of this process.
        world_size: Number of ranks.
        drop_last: True to drop an incomplete step, False to deal it out.
        interleaved: True to deal positions out one by one, False for blocks.
    """

    length: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    interleaved: bool = False

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
        first, apart = (self.rank, self.world_size) if self.interleaved else (self.rank * block, 1)
        positions = (consumed + first + apart * np.arange(block, dtype=np.int64)) % self.length
        return Step(positions, min(self.length, consumed + self.world_size * block))
