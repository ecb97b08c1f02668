"""What `tune` is asked for, and what it can vary: the options, the dataset on its host, and one setting of a loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from packtrain._core.arguments import checks_names, instance, number, whole

_MILLION: Final = 1_000_000
CUDA: Final = "cuda"
"""The decoder that is a GPU."""
DEFAULT_PREFETCH: Final = 2
"""The loader's own `prefetch_factor`."""
_HELD_BATCHES: Final = 2
"""Batches that the consumer and the loader hold in addition to those prefetched."""


@checks_names()
@dataclass(frozen=True)
class TuneOptions:
    """What `tune` looks for, and how long.

    Attributes:
        transform: Name of the transform: ``"rrc224"``, ``"center224"`` or ``"crop224"`` (with any size), ``"none"``, or
            ``"module:attribute"``.
        batch_size: Samples in a batch.
        consumer_ms: Duration of a training step in milliseconds, without loading and without using a core of this host;
            0 looks for the highest rate.
        seconds: Time to spend, in seconds.
        max_workers: Largest number of workers to try; None tries up to one more than there are cores.

    Raises:
        UsageError: A value is of the wrong type, or out of range.
    """

    transform: str = "rrc224"
    batch_size: int = 64
    consumer_ms: float = 0.0
    seconds: float = 60.0
    max_workers: int | None = None

    def __post_init__(self) -> None:
        instance("transform", self.transform, str)
        whole("batch_size", self.batch_size, 1, _MILLION)
        number("consumer_ms", self.consumer_ms, 0, _MILLION, "milliseconds, from 0 to a million")
        number("seconds", self.seconds, 1, _MILLION, "seconds, from 1 to a million")
        if self.max_workers is not None:
            whole("max_workers", self.max_workers, 0, _MILLION)


class Setting(NamedTuple):
    """What is varied: arguments of `open_dataset` and `Loader`.

    Attributes:
        decoder: `decoder` of `open_dataset`, or ``"cuda"``: `decode` of `Loader`.
        workers: `num_workers` of `Loader`.
        prefetch: `prefetch_factor` of `Loader`.
    """

    decoder: str
    workers: int
    prefetch: int

    @property
    def slots(self) -> int:
        """Number of batches that the loader reserves memory for."""
        return self.workers * self.prefetch + _HELD_BATCHES if self.workers else 1


@dataclass(frozen=True)
class TuneTarget:
    """A dataset and the host that reads it.

    Attributes:
        path: Path of the dataset, as the caller gave it.
        store: How the dataset stores pixels, such as ``"crop-ready"``.
        records: Number of records.
        record_bytes: Mean size of a record in bytes.
        decoders: Decoders to choose from, the one that ``"auto"`` takes first; only ``"auto"`` if nothing has to be
            decoded.
        excluded: The other decoders, and why each is not used here.
        cores: Cores that this process may use.
        default_workers: Workers that the loader starts by default.
    """

    path: str
    store: str
    records: int
    record_bytes: float
    decoders: tuple[str, ...]
    excluded: dict[str, str]
    cores: int
    default_workers: int

    def max_workers(self, options: TuneOptions) -> int:
        """The largest number of workers to try."""
        return self.cores + 1 if options.max_workers is None else options.max_workers

    def default(self, options: TuneOptions) -> Setting:
        """The loader's default setting, with no more workers than may be tried."""
        return Setting(self.decoders[0], min(self.default_workers, self.max_workers(options)), DEFAULT_PREFETCH)
