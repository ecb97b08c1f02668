"""Measure whether training waits for data, for loaders that are not packtrain's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from packtrain._core.arguments import checks_names, unexpected
from packtrain._core.cores import cores_per_rank
from packtrain._readers.monitoring.figures import Setup
from packtrain._readers.monitoring.stats import Meter

_OWN: Final = ("_monitored", "stats")


class MonitoredLoader:
    """A loader that is not packtrain's, and its figures; made by `watch`. Behaves like the loader itself.

    Attributes:
        stats: The figures, see `packtrain._readers.monitoring.stats.Meter`.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._monitored: Final = loader
        workers = getattr(loader, "num_workers", None)
        self.stats: Final = Meter(Setup(workers if isinstance(workers, int) else None, cores_per_rank(), foreign=True))

    def __iter__(self) -> Iterator[Any]:
        return self.stats.timed(self._batches())

    def _batches(self) -> Iterator[Any]:
        # Only when the first batch is asked for: torch starts its workers here, and that is part of the start-up.
        batches = iter(self._monitored)
        # In a list, because a variable would keep the batch alive after the consumer has dropped it.
        ready = True
        while found := list(islice(batches, 1)):
            if not ready:
                self.stats.starve()
            self.stats.count(samples_in(found[0]))
            yield found.pop()
            ready = _ready(batches)

    def __len__(self) -> int:
        return len(self._monitored)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._monitored)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            # Not set yet, because a copy is being made.
            raise AttributeError(name)
        return getattr(self._monitored, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._monitored, name, value)

    def __repr__(self) -> str:
        return f"watch({self._monitored!r})"


@checks_names()
def watch(loader: Iterable[Any]) -> MonitoredLoader:
    """Measure a torch DataLoader, or any other iterable of batches.

        loader = watch(DataLoader(...))
        for images, labels in loader:
            ...
        print(loader.stats.report())

    The time of its workers is not divided into stages. Batches that were not ready are counted for torch's DataLoader
    only.

    Args:
        loader: The loader.

    Returns:
        A loader with the same batches, length and attributes, and with `stats`.

    Raises:
        UsageError: `loader` cannot be iterated.
    """
    if not isinstance(loader, Iterable):
        raise unexpected("loader", loader, "a DataLoader, or any other iterable of batches")
    return MonitoredLoader(loader)


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch: the length of the first array or tensor in it, or of the list itself."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (str, bytes)) or not isinstance(batch, Sequence):
        return 0
    return next(filter(None, map(samples_in, batch)), len(batch))


def _ready(batches: Iterator[Any]) -> bool:
    """Return True if an iterator of torch's DataLoader has the next batch, or if that cannot be known."""
    try:
        ahead: Callable[[], int] = batches._data_queue.qsize  # type: ignore[attr-defined]
        # Batches that arrived before their turn are kept elsewhere.
        return ahead() > 0 or len(batches._task_info.get(batches._rcvd_idx, ())) > 1  # type: ignore[attr-defined]
    except (AttributeError, NotImplementedError, TypeError):
        return True
