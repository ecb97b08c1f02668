"""The loop of a filler: samples come in, shards and generations come out, and the oldest ones make room."""

from __future__ import annotations

import errno
import secrets
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from packtrain._core.errors import NotADataset, UsageError
from packtrain._core.files import file_errors
from packtrain._core.generations import CacheInfo
from packtrain._core.interrupts import postponed_ctrl_c
from packtrain._core.options import FORMATS
from packtrain._core.printable import printable
from packtrain._core.sizes import size
from packtrain._formats.writing import NewSample
from packtrain._packer.samples import SampleEncoder

from .cache_folder import check_folder, stray_warning
from .options import FillOptions
from .publisher import Publisher
from .shard import FinishedShard, GrowingShard, stays_in_memory
from .source_reader import Source, SourceReader
from .space import Space
from .status import FillFigures
from .throttles import ReaderThrottle, TokenBucket

OnProgress = Callable[[FillFigures], None]
_LOOK: Final = 0.05
"""Seconds between two looks whether a wait is over."""
_PROGRESS: Final = 0.1
"""Seconds between two calls of `on_progress`."""
_REPORTS: Final = 0.5
"""Seconds between two looks at what readers say."""
_FULL: Final = frozenset([errno.ENOSPC, errno.EDQUOT])
_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0


def fill(root: Path, source: Source, options: FillOptions, on_progress: OnProgress = lambda _: None) -> FillFigures:
    """Fill a cache from a source, until the source ends.

    However the filling ends, samples that are in no shard yet are published as a last, smaller shard; only a sample
    that was being written at that moment takes its shard with it. The first samples of a new cache, at most 64, are not
    written before their schema is known. A process that is killed loses the shard that it was writing, and nothing
    else.

    Args:
        root: The cache's folder, which the caller has locked.
        source: Yields the samples.
        options: How the cache is filled.
        on_progress: Called about ten times a second from the calling thread, also while the filler waits. What it
            raises ends the filling.

    Raises:
        UsageError: The cache has another format or other fields, or the budget is too small for shards of this size.
        OutputConflict: The folder holds something else.
        FillError: The source has never yielded a sample that can be stored, or its first samples differ.
        CorruptFile: The cache is damaged; the message says what to do.
        PackError: A file cannot be written, for another reason than a full disk, which is waited for; or the folder is
            another one than at the beginning.
    """
    figures = FillFigures()
    with file_errors(root), SourceReader(source, options, figures, lambda: on_progress(figures)) as reader:
        check_folder(root)
        info = _info(root, options, reader)
        encoder = SampleEncoder(info.schema, bare=info.bare, most=options.shard_bytes)
        with closing(CacheWriter(root, info, options, figures, on_progress)) as writer:
            reader.idle = writer.idle
            for sample in reader.samples(encoder):
                writer.add(sample)
    return figures


