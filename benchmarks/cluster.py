"""Packing on a Ray cluster of this machine alone, next to the worker processes of `pack` itself, on the same files.

    python -m benchmarks.cluster local|ray LIST ROOT OUT

packs once, in a process of its own, and prints how long it took.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import statistics
import sys
import time
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import (
    Unmeasurable,
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

WORKERS: Final = 2
LINES: Final = 3_000
QUICK_LINES: Final = 300
REPETITIONS: Final = 5
SHARD_BYTES: Final = 16 << 20
ENGINES: Final = ("local", "ray")
MOST: Final = 1.10
"""By what factor a cluster of one machine may be slower."""


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds of packing, by engine; they take turns."""
    if find_spec("ray") is None:
        raise Unmeasurable("Ray is not installed: pip install '.[ray]'")
    images, repetitions = real_list(), 1 if quick else REPETITIONS
    text, repeats, lines = repeated_list(images, QUICK_LINES if quick else LINES)
    with scratch() as folder:
        repeated = folder / "train.txt"
        repeated.write_text(text)
        cases = {name: partial(_pack_once, name, repeated, images.parent) for name in ENGINES}
        samples = alternate(cases, repetitions)
        output = kind_of(folder)
    seconds, start_up = (
        {name: [sample[what] for sample in figures] for name, figures in samples.items()}
        for what in ("seconds", "start_up")
    )
    return {
        "ray": metadata.version("ray"),
        "input": {
            **describe_list(images),
            "repeats": repeats,
            "lines": lines,
            "note": "the lines of the list, repeated",
        },
        "output": output,
        "settings": {
            "shard_bytes": SHARD_BYTES,
            "store": "crop-ready",
            "workers": WORKERS,
            "repetitions": repetitions,
            "warm_up": 1,
            "order": "alternating",
        },
        "seconds": seconds,
        "start_up_seconds": start_up["ray"],
        "median_images_per_second": {name: lines / value for name, value in medians(seconds).items()},
        "median_start_up_seconds": statistics.median(start_up["ray"]),
        "targets": [target("seconds: Ray over local", ratio(seconds["ray"], seconds["local"]), most=MOST)],
    }


def _pack_once(name: str, images: Path, root: Path) -> dict[str, float]:
    out = images.with_name("out")
    try:
        times: dict[str, float] = child("cluster", name, images, root, out)
        return times
    finally:
        shutil.rmtree(out, ignore_errors=True)


def show(result: dict[str, Any]) -> None:
    rates = result["median_images_per_second"]
    rows = [[name, f"{rates[name]:,.0f}"] for name in ENGINES]
    print_table(["engine", "images/s"], rows)
    print(f"\nstarting Ray takes {result['median_start_up_seconds']:.1f} s, which are not counted")


def main() -> None:
    name, images, root, out = sys.argv[1], *map(Path, sys.argv[2:])
    from packtrain import PackOptions, RayEngine, pack

    options = PackOptions(root=root, shard_size=SHARD_BYTES)
    started = time.perf_counter()
    if name == "ray":
        _start_ray()
    between = time.perf_counter()
    pack(images, out, options, num_workers=WORKERS, engine=RayEngine() if name == "ray" else None)
    print(json.dumps({"start_up": between - started, "seconds": time.perf_counter() - between}))


def _start_ray() -> None:
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    ray, services = importlib.import_module("ray"), importlib.import_module("ray._private.services")
    # Where 127.0.0.1 is asked for, Ray takes this machine's address in the network.
    vars(services)["get_node_ip_address"] = lambda address=None: "127.0.0.1"
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", "num_gpus": 0}
    ray.init("local", num_cpus=WORKERS, _node_ip_address="127.0.0.1", **options)


if __name__ == "__main__":
    main()
