"""Staging from a disk, to memory and to a disk, against `cp -r` and `rsync -a`; and finding an existing copy."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import (
    Unmeasurable,
    alternate,
    child,
    cold_seconds,
    describe_list,
    kind_of,
    medians,
    print_table,
    ratio,
    real_list,
    repeated_list,
    require_cold,
    scratch,
    target,
)
from packtrain import PackOptions, StageOptions, StoreOptions, pack, stage
from packtrain._core.manifest import Manifest

LINES: Final = 24_000
QUICK_LINES: Final = 600
SHARD_BYTES: Final = 64 << 20
REPETITIONS: Final = 5
PEERS: Final = {"cp -r && sync": 1.0, "rsync -a && sync": 1.5}
"""The peers, and by what factor staging should be faster than each."""
OURS: Final = "packtrain stage"
SHARDS: Final = 1000
QUICK_SHARDS: Final = 20
RECORDS_PER_SHARD: Final = 3
AGAIN_SECONDS: Final = 0.2


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds of each command, by place; and of staging a dataset that is staged already."""
    lines, shards, repetitions = (QUICK_LINES, QUICK_SHARDS, 1) if quick else (LINES, SHARDS, REPETITIONS)
    require_cold()
    if shutil.which("rsync") is None:
        raise Unmeasurable("rsync is not installed: apt-get install rsync")
    images = real_list()
    with scratch() as memory, scratch(on_disk=True) as disk:
        dataset = disk / "dataset"
        _pack(images, disk, dataset, lines, SHARD_BYTES)
        manifest = Manifest.load(dataset)
        places = {"memory": memory, "disk": disk}
        seconds = {name: alternate(_cases(dataset, place / "copy"), repetitions) for name, place in places.items()}
        shutil.rmtree(dataset)
        again = _again(images, disk, memory, shards, repetitions)
        kinds = {name: kind_of(place) for name, place in places.items()}
    ratios = {place: {peer: ratio(times[peer], times[OURS]) for peer in PEERS} for place, times in seconds.items()}
    return {
        "input": {**describe_list(images), "shards": len(manifest.shards), "shard_bytes": manifest.bytes},
        "file_systems": {"source": kinds["disk"], **kinds},
        "rsync": subprocess.run(["rsync", "--version"], capture_output=True, text=True).stdout.splitlines()[0],
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating", "page cache": "dropped"},
        "seconds": seconds,
        "median_mb_per_second": {
            place: {name: manifest.bytes / 1e6 / value for name, value in medians(times).items()}
            for place, times in seconds.items()
        },
        "ratios": ratios,
        "again": again,
        "targets": [
            *(
                target(f"disk to {place}: speed over {peer}", ratios[place][peer], least=least)
                for place in places
                for peer, least in PEERS.items()
            ),
            target(
                f"stage() of a staged dataset, {shards} shards: seconds",
                medians(again["seconds"])["stage()"],
                most=AGAIN_SECONDS,
            ),
        ],
    }


def _pack(images: Path, folder: Path, out: Path, lines: int, shard_bytes: int) -> None:
    listing = folder / "train.txt"
    listing.write_text(repeated_list(images, lines)[0])
    options = PackOptions(format="tar", root=images.parent, shard_size=shard_bytes, store=StoreOptions("verbatim"))
    pack(listing, out, options, num_workers=len(os.sched_getaffinity(0)))


def _cases(dataset: Path, copy: Path) -> dict[str, Callable[[], float]]:
    source, there = shlex.quote(str(dataset)), shlex.quote(str(copy))
    commands = {
        "cp -r && sync": f"cp -r {source} {there} && sync",
        "rsync -a && sync": f"rsync -a {source}/ {there} && sync",
        # The whole command with its start, checksums and fsync, as the others.
        OURS: f"{shlex.quote(sys.executable)} -m packtrain stage {source} --to {there}",
    }
    return {
        name: partial(_staged_seconds if name == OURS else cold_seconds, command, copy)
        for name, command in commands.items()
    }


def _staged_seconds(command: str, copy: Path) -> float:
    copy.mkdir()
    return cold_seconds(command, copy)


def _again(images: Path, disk: Path, memory: Path, shards: int, repetitions: int) -> dict[str, Any]:
    """Times staging a dataset that is staged already: the call, in a fresh process, and the whole command."""
    dataset = disk / "many"
    described = describe_list(images)
    shard_bytes = RECORDS_PER_SHARD * described["bytes"] // described["images"]
    _pack(images, disk, dataset, shards * RECORDS_PER_SHARD, shard_bytes)
    command = [sys.executable, "-m", "packtrain", "stage", str(dataset), "--to", str(memory)]

    def run() -> float:
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - started

    stage(dataset, StageOptions(to=memory)).lease.close()
    cases: dict[str, Callable[[], float]] = {
        "stage()": partial(child, "staging", dataset, memory),
        "packtrain stage": run,
    }
    return {"shards": len(Manifest.load(dataset).shards), "seconds": alternate(cases, repetitions)}


def _main() -> None:
    dataset, to = map(Path, sys.argv[1:])
    started = time.perf_counter()
    staged = stage(dataset, StageOptions(to=to))
    print(time.perf_counter() - started)
    staged.lease.close()


def show(result: dict[str, Any]) -> None:
    rows = []
    for place, times in result["seconds"].items():
        for name, seconds in medians(times).items():
            over = result["ratios"][place].get(name)
            rate = result["median_mb_per_second"][place][name]
            ours = "" if over is None else f"{over:.2f}"
            rows.append([name, f"disk to {place}", f"{seconds:.2f}", f"{rate:,.0f}", ours])
    print_table(["command", "", "s", "MB/s", "packtrain is faster by"], rows)
    print()
    again = result["again"]
    header = ["staged already", "shards", "s"]
    print_table(
        header, [[name, f"{again['shards']:,}", f"{value:.3f}"] for name, value in medians(again["seconds"]).items()]
    )


if __name__ == "__main__":
    _main()
