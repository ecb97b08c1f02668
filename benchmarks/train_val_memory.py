"""Memory through 30 epochs of training and validation, for each back end of `TrainVal` that a CPU runs.

    python -m benchmarks.train_val_memory BACKEND FOLDER EPOCHS

goes through them once, in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.environments import interpreter, why_missing
from benchmarks.measure import NotInstalled, child, describe_list, medians, print_table, real_list, scratch, target

BACKENDS: Final = ("packtrain", "torch", "dali-cpu")
EPOCHS: Final = 30
QUICK_EPOCHS: Final = 6
WARM_UP: Final = 5
"""Epochs that do not count: pools and caches fill."""
WINDOW: Final = 10
"""Epochs of which the least counts, after the warm-up and at the end.

A leak raises the least. The others also tell whether the allocator has just kept a batch of 38 MB for the next one.
"""
STARTS: Final = 5
"""Times that the first batch is waited for, each way."""
MOST: Final = 0.03
"""By what part of itself memory may grow."""
BATCH: Final = 64
WORKERS: Final = 2
PHASES: Final = ("train", "val", "idle")


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Bytes in memory, by back end, phase and epoch."""
    from packtrain import pack

    images, epochs = real_list(), QUICK_EPOCHS if quick else EPOCHS
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    with scratch() as folder:
        pack(images, folder / "set", max_rejects="100%")
        for backend in BACKENDS:
            environment = "dali" if backend.startswith("dali") else None
            try:
                found[backend] = child(
                    "train_val_memory", backend, folder / "set", epochs, python=interpreter(environment)
                )
            except NotInstalled as error:
                missing[backend] = f"{error}; {why_missing(environment)}"
    growths = {
        backend: {phase: growth(each["bytes"][phase]) for phase in ("train", "val")} for backend, each in found.items()
    }
    return {
        "images": describe_list(images),
        "settings": {
            "epochs": epochs,
            "batch_size": BATCH,
            "num_workers": WORKERS,
            "warm_up": WARM_UP,
            "window": WINDOW,
        },
        "bytes": {backend: each["bytes"] for backend, each in found.items()},
        "seconds_to_first_batch": {backend: each["seconds"] for backend, each in found.items()},
        "growth": growths,
        "missing": missing,
        "targets": [
            target(f"{backend}: growth of memory in {phase}", one, most=MOST)
            for backend, each in growths.items()
            for phase, one in each.items()
        ],
    }


def show(result: dict[str, Any]) -> None:
    rows = []
    for backend, each in result["bytes"].items():
        for phase in PHASES:
            first, last = _ends(each[phase])
            rows.append(
                [f"{backend}, {phase}", f"{first / 1e6:,.0f}", f"{last / 1e6:,.0f}", f"{last / first - 1:+.1%}"]
            )
    print_table([f"MB in memory, {result['settings']['epochs']} epochs", "after warm-up", "at the end", "growth"], rows)
    print()
    seconds = {backend: medians(each) for backend, each in result["seconds_to_first_batch"].items()}
    rows = [[backend, f"{each['anew']:.2f}", f"{each['kept']:.2f}"] for backend, each in seconds.items()]
    print_table(["seconds to the first batch", "started anew", "kept"], rows)
    for backend, reason in result["missing"].items():
        print(f"{backend}: {reason}")


def growth(figures: Sequence[float]) -> float:
    """By what part of itself memory has grown from the first epochs after the warm-up to the last ones."""
    first, last = _ends(figures)
    return last / first - 1


def _ends(figures: Sequence[float]) -> tuple[float, float]:
    warm = min(WARM_UP, len(figures) // 2)
    kept = figures[warm:]
    window = min(WINDOW, len(kept) // 2)
    return min(kept[:window]), min(kept[-window:])


def resident() -> int:
    """Bytes in memory of this process and of all processes that it has started; pages that they share count once.

    Only what belongs to processes: anonymous and shared memory, not the pages of files, which the kernel can drop.
    """
    family, found = [os.getpid()], 0
    for process in family:
        folder = Path(f"/proc/{process}")
        for children in folder.glob("task/*/children"):
            # Threads and processes may end meanwhile.
            with suppress(FileNotFoundError, ProcessLookupError):
                family += map(int, children.read_text().split())
        with suppress(FileNotFoundError, ProcessLookupError):
            figures = dict(line.split(":", 1) for line in (folder / "smaps_rollup").read_text().splitlines()[1:])
            found += sum(1024 * int(figures[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))
    return found


def through(backend: Any, folder: Path, epochs: int, **options: Any) -> dict[str, list[int]]:
    """Memory with the last batch of training and of validation, and after both, for each epoch."""
    from packtrain import TrainVal, imagenet_loaders

    found: dict[str, list[int]] = {phase: [] for phase in PHASES}
    options = {"batch_size": BATCH, "num_workers": WORKERS, "seed": 0, "device": "cpu", **options}
    with TrainVal(*imagenet_loaders(folder, folder, backend, **options)) as data:
        for _ in range(epochs):
            found["train"].append(_at_the_end(data.get_train_loader()))
            data.prep_for_val()
            found["val"].append(_at_the_end(data.get_val_loader()))
            data.reset()
            found["idle"].append(resident())
    return found


def _at_the_end(loader: Iterable[Any]) -> int:
    # Before that, it depends on the moment how many batches workers have made ahead.
    found = 0
    for _ in loader:
        found = resident()
    return found


def starts(backend: Any, folder: Path, times: int, **options: Any) -> dict[str, list[float]]:
    """Seconds to the first training batch, with all that makes batches started anew, and kept since the last pass."""
    from packtrain import TrainVal, imagenet_loaders

    found: dict[str, list[float]] = {"anew": [], "kept": []}
    options = {"batch_size": BATCH, "num_workers": WORKERS, "seed": 0, "device": "cpu", **options}
    with TrainVal(*imagenet_loaders(folder, folder, backend, **options)) as data:
        for number in range(2 * times):
            kind = "kept" if number % 2 else "anew"
            if kind == "anew":
                data.prep_for_val()
            started = time.perf_counter()
            batches = iter(data.get_train_loader())
            next(batches)
            found[kind].append(time.perf_counter() - started)
            for _ in batches:
                pass
    return found


def _main() -> None:
    backend, folder, epochs = sys.argv[1:]
    if backend.startswith("dali"):
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            print(json.dumps({"missing": str(error)}))
            return
    found = through(backend, Path(folder), int(epochs))
    print(json.dumps({"bytes": found, "seconds": starts(backend, Path(folder), STARTS)}), flush=True)


if __name__ == "__main__":
    _main()
