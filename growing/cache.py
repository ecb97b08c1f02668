"""A growing cache, as a training program uses it."""

from __future__ import annotations

import atexit
import os
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from packtrain._core.arguments import checks_names, flag, number, path_of
from packtrain._core.errors import FillError, UsageError
from packtrain._core.generations import generation_numbers
from packtrain._core.launching import Launched
from packtrain._core.printable import printable
from packtrain._core.schema import IMAGE, LABEL, Schema
from packtrain._packer.sample_values import Sample

from .options import FillOptions
from .process import start
from .status import FillStatus, read_status

if TYPE_CHECKING:
    from packtrain._readers.dataset.growing import GrowingDataset
    from packtrain._readers.dataset.samples import TransformLike
    from packtrain._readers.dataset.sound import Check

_LOOK: Final = 0.05
_ASK: Final = 0.5
"""Seconds between two looks for a generation, and at the filler."""
_FAILED: Final = ("failed", "killed")
_OVER: Final = ("ended", *_FAILED)
_ALONE: Final = 60.0
"""Seconds to wait for somebody to start a filler."""


@checks_names()
class GrowingCache:
    """A folder of samples that a filler writes and training reads, while the oldest make room for new ones.

        with GrowingCache("/nvme/cache", budget="500GiB") as cache:
            cache.fill(samples)
            loader = Loader(cache.dataset(), 64, shuffle=True, num_workers=8)
            for epoch in range(100):
                for batch in loader:
                    ...

    Each epoch of the loader has the samples that have arrived when it begins. The filler is a process of its own. It
    ends with `close`, at the end of a ``with`` block, and when the process that started it ends, however that happens.

    Args:
        root: Folder of the cache, on a local disk or in /dev/shm. Nothing else may be in it.
        budget: The most bytes that the cache may take there, as in ``"500GiB"``; only needed to fill it.
        headroom: Part of the budget that the newest generation leaves free for new samples.
        shard_size: Size of a shard, as in ``"256MiB"``; None: a fourth of the headroom, at most 256 MiB.
        format: Container format of the shards: ``"tar"``, ``"hdf5"`` or ``"lmdb"``; None: that which the cache
            has, tar for a new one.
        rate: The most bytes to write per second, as in ``"600MB"``; None: as fast as it goes.
        samples_per_insert: The least number of samples that readers take for each one that is written; None: no limit.
        keep_unseen: True to keep each sample until a reader has gone through a generation that holds it.

    Raises:
        UsageError: A value is out of its range, or they do not fit together.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        budget: int | str | None = None,
        *,
        headroom: float = 0.2,
        shard_size: int | str | None = None,
        format: str | None = None,
        rate: int | str | None = None,
        samples_per_insert: float | None = None,
        keep_unseen: bool = False,
    ) -> None:
        self.root: Final = path_of("root", root)
        self._options: FillOptions | None = None
        if budget is not None:
            self._options = FillOptions(
                budget=budget,
                headroom=headroom,
                shard_size=shard_size,
                rate=rate,
                samples_per_insert=samples_per_insert,
                keep_unseen=keep_unseen,
                format=format,
            )
        self._made_ns = time.time_ns()
        self._filler: Launched | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A process that is sent this reads the same cache; the filler stays with the one that started it.
        return {**vars(self), "_filler": None}

    def fill(self, source: Callable[[], Iterator[Sample]] | str, *, outlive: bool = False) -> None:
        """Start the filler, and return when it has begun.

        The filler runs in a new interpreter, which imports the module that the source is in. So a program in which the
        source is defined needs ``if __name__ == "__main__":`` around what it does.

        Args:
            source: A function without arguments that returns an iterator of samples: dicts of field and bytes, text or
                numpy array, perhaps with a number as ``"label"``. It is called again when the iterator fails. Or its
                name, ``"MODULE:FUNCTION"``.
            outlive: True to let the filler live on when this process ends. It says what it has to say in ``filler.log``
                in the cache, and ends with ``kill PID``; `status` has its PID.

        Raises:
            UsageError: There is no budget, or the source cannot be sent or imported.
            OutputConflict: A filler works there already, the folder holds something else, or other users can change it.
            FillError: The filler cannot begin.
        """
        outlive = flag("outlive", outlive)
        if self._options is None:
            raise UsageError(f'a budget is needed to fill {self.root}: GrowingCache(root, budget="500GiB")')
        if self._filler is not None and self._filler.ended() is None:
            raise UsageError(
                f"the filler that this object started (process {self._filler.pid}) fills {self.root}: "
                "call close() first"
            )
        if self._filler is not None and (why := self._failure()):
            warnings.warn(printable(f"the last filler of {self.root} is gone: {why}"), RuntimeWarning, stacklevel=2)
        started = start(self.root, source, self._options, outlive=outlive)
        self.close()
        if started is not None:
            self._filler = started
            # So that it finishes what it is writing; it is killed otherwise.
            atexit.register(self.close)

    def dataset(
        self,
        transform: TransformLike | Sequence[TransformLike] | None = None,
        target_transform: TransformLike | None = None,
        *,
        fields: Sequence[str] | None = None,
        io: str = "auto",
        check: Check = True,
        decoder: str = "auto",
        scaled: bool = False,
        timeout: float | None = None,
    ) -> GrowingDataset:
        """Open the samples of the newest generation, and wait for the first one if there is none yet.

        Args:
            transform: As for `packtrain.open_dataset`, as are the others.
            target_transform: Called with each label.
            fields: What a sample is to have, in this order. None: all that is stored, as a named tuple; but
                ``(image, label)`` if there is nothing else.
            io: ``"mmap"``, ``"pread"`` or ``"auto"``.
            check: Compare each record with its checksum when it is read; ``"first"`` is the same as True here.
            decoder: The decoder of images.
            scaled: Let the decoder shrink large JPEGs before they are resized.
            timeout: The most seconds to wait. None: as long as a filler works, and a minute for somebody to start one.

        Returns:
            A dataset that a `packtrain.Loader` moves to the newest generation at the beginning of each epoch.

        Raises:
            FillError: There is no generation in time, or there will be none: the filler has ended or failed.
            DatasetError: The cache is damaged, or cannot be read.
            UsageError: There is no such field, transform or decoder.
        """
        from packtrain._readers.dataset.cache_files import CacheFiles
        from packtrain._readers.dataset.growing import GrowingDataset, newest
        from packtrain._readers.dataset.samples import PackedSamples
        from packtrain._readers.dataset.sound import checked_check

        if timeout is not None:
            timeout = number("timeout", timeout, 0, 1e9, "seconds, at least 0")
        self._wait(timeout)
        if why := self._failure():
            warnings.warn(
                printable(
                    f"{self.root} gets no new samples, its filler is gone: {why}. Training goes on with the old ones"
                ),
                RuntimeWarning,
                stacklevel=2,
            )
        files = CacheFiles(self.root, io, check=checked_check(check))
        wanted = _all_fields(files.schema) if fields is None else fields
        samples = PackedSamples(
            newest(files), transform, target_transform, decoder=decoder, scaled=scaled, fields=wanted
        )
        return GrowingDataset(samples)

    def status(self) -> FillStatus:
        """Return what the filler does and has done, whoever started it; ``print`` shows the status as a table."""
        status = read_status(self.root)
        # Its lock ends a moment before it does.
        how = None if self._filler is None or status.alive else self._filler.ended(1.0)
        if self._filler is None or how is None:
            return status
        pid = self._filler.pid
        if status.process == pid and status.state != "killed":
            return status
        hint = "; the kernel does so when memory runs out, see `dmesg`" if how.endswith("SIGKILL") else ""
        return replace(status, state="killed", why=f"its process {how}{hint}", process=pid)

    def close(self) -> None:
        """End the filler that this object has started, unless it is to outlive this process. May be called twice."""
        filler, self._filler = self._filler, None
        if filler is not None:
            atexit.unregister(self.close)
            filler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({os.fspath(self.root)!r}, {printable(self.status().doing)})"

    def _wait(self, timeout: float | None) -> None:
        """Wait for a generation.

        Raises:
            FillError: There is none in time, or there will be none.
        """
        start = next_look = alone = time.monotonic()
        while True:
            problem, now = "", time.monotonic()
            if now >= next_look:
                next_look = now + _ASK
                status = self.status()
                alone = now if status.alive else alone
                problem = self._why_hopeless(status, now - start, now - alone, timeout)
            # After the look at the filler, which may publish one and end meanwhile.
            if generation_numbers(self.root):
                return
            if problem:
                raise FillError(problem)
            time.sleep(_LOOK)

    def _why_hopeless(self, status: FillStatus, waited: float, alone: float, timeout: float | None) -> str:
        """Say why there will be no generation, or not in time; empty as long as waiting makes sense."""
        trouble = f". The last problem: {status.figures.problem}" if status.figures.problem else ""
        # What ended before is not what the caller waits for: another process may be about to start a filler.
        ended = status.state in _OVER and (self._filler is not None or status.updated_ns >= self._made_ns)
        if ended:
            return f"{self.root} has no samples, and will have none. Its filler: {status.doing}{trouble}"
        if timeout is not None and waited >= timeout and status.state != "none":
            return (
                f"{self.root} has no samples after {timeout:g} s. Its filler: {status.doing}, "
                f"{status.figures.samples:,} samples so far{trouble}. Raise the timeout, or fill with a smaller "
                "shard_size: samples can be read when their shard is full"
            )
        if alone >= _ALONE if timeout is None else waited >= timeout:
            return (
                f"nothing fills {self.root}: call fill(), or run `packtrain fill MODULE:FUNCTION "
                f"{shlex.quote(os.fspath(self.root))} --budget SIZE`"
            )
        return ""

    def _failure(self) -> str:
        """Return why the last filler failed; empty if it did not."""
        status = self.status()
        return status.why if status.state in _FAILED else ""


def _all_fields(schema: Schema) -> tuple[str, ...] | None:
    """Return the names of all that is stored; None for an image with a label, which are a pair."""
    labels = (LABEL,) * (schema.labels.kind != "none")
    return None if schema.names == (IMAGE,) and labels else (*schema.names, *labels)
