"""Measures one loader setting on real batches. `search` decides which settings to measure."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._codec.decoders import DECODERS, decoder
from packtrain._codec.decoders.fallback import BackEnd
from packtrain._codec.decoders.selfcheck import deviation
from packtrain._core.arguments import path_of
from packtrain._core.cores import available_cores
from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.keys import mixed
from packtrain._core.manifest import Manifest
from packtrain._readers.dataset.image_dataset import PackedDataset, open_dataset
from packtrain._readers.loader import Loader, Order, Shuffled
from packtrain._readers.loader.arguments import workers_of
from packtrain._readers.loader.samples import SampleMaker

from ..watch import samples_in
from .gpu import find_gpu, has_gpu
from .options import CUDA, Setting, TuneOptions, TuneTarget
from .presets import preset
from .trials import MIN_BATCHES, Trial

_ENDLESS: Final = 1 << 40
_DISK_BLOCK: Final = 512
"""Bytes in a block as `resource.getrusage` counts them."""


class EndlessShuffle(Order):
    """Shuffles all rows, then shuffles them again, without the pause that ends an epoch.

    Args:
        rows: Number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._order: Final = Shuffled(rows)

    def __len__(self) -> int:
        return _ENDLESS

    @override
    def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        rows = len(self._order)
        return np.concatenate(
            [
                self._order.rows(mixed(key, epoch), max(0, start - epoch * rows), min(rows, stop - epoch * rows))
                for epoch in range(start // rows, -(-stop // rows))
            ]
        )


class Bench:
    """Measures loader settings for a dataset on this host.

    Args:
        path: Path of the dataset.
        options: What to look for, and how long.

    Attributes:
        target: The dataset and the host, with the decoders to choose from.

    Raises:
        DatasetError: There is no dataset at `path`.
        UsageError: The transform is unknown, or the dataset has no images or no records.
    """

    def __init__(self, path: str | os.PathLike[str], options: TuneOptions) -> None:
        self._path = os.fspath(path)
        self._options = options
        self._transform = preset(options.transform).transform
        self._trials = 0
        if Manifest.load(path_of("path", path)).schema.image is None:
            raise UsageError(f"{self._path} has no images, and tune measures nothing else")
        dataset = open_dataset(path, self._transform)
        if not len(dataset):
            raise UsageError(f"{self._path} has no records: there is nothing to measure")
        self._datasets: dict[str, PackedDataset] = {}
        manifest = dataset.store.manifest
        raw = manifest.store.store == "raw"
        decoders, excluded = (("auto",), {}) if raw else _decoders(dataset.decoder.name)
        if not raw and has_gpu():
            problem = _no_cuda(dataset)
            if problem is None:
                decoders = (*decoders, CUDA)
            else:
                excluded[CUDA] = problem
        self.target: Final = TuneTarget(
            path=self._path,
            store=manifest.store.store,
            records=len(dataset),
            record_bytes=sum(shard.bytes for shard in manifest.shards) / len(dataset),
            decoders=decoders,
            excluded=excluded,
            cores=available_cores(),
            default_workers=workers_of("auto"),
        )

    def run_trial(self, setting: Setting, consumer_ms: float, seconds: float, limit: float) -> Trial | None:
        """Measures a setting once; the arguments are those of `search.RunTrial`."""
        start, before = time.monotonic(), _disk_reads()
        # Each trial reads other images: what an earlier trial brought into memory must not help a later one.
        self._trials += 1
        cuda = setting.decoder == CUDA
        dataset = self._dataset("auto" if cuda else setting.decoder)
        with Loader(
            dataset,
            self._options.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            seed=self._trials,
            num_workers=setting.workers,
            prefetch_factor=setting.prefetch,
            multiprocessing_context="fork",
            rank=0,
            world_size=1,
            decode="cuda" if cuda else "cpu",
            device="cuda" if cuda else None,
        ) as loader:
            consumer = SimulatedTraining(setting.workers, consumer_ms / 1000)
            consumer.run(iter(loader), start, seconds, limit)
        # Only now, as the reads of a worker are counted when it has ended.
        disk_bytes, disk_faults = (after - earlier for after, earlier in zip(_disk_reads(), before, strict=True))
        if consumer.batches < MIN_BATCHES:
            return None
        return Trial(
            setting=setting,
            consumer_ms=consumer_ms,
            batches=consumer.batches,
            images=consumer.images,
            seconds=consumer.seconds,
            waited=consumer.waited,
            took=time.monotonic() - start,
            batch_bytes=consumer.batch_bytes,
            read_images=consumer.read_images,
            disk_bytes=disk_bytes,
            disk_faults=disk_faults,
        )

    def _dataset(self, name: str) -> PackedDataset:
        if name not in self._datasets:
            self._datasets[name] = open_dataset(self._path, self._transform, decoder=name)
        return self._datasets[name]


class SimulatedTraining:
    """Takes batches as a training loop does, and measures how long they take.

    Args:
        workers: Number of workers that make the batches.
        pause: Duration of a training step in seconds. This process sleeps for it, as it would wait for a GPU.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.

    Attributes:
        batches: Number of batches counted. Those that arrive while workers start up are not counted.
        images: Number of images in the counted batches.
        read_images: Number of images in all batches, counted or not.
        seconds: Time in seconds from the last batch that was not counted to the last batch.
        waited: The part of `seconds` in which this process waited for a batch.
        batch_bytes: Size of the arrays of one batch.
    """

    def __init__(
        self,
        workers: int,
        pause: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._workers = max(1, workers)
        self._pause = pause
        self._clock = clock
        self._sleep = sleep
        self._held: Any = None
        self.batches = self.images = self.read_images = self.batch_bytes = 0
        self.seconds = self.waited = 0.0

    def run(self, batches: Iterator[Any], start: float, seconds: float, limit: float) -> None:
        """Takes batches until a few were counted and about `seconds` have passed since `start`, but at most `limit`."""
        arrived, first_arrival, counted_from, longest_wait = 0, 0.0, None, 0.0
        while True:
            asked = self._clock()
            if arrived and asked + longest_wait > start + limit:
                return
            images = self._take(batches)
            arrived, now = arrived + 1, self._clock()
            self.read_images += images
            if counted_from is None:
                # Workers start at the same time, so their first batches arrive together.
                first_arrival = first_arrival or now
                if arrived >= self._workers or now - first_arrival >= seconds / 4:
                    counted_from = now
            else:
                self.batches += 1
                self.images += images
                self.waited += now - asked
                self.seconds = now - counted_from
                longest_wait = max(longest_wait, now - asked)
                if self._enough(now - start, seconds):
                    return
            if self._pause:
                self._sleep(self._pause)

    def _take(self, batches: Iterator[Any]) -> int:
        # Like the variable of a `for` loop, this holds a batch until the next one has come.
        self._held = batch = next(batches)
        self.batch_bytes = self.batch_bytes or _nbytes(batch)
        return samples_in(batch)

    def _enough(self, passed: float, seconds: float) -> bool:
        if passed < seconds or self.batches < MIN_BATCHES:
            return False
        # Batches may come in bursts, one from each worker. Stopping within a burst would overstate the rate.
        return self.batches % self._workers == 0 or passed > 1.5 * seconds


def _nbytes(batch: Any) -> int:
    """Size of all arrays in a batch, also of those in tuples: the views of the images."""
    return sum(map(_nbytes, batch)) if isinstance(batch, (tuple, list)) else getattr(batch, "nbytes", 0)


def _decoders(auto: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The decoders that give the pixels of Pillow here, the one that "auto" takes first; and why the others do not."""
    found, excluded = [auto], {}
    for name in DECODERS:
        if name in ("auto", auto):
            continue
        try:
            other = decoder(name)
        except MissingDependency:
            excluded[name] = "not installed"
            continue
        problem = deviation(other) if isinstance(other, BackEnd) else None
        if problem is None:
            found.append(name)
        else:
            excluded[name] = problem
    return tuple(found), excluded


def _no_cuda(dataset: PackedDataset) -> str | None:
    """Why a GPU cannot decode for this dataset and its transform; None if it can."""
    try:
        SampleMaker(dataset, (), undecoded=True)
    except UsageError as error:
        return str(error)
    # A decoder that is installed may not work. In a trial, that would end the search.
    found = find_gpu()
    return None if found is None else found.problem


def _disk_reads() -> tuple[int, int]:
    """Bytes read from disks and page faults that waited for a disk, by this process and its ended children so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _DISK_BLOCK * sum(usage.ru_inblock for usage in usages), sum(usage.ru_majflt for usage in usages)
