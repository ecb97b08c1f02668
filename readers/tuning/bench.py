"""One setting of a loader, measured once on real batches: what `packtrain._readers.tuning` searches with."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.decoders import DECODERS, decoder
from packtrain._codec.decoders.fallback import BackEnd
from packtrain._codec.decoders.selfcheck import deviation
from packtrain._core.cores import available_cores
from packtrain._core.errors import MissingDependency, UsageError

from ..dataset.image_dataset import PackedDataset, open_dataset
from ..loader import Loader, Order, Shuffled
from ..loader.arguments import workers_of
from ..loader.randomness import mixed
from .presets import preset
from .trial import FEWEST, Setting, Subject, Trial, TuneOptions

_ENDLESS: Final = 1 << 40
_BLOCK: Final = 512


class Repeated(Order):
    """Every row once and again, each time in another order, without the pause that ends an epoch.

    Args:
        rows: How many there are.
    """

    def __init__(self, rows: int) -> None:
        self._order: Final = Shuffled(rows)

    def __len__(self) -> int:
        return _ENDLESS

    def rows(self, key: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See `Order.rows`."""
        rows = len(self._order)
        return np.concatenate(
            [
                self._order.rows(mixed(key, lap), max(0, start - lap * rows), min(rows, stop - lap * rows))
                for lap in range(start // rows, -(-stop // rows))
            ]
        )


class Bench:
    """Measures settings on this host with a dataset.

    Args:
        path: Of the dataset.
        options: What is asked.

    Attributes:
        subject: What there is to choose from.

    Raises:
        DatasetError: It is no dataset, or has no records.
        UsageError: The transform is unknown.
    """

    def __init__(self, path: str | os.PathLike[str], options: TuneOptions) -> None:
        self._path = os.fspath(path)
        self._options = options
        self._transform = preset(options.transform).transform
        self._trials = 0
        dataset = open_dataset(path, self._transform)
        if not len(dataset):
            raise UsageError(f"{self._path} has no records: there is nothing to measure")
        self._datasets: dict[str, PackedDataset] = {}
        manifest = dataset.store.manifest
        raw = manifest.store.store == "raw"
        decoders, left_out = (("auto",), {}) if raw else _decoders(dataset.decoder.name)
        self.subject: Final = Subject(
            path=self._path,
            store=manifest.store.store,
            records=len(dataset),
            record_bytes=sum(shard.bytes for shard in manifest.shards) / len(dataset),
            decoders=decoders,
            left_out=left_out,
            cores=available_cores(),
            workers=workers_of("auto"),
        )

    def measure(self, setting: Setting, consumer_ms: float, seconds: float, limit: float) -> Trial | None:
        """See `packtrain._readers.tuning.search.Measure`."""
        begun, before = time.monotonic(), _read()
        # Other images each time: whether they have to come from a disk must not depend on who was measured before.
        self._trials += 1
        dataset = self._dataset(setting.decoder)
        with Loader(
            dataset,
            self._options.batch_size,
            sampler=Repeated(len(dataset)),
            seed=self._trials,
            num_workers=setting.workers,
            prefetch_factor=setting.prefetch,
            multiprocessing_context="fork",
            rank=0,
            world_size=1,
        ) as loader:
            consumer = Consumer(setting.workers, consumer_ms / 1000)
            consumer.run(iter(loader), begun, seconds, limit)
        # Workers that have ended are counted, so not before.
        disk_bytes, disk_faults = (after - earlier for after, earlier in zip(_read(), before, strict=True))
        if consumer.batches < FEWEST:
            return None
        return Trial(
            setting=setting,
            consumer_ms=consumer_ms,
            batches=consumer.batches,
            images=consumer.images,
            seconds=consumer.seconds,
            waited=consumer.waited,
            took=time.monotonic() - begun,
            batch_bytes=consumer.batch_bytes,
            read_images=consumer.all_images,
            disk_bytes=disk_bytes,
            disk_faults=disk_faults,
        )

    def _dataset(self, name: str) -> PackedDataset:
        if name not in self._datasets:
            self._datasets[name] = open_dataset(self._path, self._transform, decoder=name)
        return self._datasets[name]


class Consumer:
    """Takes batches as a training loop does, and keeps time.

    Args:
        workers: That make them.
        pause: Seconds that a step takes, in which this process leaves the cores to others, as with a GPU.

    Attributes:
        batches: That were counted: none of those with which workers get under way.
        images: In them.
        all_images: In those besides.
        seconds: From the last batch that was not counted to the last one.
        waited: Of these, for a batch.
        batch_bytes: Of the arrays of a batch.
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
        self.batches = self.images = self.all_images = self.batch_bytes = 0
        self.seconds = self.waited = 0.0

    def run(self, batches: Iterator[Any], begun: float, seconds: float, limit: float) -> None:
        """Takes batches until about `seconds` have passed since `begun`, and a few were counted; not beyond `limit`."""
        arrived, first, start, longest = 0, 0.0, None, 0.0
        while True:
            asked = self._clock()
            if arrived and asked + longest > begun + limit:
                return
            images = self._take(batches)
            arrived, now = arrived + 1, self._clock()
            self.all_images += images
            if start is None:
                # Workers begin at the same time, so that their first batches come at once.
                first = first or now
                if arrived >= self._workers or now - first >= seconds / 4:
                    start = now
            else:
                self.batches += 1
                self.images += images
                self.waited += now - asked
                self.seconds = now - start
                longest = max(longest, now - asked)
                if self._enough(now - begun, seconds):
                    return
            if self._pause:
                self._sleep(self._pause)

    def _take(self, batches: Iterator[Any]) -> int:
        # As a loop variable does, it holds a batch until there is another one.
        self._held = batch = next(batches)
        self.batch_bytes = self.batch_bytes or sum(getattr(part, "nbytes", 0) for part in batch)
        return len(batch[0])

    def _enough(self, passed: float, seconds: float) -> bool:
        if passed < seconds or self.batches < FEWEST:
            return False
        # Where batches come in bursts, one of each worker, part of a burst would say too much.
        return self.batches % self._workers == 0 or passed > 1.5 * seconds


def _decoders(auto: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Those that give Pillow's pixels here, what `"auto"` takes first; and why not the others."""
    found, left_out = [auto], {}
    for name in DECODERS:
        if name in ("auto", auto):
            continue
        try:
            other = decoder(name)
        except MissingDependency:
            left_out[name] = "not installed"
            continue
        problem = deviation(other) if isinstance(other, BackEnd) else None
        if problem is None:
            found.append(name)
        else:
            left_out[name] = problem
    return tuple(found), left_out


def _read() -> tuple[int, int]:
    """Bytes that had to be read from disks so far, and page faults that had to wait for one; of ended workers, too."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _BLOCK * sum(usage.ru_inblock for usage in usages), sum(usage.ru_majflt for usage in usages)
