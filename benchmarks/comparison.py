"""Images per second of packtrain and of all installed peers, at one workload: the benchmarks peers-*."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import PACKTRAIN
from benchmarks.loaders import AT_THE_ENDS, SECONDS, WARM_UP
from benchmarks.measure import (
    Unmeasurable,
    kind_of,
    medians,
    pillow_build,
    print_table,
    ratio,
    real_list,
    scratch,
    target,
)
from benchmarks.peers.common import BATCH, PACKED, WORKERS
from benchmarks.rounds import REPETITIONS, Field, forget, has_gpu, ratios_of, read_through
from benchmarks.workloads import QUICK_LINES, WORKLOADS, prepare

QUICK_SECONDS: Final = 1.0
IN_MEMORY: Final = ("tmpfs", "ramfs")


class Comparison:
    """A benchmark, see `run.Benchmark`.

    Args:
        name: The workload.
        contestants: The contestants that packtrain is compared with; empty for all.
    """

    def __init__(self, name: str, contestants: Collection[str] = ()) -> None:
        self.workload = WORKLOADS[name]
        self.contestants = contestants

    def measure(self, *, quick: bool = False) -> dict[str, Any]:
        """Images per second of all contestants, which take turns."""
        workload = self.workload
        names = [name for name in workload.contestants if self._is_chosen(name)]
        lines = min(workload.lines, QUICK_LINES) if quick else workload.lines
        repetitions = 1 if quick else REPETITIONS
        with scratch(on_disk=workload.cold) as outer:
            output, folder = kind_of(outer), outer / "data"
            if workload.cold and output in IN_MEMORY:
                raise Unmeasurable(f"{outer.parent} is {output}, not a disk; TMPDIR names a folder on one")
            described = prepare(workload, real_list(), folder, lines)
            field = Field(names, gpu=has_gpu())
            field.write(workload, folder)
            device = _device(folder) if workload.cold else {}
            rates = field.rates(workload, folder, repetitions=repetitions, seconds=QUICK_SECONDS if quick else None)
        over = ratios_of(rates)
        return {
            **pillow_build(),
            "title": workload.title,
            "input": described,
            "output": output,
            **device,
            "settings": self._settings(repetitions, quick=quick),
            "contestants": field.contestants,
            "missing": field.missing,
            "images_per_second": rates,
            "median_images_per_second": medians(rates),
            "ratios": over,
            "targets": [
                target(f"{workload.title}: {ours} over {theirs}", ratio(rates[ours], rates[theirs]), least=least)
                for (ours, theirs), least in workload.least.items()
                if {ours, theirs} <= set(rates)
            ],
        }

    def show(self, result: dict[str, Any]) -> None:
        rates = result["images_per_second"]
        ours = dict.fromkeys([PACKTRAIN, *(ours for ours, _ in self.workload.least)])
        over = {name: ratios_of(rates, name) for name in ours if name in rates}
        show_rates(result["title"], result["median_images_per_second"], over, result["missing"])

    def _is_chosen(self, name: str) -> bool:
        return name == PACKTRAIN or not self.contestants or name in self.contestants

    def _settings(self, repetitions: int, *, quick: bool) -> dict[str, Any]:
        stream = self.workload.stream
        timing: dict[str, Any] = {"warm_up_batches": WARM_UP[stream], "seconds": SECONDS[stream]}
        if self.workload.cold:
            timing = {"batches_not_timed_at_each_end": AT_THE_ENDS, "memory": "none of the data is cached"}
        elif quick:
            timing = {"warm_up_batches": WARM_UP["jpeg"], "seconds": QUICK_SECONDS}
        return {
            "batch_size": BATCH,
            "workers": WORKERS,
            "store": asdict(self.workload.store),
            "shrink": self.workload.shrink,
            **timing,
            "repetitions": repetitions,
            "order": "alternating, each in a fresh process",
        }


def show_rates(title: str, rates: dict[str, float], over: dict[str, dict[str, float]], missing: dict[str, str]) -> None:
    """Prints a table, the fastest contestant first, and why the missing ones are missing."""
    ranked = sorted(rates, key=lambda name: -rates[name])
    rows = [[name, f"{rates[name]:,.0f}", *(f"{ratios[name]:.2f}" for ratios in over.values())] for name in ranked]
    rows += [[name, "-", *("" for _ in over)] for name in missing]
    print_table([title, "images/s", *(f"{ours} over it" for ours in over)], rows)
    if missing:
        print()
    for name, reason in missing.items():
        print(f"- {name}: {reason.splitlines()[0]}")


def _device(folder: Path) -> dict[str, Any]:
    """Bytes per second of reading a shard from its start to its end; one figure for each of up to three shards."""
    os.sync()
    found = []
    for path in sorted((folder / PACKED).glob("*.tar"))[:3]:
        forget(folder)
        started = time.perf_counter()
        size = read_through(path)
        found.append(size / (time.perf_counter() - started))
    return {"device_bytes_per_second": found}
