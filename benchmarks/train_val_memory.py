"""Memory through 30 epochs of training and validation, for each back end of `TrainVal` that a CPU runs.

    python -m benchmarks.train_val_memory BACKEND FOLDER EPOCHS

goes through them once, in a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.environments import interpreter, why_missing
from benchmarks.measure import NotInstalled, child, describe_list, print_table, real_list, scratch, target

BACKENDS: Final = ("packtrain", "torch", "dali-cpu")
EPOCHS: Final = 30
QUICK_EPOCHS: Final = 6
WARM_UP: Final = 5
"""Epochs that do not count: pools and caches fill."""
WINDOW: Final = 5
"""Epochs whose median is taken, after the warm-up and at the end."""
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
    growths = {backend: {phase: growth(each[phase]) for phase in ("train", "val")} for backend, each in found.items()}
    return {
        "images": describe_list(images),
        "settings": {"epochs": epochs, "batch_size": BATCH, "workers": WORKERS, "warm_up": WARM_UP, "window": WINDOW},
        "bytes": found,
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
    for backend, reason in result["missing"].items():
        print(f"{backend}: {reason}")


def growth(figures: Sequence[float]) -> float:
    """By what part of itself memory has grown from the first epochs after the warm-up to the last ones."""
    first, last = _ends(figures)
    return last / first - 1


def _ends(figures: Sequence[float]) -> tuple[float, float]:
    warm = min(WARM_UP, len(figures) // 2)
    kept = figures[warm:]
    window = min(WINDOW, len(kept))
    return statistics.median(kept[:window]), statistics.median(kept[-window:])


def resident() -> int:
    """Bytes in memory of this process and of all processes that it has started; pages that they share count once.

    Only what belongs to processes: anonymous and shared memory, not the pages of files, which the kernel can drop.
    """
    family, found = [os.getpid()], 0
    for process in family:
        # It may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{process}/task"):
                family += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            figures = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
            found += sum(1024 * int(figures[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))
    return found


def through(backend: Any, folder: Path, epochs: int, **options: Any) -> dict[str, list[int]]:
    """Most memory in training and in validation, and memory after both, for each epoch."""
    from packtrain import TrainVal

    found: dict[str, list[int]] = {phase: [] for phase in PHASES}
    options = {"batch_size": BATCH, "workers": WORKERS, "seed": 0, "device": "cpu", **options}
    with TrainVal(folder, folder, backend, **options) as data:
        for _ in range(epochs):
            found["train"].append(max(resident() for _ in data.get_train_loader()))
            data.prep_for_val()
            found["val"].append(max(resident() for _ in data.get_val_loader()))
            data.reset()
            found["idle"].append(resident())
    return found


def _main() -> None:
    backend, folder, epochs = sys.argv[1:]
    if backend.startswith("dali"):
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            print(json.dumps({"missing": str(error)}))
            return
    started = time.perf_counter()
    found: dict[str, Any] = through(backend, Path(folder), int(epochs))
    print(json.dumps({**found, "seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    _main()
