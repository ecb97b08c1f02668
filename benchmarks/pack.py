"""Packing into tmpfs: packtrain, webdataset's ShardWriter and MosaicML's MDSWriter on the same files."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.environments import interpreter
from benchmarks.measure import (
    alternate,
    child,
    describe_list,
    kind_of,
    medians,
    print_table,
    ratio,
    real_list,
    repeated_list,
    scratch,
    target,
)
from benchmarks.packers import PACKERS, SHARD_BYTES

LINES: Final = 24_000
"""A short list is repeated to about this length, so that starting processes is a small part of the time."""
QUICK_LINES: Final = 600
REPETITIONS: Final = 5
ENVIRONMENTS: Final = {"webdataset ShardWriter": "webdataset", "streaming MDSWriter": "streaming"}
"""The environments of the peers, see `environments.PEERS`."""
FILES: Final = "packtrain tar"
ONE_BY_ONE: Final = "packtrain tar, one by one"
LEAST: Final = {"webdataset ShardWriter": 2.0, "streaming MDSWriter": 1.5}
"""The peers, and by what factor packing to tar should be faster."""


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds of packing, by packer; all packers take turns."""
    images, repetitions = real_list(), 1 if quick else REPETITIONS
    described = describe_list(images)
    text, repeats, lines = repeated_list(images, QUICK_LINES if quick else LINES)
    pythons = {name: interpreter(ENVIRONMENTS.get(name)) for name in PACKERS}
    with scratch() as folder:
        repeated = folder / "train.txt"
        repeated.write_text(text)
        cases = {
            name: partial(
                pack_once,
                name,
                pythons[name],
                repeated,
                images.parent,
                described["bytes"] * repeats,
            )
            for name in PACKERS
        }
        samples = alternate(cases, repetitions)
        output = kind_of(folder)
    seconds, processor = (
        {name: [sample[what] for sample in figures] for name, figures in samples.items()}
        for what in ("seconds", "cpu_seconds")
    )
    there = [peer for peer in LEAST if peer in samples]
    ratios, processor_ratios = (
        {name: {peer: ratio(times[peer], times[name]) for peer in there} for name in times}
        for times in (seconds, processor)
    )
    return {
        "input": {**described, "repeats": repeats, "lines": lines, "note": "the lines of the list, repeated"},
        "output": output,
        "settings": {"shard_bytes": SHARD_BYTES, "repetitions": repetitions, "warm_up": 1, "order": "alternating"},
        "peers": {name: child("packers", "versions", python=pythons[name]) for name in LEAST},
        "missing": [name for name in PACKERS if name not in samples],
        "seconds": seconds,
        "cpu_seconds": processor,
        "median_images_per_second": {name: lines / value for name, value in medians(seconds).items()},
        "median_images_per_cpu_second": {name: lines / value for name, value in medians(processor).items()},
        "ratios": ratios,
        "cpu_ratios": processor_ratios,
        # With a worker for each of two cores, as `packtrain pack` runs by default, and in one process like the peers.
        "targets": [
            target(f"{name}: images/s over {peer}", ratios[name][peer], least=LEAST[peer])
            for name in ("packtrain tar, 2 workers", "packtrain tar")
            for peer in there
        ]
        + [target(f"{ONE_BY_ONE}: images/s over files", ratio(seconds[FILES], seconds[ONE_BY_ONE]), least=0.95)],
    }


def pack_once(name: str, python: str, images: Path, root: Path, size: int) -> dict[str, float]:
    out = images.with_name("out")
    try:
        times: dict[str, float] = child("packers", name, images, root, out, size, python=python)
        return times
    finally:
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)


def show(result: dict[str, Any]) -> None:
    rows = []
    for name in result["median_images_per_second"]:
        rates = (result[f"median_images_per_{unit}"][name] for unit in ("second", "cpu_second"))
        over = [f"{factor:.2f}" for factor in result["ratios"][name].values()]
        over += [""] * (len(LEAST) - len(over))
        rows.append([name, *(f"{rate:,.0f}" for rate in rates), *over])
    rows += [[name, "not installed", "", *("" for _ in LEAST)] for name in result["missing"]]
    print_table(["packer", "images/s", "images/CPU s", *(f"over {peer.split()[1]}" for peer in LEAST)], rows)
