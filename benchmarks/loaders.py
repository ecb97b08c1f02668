"""One loader, run once, in a process of its own: prints how fast it was.

    python -m benchmarks.loaders (write | rate | first | pace) LOADER CASE FOLDER
    python -m benchmarks.loaders versions LOADER

The peers' interpreters run this module too, so nothing here needs packtrain unless packtrain is what is asked for. What
a loader imports is imported before any clock starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.common import BATCH, SIDE, Batch

LOADERS: Final = {
    "packtrain": "packtrain",
    "packtrain, check=False": "unchecked",
    "torch DataLoader": "torch_loader",
    "webdataset": "webdataset",
    "mosaicml-streaming": "streaming",
    "litdata": "litdata",
    "DALI": "dali",
    "FFCV": "ffcv",
    "SPDL": "spdl",
    "copies alone": "copying",
}
"""The module of each loader, in benchmarks.peers."""
WARM_UP: Final = {"jpeg": 8, "raw": 256}
"""Batches before the clock starts: what is prefetched at the start, and all raw records several times, since a process
maps each page when it first reads it.
"""
SECONDS: Final = {"jpeg": 4.0, "raw": 3.0}
"""Time that a rate is measured for, at least."""
PACE: Final = 2000
"""Images per second that the consumer of `pace` takes."""
PACED_SECONDS: Final = 10.0

_PACKAGES: Final = {
    "DALI": ("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
    "FFCV": ("ffcv", "numba", "opencv-python-headless"),
    "SPDL": ("spdl", "spdl_io"),
    "copies alone": (),
    "packtrain": ("packtrain", "crc32c"),
    "packtrain, check=False": ("packtrain",),
    "torch DataLoader": ("torchvision",),
}


def rate(case: str, batches: Iterator[Batch]) -> dict[str, float]:
    """Images per second from the end of the warm-up to a batch some seconds later."""
    _warm_up(case, batches)
    started = time.perf_counter()
    # A batch is held until the next one is there, as in a training loop.
    for count, _held in enumerate(batches, 1):
        seconds = time.perf_counter() - started
        # An even number, since two workers tend to finish batches in pairs.
        if seconds >= SECONDS[case] and count % 2 == 0:
            return {"images_per_second": count * BATCH / seconds, "seconds": seconds}
    raise RuntimeError("the epoch was shorter than the measurement")


def pace(case: str, batches: Iterator[Batch]) -> dict[str, float]:
    """Processor time of this process alone while it takes images at a pace and sleeps in between."""
    _warm_up(case, batches)
    started, used = time.perf_counter(), time.process_time()
    for count, _held in enumerate(batches, 1):
        seconds = time.perf_counter() - started
        if seconds >= PACED_SECONDS:
            used = time.process_time() - used
            return {"images_per_second": count * BATCH / seconds, "percent_of_a_core": 100 * used / seconds}
        time.sleep(max(0.0, count * BATCH / PACE - seconds))
    raise RuntimeError("the epoch was shorter than the measurement")


def _warm_up(case: str, batches: Iterator[Batch]) -> None:
    _require_like_the_others(next(batches))
    for _ in range(WARM_UP[case] - 1):
        next(batches)


def first(module: Any, folder: Path) -> dict[str, float]:
    """Seconds from before the loader is made until its first batch is there; the dataset is open already."""
    dataset = module.jpeg_dataset(folder)
    started = time.perf_counter()
    batches = module.batches(dataset)
    next(batches)
    return {"seconds": time.perf_counter() - started}


def _require_like_the_others(batch: Batch) -> None:
    images, labels = batch
    if tuple(images.shape) not in ((BATCH, SIDE, SIDE, 3), (BATCH, 3, SIDE, SIDE)) or "uint8" not in str(images.dtype):
        raise RuntimeError(f"a batch of {tuple(images.shape)}, {images.dtype}")
    if len(labels) != BATCH:
        raise RuntimeError(f"{len(labels)} labels")


def _versions(name: str) -> dict[str, str]:
    import PIL

    found = {"python": platform.python_version(), "Pillow": PIL.__version__}
    for package in ("numpy", "torch", *_PACKAGES.get(name, (name,))):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def main() -> None:
    what, name, *rest = sys.argv[1:]
    try:
        module = import_module(f"benchmarks.peers.{LOADERS[name]}")
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    if what == "versions":
        answer: dict[str, Any] = {"versions": _versions(name), "options": module.OPTIONS}
    else:
        case, folder = rest[0], Path(rest[1])
        answer = _measured(what, module, case, folder)
    print(json.dumps(answer), flush=True)
    if name == "FFCV":
        # Its threads, which nobody stops, make the process abort at its end now and then.
        os._exit(0)


def _measured(what: str, module: Any, case: str, folder: Path) -> dict[str, float]:
    if what == "write":
        if hasattr(module, f"write_{case}"):
            getattr(module, f"write_{case}")(folder)
        return {}
    if what == "first":
        return first(module, folder)
    return {"rate": rate, "pace": pace}[what](case, getattr(module, case)(folder))


if __name__ == "__main__":
    main()
