"""Batches that cost nothing, to measure how fast training would be if data were infinitely fast."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from ..dataset.rows import is_sample
from .engine import Batch, Job
from .postprocess import mapped
from .ragged import Ragged

if TYPE_CHECKING:
    import torch

REAL: Final = 4
"""Number of batches that are really made."""
_WARNING: Final = (
    "headspace=True: the same few batches are handed out again and again, to measure; do not train on them"
)


class Replay:
    """Makes a few batches, and hands them out again and again in place of all others."""

    def __init__(self) -> None:
        self._made: list[Batch] = []
        self._size = 0
        """Number of samples in each of them."""

    def __reduce__(self) -> tuple[type[Replay], tuple[()]]:
        # The batches that were made lie in memory of this process.
        return type(self), ()

    def run(self, jobs: Iterator[Job], make: Callable[[Iterator[Job]], Iterator[Batch]]) -> Iterator[Batch]:
        """A replayed batch for each job, with the number of samples of the job, but not its samples.

        Args:
            jobs: What should be made. No job is larger than the first one.
            make: Makes the batches of some jobs.
        """
        first = list(islice(jobs, REAL))
        if first and len(first[0].rows) > self._size:
            if not self._made:
                warnings.warn(_WARNING, RuntimeWarning, stacklevel=5)
            self._size = len(first[0].rows)
            # All of them before any is handed out, so that the consumer never waits for one later.
            self._made = list(make(job for job in first if len(job.rows) == self._size))
        for number, job in enumerate(chain(first, jobs)):
            place, size = number % len(self._made), len(job.rows)
            found = self._made[place]
            made = found.made._replace(size=min(size, found.made.size))
            yield Batch(job, made, self._cut(found.value, size))
            if found.made.size:
                # Samples that were left out, and images that a GPU refused, are told of and counted only once.
                self._made[place] = found._replace(made=found.made._replace(skipped=[], refused=()))

    def _cut(self, value: object, size: int) -> object:
        """A batch with its first samples only, since an epoch may end with a smaller batch."""
        if size == self._size:
            return value
        if is_sample(value):
            fields: Any = value
            return type(fields)(*(self._cut_field(field, size) for field in fields))
        return mapped(partial(_first, self._size, size), value)

    def _cut_field(self, field: Any, size: int) -> Any:
        return (
            field[:size] if isinstance(field, (list, Ragged)) and len(field) == self._size else self._cut(field, size)
        )


def _first(batch: int, size: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:size] if tensor.ndim and len(tensor) == batch else tensor