class CacheWriter:
    """Writes samples into a cache, until it is closed.

    Args:
        root: The cache's folder, which the caller has locked.
        info: Content of cache.json.
        options: How the cache is filled.
        figures: Counters that the writer keeps.
        on_progress: See `fill`.

    Raises:
        UsageError: The budget is too small for shards of this size.
        CorruptFile: The cache is damaged; the message says what to do.
    """

    def __init__(
        self,
        root: Path,
        info: CacheInfo,
        options: FillOptions,
        figures: FillFigures,
        on_progress: OnProgress,
    ) -> None:
        self.figures: Final = figures
        self._on_progress = on_progress
        self._root: Final = root
        self._info: Final = info
        self._options: Final = options
        self._publisher: Final = Publisher(root, info)
        self._readers: Final = ReaderThrottle(root, options.samples_per_insert)
        self._space: Final = Space(root, info)
        self._rate: Final = TokenBucket(options.bytes_per_second, options.shard_bytes)
        self._shard: GrowingShard | None = None
        self._keep: Final = stays_in_memory(options.budget_bytes)
        self._number = self._publisher.newest.end_sample
        self._spent = 0
        self._pause = _SHORTEST_PAUSE
        self._next_progress = self._next_reports = 0.0
        self._check_budget()
        if warning := stray_warning(root):
            figures.problem = warning
            warnings.warn(printable(warning), RuntimeWarning, stacklevel=3)
        self._evict()
        self._look()

    def add(self, sample: NewSample) -> None:
        """Write a sample, once there is room for it. If its shard is full, publish that first.

        A sample that is larger than a shard is refused. If the disk is full, the samples of the present shard are lost.
        """
        cost = self._space.cost.sample(sample)
        if cost > self._options.shard_bytes:
            self._refuse(cost)
            return
        if self._spent + cost > self._options.shard_bytes:
            self.publish()
        if self._number >= self._readers.limit:
            self._wait(self._readers_behind)
        self._keep_to_rate(sample.size)
        try:
            if self._shard is None:
                self._wait(self._lack_of_room)
                number = self._publisher.newest.end_shard
                self._shard = GrowingShard(self._root, self._info, number, self._number, keep=self._keep)
            self._shard.add(sample)
        except OSError as error:
            self._abandon(error)
            return
        self._number += 1
        self._spent += cost
        self.figures.samples += 1
        self.figures.sample_bytes += sample.size
        if time.monotonic() >= self._next_progress:
            self.idle()

    def idle(self) -> None:
        """Report on progress, if it is time. To be called while there is no sample."""
        now = time.monotonic()
        if now >= self._next_reports:
            self._next_reports = now + _REPORTS
            self._look()
        if now >= self._next_progress:
            self._next_progress = now + _PROGRESS
            self._on_progress(self.figures)

    def publish(self) -> None:
        """Publish the samples that were added since the last time, if there are any."""
        if self._shard is None:
            return
        self._space.check_folder()
        shard, self._shard = self._shard, None
        finished: FinishedShard | None = None
        try:
            with postponed_ctrl_c():
                finished = shard.finish()
                self._publish(finished)
        except OSError as error:
            self._shard = shard
            if finished is None or self._publisher.withdraw(finished):
                self._abandon(error)
                return
            self._shard = None
        self._spent = 0
        self._pause = _SHORTEST_PAUSE
        self._evict()
        self._look()

    def close(self) -> None:
        """Publish what is left, or remove it if a sample was being written when something went wrong."""
        if self._shard is not None and not self._shard.whole:
            shard, self._shard = self._shard, None
            self._forget(shard)
        self.publish()
        self._on_progress(self.figures)

    def _publish(self, finished: FinishedShard) -> None:
        taken = self._publisher.publish(finished, self._most(), self._first_unseen)
        self.figures.shards += 1
        self.figures.written_bytes += taken

    @property
    def _need(self) -> int:
        """Bytes to reserve before a shard is begun."""
        return self._space.need(self._options.shard_bytes, len(self._publisher.newest.records) + 1)

    @property
    def _first_unseen(self) -> int | None:
        """The number of the first sample that a generation must keep; None if it may leave out any."""
        return self._readers.seen if self._options.keep_unseen else None

    def _most(self) -> int:
        """The most bytes of shards that a generation may have."""
        others = max(0, self._space.used - self._publisher.allocated)
        return min(self._options.generation_bytes, self._options.budget_bytes - others - self._need)

    def _check_budget(self) -> None:
        shard, headroom = self._options.shard_bytes, self._options.headroom
        # What else is in the folder now may go again, such as reports of readers.
        least = max(self._need / headroom, self._space.cost.peak(shard) / (1 - headroom))
        if least > self._options.budget_bytes:
            raise UsageError(
                f"budget={size(self._options.budget_bytes)} is too small: with shards of {size(shard)} in "
                f"{self._info.format}, a headroom of {self._options.headroom:.0%} has to hold {size(self._need)} while "
                f"a shard is written. Give at least {size(least)}, a smaller `shard_size`, or a larger `headroom`"
            )

    def _refuse(self, cost: int) -> None:
        shard = self._options.shard_bytes
        self.figures.refused += 1
        self.figures.problem = (
            f"a sample that takes up to {size(cost)} does not fit into a shard of {size(shard)}: give a shard_size of "
            f"at least {size(cost)}, and a budget to match"
        )

    def _abandon(self, error: OSError) -> None:
        """Give the present shard up because of an error, and wait a while if the disk is full."""
        shard, self._shard = self._shard, None
        if shard is not None:
            self._forget(shard)
        if error.errno not in _FULL:
            raise error
        end = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        text = f"{self._root}: {error.strerror}. The shard that was being written is given up: make room there"
        self.figures.problem = text
        self._wait(lambda: text if time.monotonic() < end else "")

    def _forget(self, shard: GrowingShard) -> None:
        shard.abandon()
        self.figures.samples -= len(shard)
        self.figures.sample_bytes -= shard.bytes
        self._number = self._publisher.newest.end_sample
        self._spent = 0

    def _evict(self) -> None:
        shards, size = self._publisher.evict()
        self.figures.evicted_shards += shards
        self.figures.evicted_bytes += size

    def _look(self) -> None:
        """Bring the figures up to date."""
        self._space.check_folder()
        newest, figures = self._publisher.newest, self.figures
        self._readers.look(newest.end_sample, full=newest.first_sample > 0)
        figures.taken = self._readers.taken
        if figures.generation != newest.number:
            figures.generation = newest.number
            figures.first_sample, figures.end_sample = newest.first_sample, newest.end_sample
            figures.oldest_ns = self._publisher.oldest_ns
            figures.used_bytes = self._space.used

    def _keep_to_rate(self, size: int) -> None:
        start = time.monotonic()
        end = start + self._rate.wait_for(size)
        while (left := end - time.monotonic()) > 0:
            self.idle()
            time.sleep(min(left, _LOOK))
        if end > start:
            self.figures.waited_seconds += time.monotonic() - start

    def _wait(self, obstacle: Callable[[], str]) -> None:
        """Wait until there is no obstacle any more."""
        start, waited = time.monotonic(), self.figures.waited_seconds
        try:
            while why := obstacle():
                self.figures.waiting = why
                self.idle()
                time.sleep(_LOOK)
                self.figures.waited_seconds = waited + time.monotonic() - start
        finally:
            self.figures.waiting = ""

    def _readers_behind(self) -> str:
        self._readers.look(self._publisher.newest.end_sample)
        if self._number < self._readers.limit:
            return ""
        return (
            f"readers are to take {self._readers.lacking(self._number):,} more samples before the next one is written "
            f"(samples_per_insert={self._options.samples_per_insert:g})"
        )

    def _lack_of_room(self) -> str:
        self._space.check_folder()
        self._evict()
        need, budget, used, publisher = self._need, self._options.budget_bytes, self._space.used, self._publisher
        self.figures.used_bytes = used
        if (seen := self._first_unseen) is not None:
            self._readers.look(publisher.newest.end_sample)
            if not publisher.fits(self._space.cost.peak(self._options.shard_bytes), self._most(), seen):
                return "the cache is full of samples that no reader has gone through (keep_unseen)"
        if used + need <= budget:
            return self._space.shortage(need)
        if not publisher.holds_older and publisher.shrink(self._most(), seen):
            return self._lack_of_room()
        return (
            f"{size(used)} of {size(budget)} are used, and a shard takes up to {size(need)}: "
            f"{publisher.holders() or 'the newest generation, and files that are not part of the cache'}"
        )


def _info(root: Path, options: FillOptions, reader: SourceReader) -> CacheInfo:
    """Return what the cache holds. A new cache is made for samples like the first ones.

    Raises:
        UsageError: The cache has another format than the options ask for, or another schema than the source states.
    """
    try:
        info = CacheInfo.load(root)
    except NotADataset:
        schema = reader.schema(None)
        info = CacheInfo(secrets.token_hex(16), options.format or next(iter(FORMATS)), schema.fields, schema.labels)
        info.save(root)
        return info
    if options.format not in (None, info.format):
        raise UsageError(
            f"{root} holds shards in {info.format}, not in {options.format}: leave out the format, or choose "
            "another folder"
        )
    reader.schema(info.schema)
    return info
