"""The stages in which a sample is made, and the callback at the end of each. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum


class Stage(IntEnum):
    """A stage of the work that a worker does for a sample or a batch."""

    READ = 0
    """Find a record; with ``io="pread"``, read it."""
    CHECK = 1
    """Compare the record with its checksum; this also first touches the pages of a mapped shard."""
    CUT = 2
    """Make the small JPEG."""
    DECODE = 3
    RESIZE = 4
    TRANSFORM = 5
    """Run transforms that are not packtrain's."""
    WRITE = 6
    """Write the sample to the batch."""
    OTHER = 7
    """Draw random numbers, look up labels."""
    COPY = 8
    """All of these at once, for raw records of which only a part is taken."""
    COLLATE = 9
    """Call the user's `collate_fn`."""
    HANDOFF = 10
    """Tell the consumer that the batch is ready; with `collate_fn`, send the batch."""
    EFFECTS = 11
    """Change pixels with packtrain's transforms: colours, filters, warps."""
    FINISH = 12
    """Run the steps on tensors that transforms end with, on the whole batch."""


# Up to Python 3.11 a member of an enumeration takes longer to look up than a sample's whole clock may.
READ, CHECK, CUT, DECODE, RESIZE, TRANSFORM, WRITE, OTHER, COPY, COLLATE, HANDOFF, EFFECTS, FINISH = Stage

OnStage = Callable[[Stage], None]
"""Called at the end of a stage, which took all the time since the last call."""


def untimed(stage: Stage) -> None:
    """Does nothing: the stage is not timed."""
