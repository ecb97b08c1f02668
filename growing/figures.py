"""What a filler has done so far, and what it is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from packtrain._core.manifest import Count, Time
from packtrain._core.typed import MOST, Between


@dataclass
class FillFigures:
    """Counters of a filler since it was started; the loop that fills keeps them.

    Attributes:
        samples: Samples taken into shards.
        sample_bytes: Size of their records.
        shards: Shards published.
        written_bytes: Bytes of published files, in allocated blocks.
        evicted_shards: Shards deleted.
        evicted_bytes: Their size, in allocated blocks.
        refused: Samples that did not fit the cache.
        failures: How often the source failed or ended too early, so that it was called again.
        generation: Number of the newest generation; -1 before the first one.
        first_sample: Number of the oldest sample of the newest generation.
        end_sample: One past the number of its last sample.
        oldest_ns: When the oldest shard of the newest generation was published, in nanoseconds since 1970.
        used_bytes: Bytes that the cache's folder takes, in allocated blocks.
        waiting: What the filler waits for; empty if it does not.
        waited_seconds: How long it has waited for anything but its source.
        problem: The last thing that went wrong; empty if nothing has.
        taken: Samples that all readers have taken.
    """

    samples: Count = 0
    sample_bytes: Count = 0
    shards: Count = 0
    written_bytes: Count = 0
    evicted_shards: Count = 0
    evicted_bytes: Count = 0
    refused: Count = 0
    failures: Count = 0
    generation: Annotated[int, Between(-1, MOST)] = -1
    first_sample: Count = 0
    end_sample: Count = 0
    oldest_ns: Time = 0
    used_bytes: Count = 0
    waiting: str = ""
    waited_seconds: float = 0.0
    problem: str = ""
    taken: Count = 0
