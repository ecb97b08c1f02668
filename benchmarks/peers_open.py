"""Opening a million small records: packtrain, a Python list of paths, and the peers that have an index."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from benchmarks.contestants import CONTESTANTS, PACKTRAIN
from benchmarks.environments import interpreter, why_missing
from benchmarks.measure import NotInstalled, alternate, child, kind_of, medians, print_table, ratio, scratch
from benchmarks.open import make_dataset
from benchmarks.openers import OPENERS

RECORDS: Final = 1_000_000
QUICK_RECORDS: Final = 10_000
SHARDS: Final = 64
REPETITIONS: Final = 5


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds to open, and private memory in bytes; all contestants take turns."""
    records, repetitions = (QUICK_RECORDS, 1) if quick else (RECORDS, REPETITIONS)
    missing: dict[str, str] = {}
    cases: dict[str, Callable[[], dict[str, float]]] = {}
    with scratch() as folder:
        for name in OPENERS:
            environment = CONTESTANTS[name].environment if name in CONTESTANTS else None
            place, python = folder / name.replace(" ", "-"), interpreter(environment)
            place.mkdir()
            try:
                child("openers", "write", name, place, records, python=python)
            except NotInstalled:
                missing[name] = why_missing(environment)
                continue
            if name == PACKTRAIN:
                make_dataset(place, records, SHARDS)
            cases[name] = partial(child, "openers", "open", name, place, records, python=python)
        samples = alternate(cases, repetitions)
        output = kind_of(folder)
    seconds, memory = (
        {name: [figure[what] for figure in figures] for name, figures in samples.items()}
        for what in ("seconds", "private_bytes")
    )
    return {
        "input": {"records": records, "note": "synthetic; of 100 bytes, packtrain's of 16 KiB in links to one shard"},
        "output": output,
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating, each in a fresh process"},
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
