"""The verdict of a packtrain loader for any other one: does training wait for data?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from ..loader.arguments import workers_of
from .stats import Meter, Setting

_OWN: Final = ("_watched", "stats")


class Watched:
    """A loader of another make under observation; `watch` makes one. It behaves as what it stands for.

    Attributes:
        stats: See `packtrain._readers.monitoring.stats.Meter`.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._watched: Final = loader
        workers = getattr(loader, "num_workers", None)
        self.stats: Final = Meter(
            Setting(workers if isinstance(workers, int) else None, workers_of("auto"), foreign=True)
        )

    def __iter__(self) -> Iterator[Any]:
        return self.stats.timed(self._batches())

    def _batches(self) -> Iterator[Any]:
        # Made when the first batch is asked for: torch starts its workers here, and that is part of the start-up.
        batches = iter(self._watched)
        # In a list, because a variable would keep the batch alive after the consumer has dropped it.
        ready = True
        while found := list(islice(batches, 1)):
            if not ready:
                self.stats.starve()
            self.stats.count(samples_in(found[0]))
            yield found.pop()
            ready = _ready(batches)

    def __len__(self) -> int:
        return len(self._watched)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._watched)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            # Not there yet: a copy is being made.
            raise AttributeError(name)
        return getattr(self._watched, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._watched, name, value)

    def __repr__(self) -> str:
        return f"watch({self._watched!r})"


def watch(loader: Iterable[Any]) -> Watched:
    """Observes a torch DataLoader, or anything else that is gone through batch by batch.

    ::

        loader = watch(DataLoader(...))
        for images, labels in loader:
            ...
        print(loader.stats.report())

    What its workers spend their time on is not known; whether a batch was there when it was asked for is, with torch's.

    Args:
        loader: The loader.

    Returns:
        A loader that gives the same batches, with the same length and attributes, and `stats` besides.
    """
    return Watched(loader)


def samples_in(batch: Any) -> int:
    """Samples in a batch: the length of the first array or tensor in it, else of the list itself."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (str, bytes)) or not isinstance(batch, Sequence):
        return 0
    return next(filter(None, map(samples_in, batch)), len(batch))


def _ready(batches: Iterator[Any]) -> bool:
    """Whether an iterator of torch's DataLoader has the next batch; True where it cannot be known."""
    try:
        ahead: Callable[[], int] = batches._data_queue.qsize  # type: ignore[attr-defined]
        # Batches that came before their turn lie apart.
        return ahead() > 0 or len(batches._task_info.get(batches._rcvd_idx, ())) > 1  # type: ignore[attr-defined]
    except (AttributeError, NotImplementedError, TypeError):
        return True
