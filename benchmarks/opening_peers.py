"""Opening a million small records: packtrain, a list of paths in Python, and the peers that have an index."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, PACKTRAIN
from benchmarks.environments import interpreter, why_missing
from benchmarks.measure import NotInstalled, alternate, child, kind_of, medians, print_table, ratio, scratch
from benchmarks.openers import OPENERS
from benchmarks.opening import make_dataset

RECORDS: Final = 1_000_000
SHARDS: Final = 64
REPETITIONS: Final = 5


def measure() -> dict[str, Any]:
    missing: dict[str, str] = {}
    cases: dict[str, Callable[[], dict[str, float]]] = {}
    with scratch() as folder:
        for name in OPENERS:
            environment = CONTESTANTS[name].environment if name in CONTESTANTS else None
            place, python = folder / name.replace(" ", "-"), interpreter(environment)
            place.mkdir()
            try:
                child("openers", "write", name, place, RECORDS, python=python)
            except NotInstalled:
                missing[name] = why_missing(environment)
                continue
            if name == PACKTRAIN:
                make_dataset(place, RECORDS, SHARDS)
            cases[name] = partial(child, "openers", "open", name, place, RECORDS, python=python)
        samples = alternate(cases, REPETITIONS)
        output = kind_of(folder)
    seconds, memory = (
        {name: [figure[what] for figure in figures] for name, figures in samples.items()}
        for what in ("seconds", "private_bytes")
    )
    return {
        "input": {"records": RECORDS, "note": "synthetic; of 100 bytes, packtrain's of 16 KiB in links to one shard"},
        "output": output,
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating, each in a fresh process"},
        "missing": missing,
        "seconds": seconds,
        "private_bytes": memory,
        "median_seconds": medians(seconds),
        "median_private_bytes": medians(memory),
        "ratios": {name: ratio(figures, seconds[PACKTRAIN]) for name, figures in seconds.items()},
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    seconds, memory = result["median_seconds"], result["median_private_bytes"]
    rows = [
        [name, f"{1000 * seconds[name]:,.1f}", f"{result['ratios'][name]:,.1f}", f"{memory[name] / 1e6:,.1f}"]
        for name in sorted(seconds, key=lambda name: seconds[name])
    ]
    rows += [[name, "-", "", ""] for name in result["missing"]]
    header = [f"opening {result['input']['records']:,} records", "ms", "packtrain is faster by", "private memory, MB"]
    print_table(header, rows)
