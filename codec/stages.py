"""The stages in which a sample is made, and the clock that is told at the end of each. Free of torch."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum


class Stage(IntEnum):
    """What a worker does."""

    READ = 0
    """Find a record; with ``io="pread"``, read it."""
    CHECK = 1
    """Compare it with its checksum, which is also when the pages of a mapped shard are first touched."""
    CUT = 2
    """Make the small JPEG."""
    DECODE = 3
    RESIZE = 4
    TRANSFORM = 5
    """Whatever is not packtrain's."""
    WRITE = 6
    """To the batch."""
    OTHER = 7
    """Draw random numbers, look up labels."""
    COPY = 8
    """All of these at once, for raw records of which only a part is taken."""
    COLLATE = 9
    """The user's `collate_fn`."""
    HANDOFF = 10
    """Tell the consumer of the batch; with `collate_fn`, send it."""


# Up to Python 3.11 a member of an enumeration takes longer to look up than a sample's whole clock may.
READ, CHECK, CUT, DECODE, RESIZE, TRANSFORM, WRITE, OTHER, COPY, COLLATE, HANDOFF = Stage

OnStage = Callable[[Stage], None]
"""Called at the end of a stage: all time since the last call was that stage's."""


def untimed(stage: Stage) -> None:
    """Nobody keeps time."""
