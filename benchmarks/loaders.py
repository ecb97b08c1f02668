"""Runs one loader once, in a process of its own, and prints how fast it was.

    python -m benchmarks.loaders (rate | epoch | first | pace | write) CONTESTANT STREAM FOLDER [SECONDS]
    python -m benchmarks.loaders versions CONTESTANT

The peers' interpreters run this module too, so packtrain is imported only if it is the contestant. Imports of a
loader run before any clock starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, FFCV, Contestant
from benchmarks.peers.common import BATCH, SIDE, Batch

WARM_UP: Final = {"jpeg": 40, "raw": 256, "raw_rrc": 96}
"""Batches before the clock starts: those that are prefetched at the start; for raw records several epochs, since a
process maps each page when it first reads it.
"""
SECONDS: Final = {"jpeg": 4.0, "raw": 3.0, "raw_rrc": 4.0}
"""The shortest time for which a rate is measured."""
AT_THE_ENDS: Final = 8
"""Batches that are not timed at the start and at the end of a single pass: as many batches are in flight when the clock
stops as when it starts.
"""
PACE: Final = 2000
"""Images per second that `pace` consumes."""
PACED_SECONDS: Final = 10.0


def rate(batches: Iterator[Batch], warm_up: int, least_seconds: float, *, dtype: str = "uint8") -> dict[str, float]:
    """Images per second from the end of the warm-up to a batch at least some seconds later.

    Args:
        batches: An endless stream of batches.
        warm_up: Batches that are not timed.
        least_seconds: The shortest time to measure.
        dtype: What the images must be.

    Raises:
        RuntimeError: The stream ended, or its batches are not those of the other contestants.
    """
    _warm_up(batches, warm_up, dtype)
    started = time.perf_counter()
    # A batch is held until the next one is there, as in a training loop.
    for count, _held in enumerate(batches, 1):
        seconds = time.perf_counter() - started
        # An even number, since two workers tend to finish batches in pairs.
        if seconds >= least_seconds and count % 2 == 0:
            return {"images_per_second": count * BATCH / seconds, "seconds": seconds}
    raise RuntimeError("the epoch was shorter than the measurement")


def epoch(batches: Iterator[Batch], total: int) -> dict[str, float]:
    """Images per second in the middle of a single pass over `total` images, each of which is read once."""
    ends = min(AT_THE_ENDS, total // BATCH // 4)
    timed = total // BATCH - 2 * ends
    if timed < 1:
        raise RuntimeError(f"{total} images are too few for a pass of batches of {BATCH}; give a longer list")
    _warm_up(batches, ends)
    started = time.perf_counter()
    for count, _held in enumerate(batches, 1):
        if count == timed:
            seconds = time.perf_counter() - started
            return {"images_per_second": timed * BATCH / seconds, "seconds": seconds}
    raise RuntimeError("the pass was shorter than the list")


def pace(batches: Iterator[Batch], warm_up: int) -> dict[str, float]:
    """Processor time of this process, without its workers, while it takes images at a pace and sleeps in between."""
    _warm_up(batches, warm_up)
    started, used = time.perf_counter(), time.process_time()
    for count, _held in enumerate(batches, 1):
        seconds = time.perf_counter() - started
        if seconds >= PACED_SECONDS:
            used = time.process_time() - used
            return {"images_per_second": count * BATCH / seconds, "percent_of_a_core": 100 * used / seconds}
        time.sleep(max(0.0, count * BATCH / PACE - seconds))
    raise RuntimeError("the epoch was shorter than the measurement")


def first(module: Any, folder: Path) -> dict[str, float]:
    """Seconds from making the loader, over a dataset that is open already, to its first batch."""
    dataset = module.jpeg_dataset(folder)
    started = time.perf_counter()
    batches = module.batches(dataset)
    next(batches)
    return {"seconds": time.perf_counter() - started}


def _warm_up(batches: Iterator[Batch], count: int, dtype: str = "uint8") -> None:
    _require_like_the_others(next(batches), dtype)
    for _ in range(count - 1):
        next(batches)


def _require_like_the_others(batch: Batch, dtype: str) -> None:
    images, labels = batch
    if tuple(images.shape) not in ((BATCH, SIDE, SIDE, 3), (BATCH, 3, SIDE, SIDE)) or dtype not in str(images.dtype):
        raise RuntimeError(f"a batch of {tuple(images.shape)}, {images.dtype}")
    if len(labels) != BATCH:
        raise RuntimeError(f"{len(labels)} labels")


def versions(contestant: Contestant) -> dict[str, str]:
    """Python and the libraries that a contestant uses, in this interpreter."""
    import PIL

    found = {"python": platform.python_version(), "Pillow": PIL.__version__}
    for package in ("numpy", "torch", *contestant.packages):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _measured(what: str, contestant: Contestant, module: Any, rest: list[str]) -> dict[str, Any]:
    if what == "versions":
        return {"versions": versions(contestant), "options": {**module.OPTIONS, **contestant.options}}
    stream, folder = rest[0], Path(rest[1])
    if what == "write":
        # Both kinds of raw streams read the same files.
        getattr(module, f"write_{stream.partition('_')[0]}", lambda _: None)(folder)
        return {}
    if what == "first":
        return first(module, folder)
    make: Callable[..., Iterator[Batch]] = partial(getattr(module, stream), folder, **contestant.options)
    if what == "epoch":
        return epoch(make(once=True), len((folder / "train.txt").read_text().splitlines()))
    if what == "pace":
        return pace(make(), WARM_UP[stream])
    if len(rest) > 2:
        return rate(make(), WARM_UP["jpeg"], float(rest[2]), dtype=contestant.dtype)
    return rate(make(), WARM_UP[stream], SECONDS[stream], dtype=contestant.dtype)


def main() -> None:
    what, name, *rest = sys.argv[1:]
    contestant = CONTESTANTS[name]
    try:
        module = import_module(f"benchmarks.peers.{contestant.module}")
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    print(json.dumps(_measured(what, contestant, module, rest)), flush=True)
    if name == FFCV:
        # FFCV does not stop its threads, and now and then they make the process abort at its end.
        os._exit(0)


if __name__ == "__main__":
    main()
