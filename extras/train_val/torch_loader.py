"""The loader with torch's DataLoader in the place of its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from packtrain._core.errors import LoaderError, PacktrainError
from packtrain._core.overriding import override
from packtrain._readers.loader.arguments import prefetch_factor_of, workers_of
from packtrain._readers.loader.batches import BatchMaker, Made, Probe
from packtrain._readers.loader.engine import Backend, Batch, Engine, Job
from packtrain._readers.loader.loader import Loader
from packtrain._readers.loader.randomness import preserved
from packtrain._readers.loader.samples import sendable
from packtrain._readers.monitoring.counters import Words, blank


class TorchLoader(Loader):
    """A `packtrain.Loader` whose batches come from torch's DataLoader: its workers, and its way of sending tensors.

    Order, random numbers, states, damaged records and the way to the device are the loader's own. Batches are lists of
    samples that `stacked` collates in the worker, as in any program with a DataLoader.

    Args:
        dataset: A dataset of packtrain's.
        batch_size: Number of samples in a batch of this rank.
        options: All other arguments of `packtrain.Loader` but `collate_fn`.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, **options: Any) -> None:
        workers, ahead = (
            workers_of(options.get("num_workers", "auto")),
            prefetch_factor_of(options.get("prefetch_factor")),
        )
        self._backend = Backend(partial(TorchEngine, workers, ahead))
        super().__init__(dataset, batch_size, collate_fn=stacked, **options)


class TorchEngine(Engine):
    """Makes batches with torch's DataLoader.

    Args:
        workers: Number of worker processes; 0: batches are made in this process.
        prefetch_factor: Number of batches that each worker makes ahead.
        maker: Makes a batch; its `collate_fn` makes it of samples.
        probe: The samples that show what a batch looks like.
    """

    def __init__(self, workers: int, prefetch_factor: int, maker: BatchMaker, probe: Probe) -> None:
        # Without any look at a sample, because `collate_fn` makes batches.
        self.layout = maker.layout(probe)
        self._counters = np.frombuffer(blank(), np.int64)[np.newaxis]
        self._jobs: Final = _Jobs()
        self._loader: DataLoader[Made] | None = DataLoader(
            _Batches(maker),
            batch_size=None,
            sampler=self._jobs,
            num_workers=workers,
            collate_fn=_unchanged,
            prefetch_factor=prefetch_factor if workers else None,
            persistent_workers=workers > 0,
            # Otherwise it would draw from the program's.
            generator=torch.Generator(),
        )
        self._batches: Iterator[Made] = iter(())

    @override
    def run(self, jobs: Iterator[Job]) -> Iterator[Batch]:
        if self._loader is None:
            return
        self._jobs.begin(jobs)
        with _blaming_torch():
            self._batches = iter(self._loader)
        while (made := self._next()) is not None:
            job = self._jobs.out.popleft()
            if made.error is not None:
                raise made.error
            # In a list, because a variable would keep the batch alive after the consumer has dropped it.
            batch = [Batch(job, made, {})]
            del made
            yield batch.pop()

    def _next(self) -> Made | None:
        """Return the next batch of DataLoader; None after the last one."""
        with _blaming_torch():
            return next(self._batches, None)

    @override
    def change(self, maker: BatchMaker, probe: Probe) -> bool:
        return False

    @override
    def counters(self) -> Words:
        return self._counters

    @override
    def close(self) -> None:
        # DataLoader ends its workers when nothing refers to it and to its iterator.
        self._loader, self._batches = None, iter(())
        self._jobs.begin(iter(()))


@contextmanager
def _blaming_torch() -> Iterator[None]:
    """Makes errors of torch's, as that a worker was killed, a LoaderError."""
    try:
        yield
    except PacktrainError:
        raise
    except RuntimeError as error:
        raise LoaderError(f"torch's DataLoader failed: {error}") from error


class _Jobs(Sampler[Job]):
    """Hands DataLoader the jobs of one run after the other.

    Attributes:
        out: Jobs whose batches have not come back, in order.
    """

    def __init__(self) -> None:
        self.begin(iter(()))

    def begin(self, jobs: Iterator[Job]) -> None:
        """Takes the jobs of a run, and forgets those before it."""
        self._left = jobs
        self.out: deque[Job] = deque()

    @override
    def __iter__(self) -> Iterator[Job]:
        for job in self._left:
            self.out.append(job)
            yield job


class _Batches(Dataset[Made]):
    """Batches by job, as DataLoader's workers make them."""

    def __init__(self, maker: BatchMaker) -> None:
        self._maker = maker

    @override
    def __getitem__(self, job: Job) -> Made:
        maker, count = self._maker, len(job.rows)
        arrays = {"row": job.rows, "position": job.positions.copy()}
        try:
            with nullcontext() if get_worker_info() else preserved():
                return maker.make(job.key, count, maker.layout(Probe(count, job.key, (), ())), arrays)
        except PacktrainError as error:
            return Made(error=sendable(error))


def stacked(samples: list[tuple[torch.Tensor, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [batch, channels, height, width] in channels_last memory, and labels, of samples."""
    images = torch.stack([image.permute(1, 2, 0) for image, _ in samples]).permute(0, 3, 1, 2)
    return images, torch.as_tensor(np.array([label for _, label in samples]))


def _unchanged(made: Any) -> Any:
    return made
