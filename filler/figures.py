"""What a filler has done so far, and what it is doing."""

from __future__ import annotations

from dataclasses import dataclass


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

    samples: int = 0
    sample_bytes: int = 0
    shards: int = 0
    written_bytes: int = 0
    evicted_shards: int = 0
    evicted_bytes: int = 0
    refused: int = 0
    failures: int = 0
    generation: int = -1
    first_sample: int = 0
    end_sample: int = 0
    oldest_ns: int = 0
    used_bytes: int = 0
    waiting: str = ""
    waited_seconds: float = 0.0
    problem: str = ""
    taken: int = 0
