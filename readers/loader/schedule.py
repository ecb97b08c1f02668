"""Which positions of an epoch a rank takes in which step: arithmetic, so that any number of ranks can go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Step(NamedTuple):
    """One rank's part of a step.

    Attributes:
        positions: Of its samples, int64 [at most batch_size].
        consumed: Positions of the epoch that are used up after this step, by all ranks together.
    """

    positions: npt.NDArray[np.int64]
    consumed: int


@dataclass(frozen=True)
class Schedule:
    """A step takes the next ``world_size * batch_size`` positions; each rank takes a block of them, in order of rank.

    What is left at the end of an epoch is less than that. It is dropped, or dealt out evenly; where it does not go up,
    positions from the beginning of the epoch fill the blocks, so that all ranks make equally large batches.

    Attributes:
        length: Positions in the epoch.
        batch_size: Samples of one rank in one step.
        rank: Of this process.
        world_size: Number of ranks.
        drop_last: What becomes of an incomplete step.
    """

    length: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def steps(self, consumed: int = 0) -> int:
        """Steps that are left of the epoch."""
        left, whole = max(0, self.length - consumed), self.world_size * self.batch_size
        return left // whole if self.drop_last else -(-left // whole)

    def step(self, consumed: int) -> Step | None:
        """The step after `consumed` positions, None at the end of the epoch."""
        left = self.length - consumed
        block = min(self.batch_size, -(-left // self.world_size))
        if block <= 0 or (self.drop_last and left < self.world_size * self.batch_size):
            return None
        start = consumed + self.rank * block
        positions = np.arange(start, start + block, dtype=np.int64) % self.length
        return Step(positions, min(self.length, consumed + self.world_size * block))
