"""The figures of a loader over a stretch of time: a plain record, and the ratios that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from packtrain._core.cores import cores_per_rank

from ..dataset.store import Store


@dataclass(frozen=True)
class Setup:
    """The loader that was measured.

    Attributes:
        workers: Number of processes that make batches; 0: the consumer's process makes them. None: unknown.
        cores: Number of cores that the workers may use.
        store: How the dataset stores its images, for example ``"raw"``; None: unknown, not the same everywhere,
            there are none, or the loader takes no other.
        headspace: True if the same few batches were handed out again and again.
        foreign: True for a loader that is not packtrain's: what its workers do is unknown.
        unfused: Names of the transforms that are not fused: callables on PIL images or arrays.
        remedy: What would be faster than these; empty: unknown.
        threads: Number of DALI's threads, whose time on the processor is unknown; 0 without DALI.
        streamed: True if records are read through a cache from an object store.
        compares_again: True if ``check="first"`` would compare fewer records with their checksums.
    """

    workers: int | None
    cores: int
    store: str | None = None
    headspace: bool = False
    foreign: bool = False
    unfused: tuple[str, ...] = ()
    remedy: str = ""
    threads: int = 0
    streamed: bool = False
    compares_again: bool = False


def setup_of(workers: int, stores: Iterable[Store] = (), *, undecoded: bool = False, threads: int = 0) -> Setup:
    """The setup of a loader.

    Args:
        workers: Number of worker processes.
        stores: Where they read records from.
        undecoded: True if something else than workers decodes, which takes no raw images.
        threads: See `Setup`.
    """
    stores = tuple(stores)
    streamed = any(store.chunks is not None for store in stores)
    kinds = {_pixels(store) for store in stores}
    store = kinds.pop() if len(kinds) == 1 and not undecoded else None
    again = any(store.compares_again for store in stores)
    return Setup(workers, cores_per_rank(), store, threads=threads, streamed=streamed, compares_again=again)


def _pixels(store: Store) -> str | None:
    image = store.schema.image
    return None if image is None or image.store is None else image.store.store


@dataclass(frozen=True)
class Growth:
    """The generation of a growing cache that a pass goes through.

    Attributes:
        generation: Its number.
        samples: Number of its samples.
        new_samples: Number of those that were written after all generations that the loader had before.
        published: Number of samples in all generations that the loader has had.
        ranks: Number of ranks that read the cache.
        handed_out: Number of samples that this rank has handed out since the loader was made.
    """

    generation: int
    samples: int
    new_samples: int
    published: int
    ranks: int = 1
    handed_out: int = 0

    @property
    def reuse(self) -> float:
        """Average number of times that a sample was handed out, by all ranks together; 0 without samples."""
        return _ratio(self.ranks * self.handed_out, self.published)


@dataclass(frozen=True)
class Figures:
    """Counts and times of one pass, or of several.

    The figures of the workers run up to the present, so they include batches that were made ahead.

    Attributes:
        setup: What was measured.
        batches: Number of batches handed out.
        samples: Number of samples in them.
        skipped: Number of damaged records that were left out of them.
        starved: Number of batches that were not ready when the consumer asked for them. The first batch of a pass does
            not count.
        copied: Number of batches that were handed out as copies because the consumer keeps so many.
        startup_seconds: Time until the first batch of a pass, while workers start. Not part of any other figure.
        waiting_seconds: Time that the consumer waited for batches.
        consuming_seconds: Time that the consumer worked on batches.
        collecting_seconds: The part of `waiting_seconds` until batches were made. In the rest, the consumer's process
            did their postprocessing: copies, normalisation, batch transform.
        busy_seconds: Time that workers made batches, summed over all workers.
        idle_seconds: Time that workers had nothing to do, summed over all workers.
        processor_seconds: The part of `busy_seconds` on a core, waiting neither for a disk nor for other processes.
        stage_seconds: `busy_seconds` by stage, see `packtrain._codec.stages.Stage`. Stages of a whole batch are exact.
            Stages of a sample are measured on one sample in 32, chosen at random, and scaled to the rest of
            `busy_seconds`; they are missing until one was measured.
        read_bytes: Bytes of the records that were read, as they are stored.
        disk_bytes: Bytes that had to be read from a disk, as far as the file system tells.
        disk_faults: Number of page faults that had to wait for a disk.
        growth: Which generation of a growing cache was read last; None for other datasets.
        refused: Number of images that DALI or the GPU refused, so that packtrain decoded them on the CPU.
        chunk_seconds: The part of `busy_seconds` in which workers waited for chunks from an object store.
        fetched_bytes: Bytes that this machine fetched from the object store meanwhile, for all that use the same cache.
            They are counted once a second, so those of an epoch's last second may be missing, or count in the next.
    """

    setup: Setup
    batches: int
    samples: int
    skipped: int
    starved: int
    copied: int
    startup_seconds: float
    waiting_seconds: float
    consuming_seconds: float
    collecting_seconds: float
    busy_seconds: float
    idle_seconds: float
    processor_seconds: float
    stage_seconds: Mapping[str, float]
    read_bytes: int
    disk_bytes: int
    disk_faults: int
    growth: Growth | None = None
    refused: int = 0
    chunk_seconds: float = 0.0
    fetched_bytes: int = 0

    @property
    def wall_seconds(self) -> float:
        """Time from the first batch of a pass to its end, or to the present."""
        return self.waiting_seconds + self.consuming_seconds

    @property
    def wait_share(self) -> float:
        """`waiting_seconds` over `wall_seconds`, in [0, 1]; 0 if no time has passed."""
        return _ratio(self.waiting_seconds, self.wall_seconds)

    @property
    def samples_per_second(self) -> float:
        """Samples handed out per second of `wall_seconds`; 0 before the second batch."""
        return _ratio(self.samples, self.wall_seconds) if self.batches > 1 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Stored bytes read per second, start-up included."""
        return _ratio(self.read_bytes, self.wall_seconds + self.startup_seconds)

    @property
    def fetched_per_second(self) -> float:
        """`fetched_bytes` per second, start-up included."""
        return _ratio(self.fetched_bytes, self.wall_seconds + self.startup_seconds)

    @property
    def chunk_share(self) -> float:
        """`chunk_seconds` over `busy_seconds`, in [0, 1]."""
        return min(1.0, _ratio(self.chunk_seconds, self.busy_seconds))

    @property
    def busy_share(self) -> float:
        """The share of the workers' time in which they made batches, in [0, 1]."""
        return _ratio(self.busy_seconds, self.busy_seconds + self.idle_seconds)

    @property
    def stage_shares(self) -> dict[str, float]:
        """`stage_seconds` over `busy_seconds`, longest stage first."""
        shares = {name: _ratio(seconds, self.busy_seconds) for name, seconds in self.stage_seconds.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """All figures and ratios, for JSON."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found |= {"setup": vars(self.setup).copy(), "stage_seconds": dict(self.stage_seconds)}
        growth = found.pop("growth")
        if growth is not None:
            found["growth"] = {**vars(growth), "reuse": growth.reuse}
        ratios = "wall_seconds", "wait_share", "samples_per_second", "bytes_per_second", "busy_share"
        return found | {name: getattr(self, name) for name in ratios}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
