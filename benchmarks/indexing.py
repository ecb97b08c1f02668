"""`packtrain index` of tar shards on a disk, against reading them with `cat`: both read every byte once.

Before each, the page cache is dropped. The whole command is timed, with its start, the checksums of all records and of
all shards, and fsync.
"""

from __future__ import annotations

import shlex
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import (
    alternate,
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
from benchmarks.workloads import file_paths

LINES: Final = 24_000
QUICK_LINES: Final = 600
SHARDS: Final = 24
REPETITIONS: Final = 5
CAT: Final = "cat > /dev/null"
INDEX: Final = "packtrain index"


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds of both commands."""
    lines, repetitions = (QUICK_LINES, 1) if quick else (LINES, REPETITIONS)
    require_cold()
    images = real_list()
    with scratch(on_disk=True) as disk:
        shards, out, source = disk / "shards", disk / "out", kind_of(disk)
        written = write_shards(images, shards, lines)
        seconds = alternate(cases(shards, out), repetitions)
    share = ratio(seconds[CAT], seconds[INDEX])
    return {
        "input": {**describe_list(images), "lines": lines, "shards": SHARDS, "shard_bytes": written},
        "file_system": source,
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating", "page cache": "dropped"},
        "seconds": seconds,
        "median_mb_per_second": {name: written / 1e6 / value for name, value in medians(seconds).items()},
        "ratio": share,
        "targets": [target("throughput of packtrain index, as a share of cat's", share, least=0.8)],
    }


def show(result: dict[str, Any]) -> None:
    rates = result["median_mb_per_second"]
    rows = [
        [name, f"{value:.2f}", f"{rates[name]:,.0f}", f"{rates[name] / rates[CAT]:.2f}"]
        for name, value in medians(result["seconds"]).items()
    ]
    print_table(["shards on a disk", "s", "MB/s", "share of cat"], rows)


def write_shards(images: Path, folder: Path, lines: int) -> int:
    """Writes the images and labels of a list, repeated, to tar shards as webdataset does; returns their bytes."""
    folder.mkdir()
    text, repeats, count = repeated_list(images, lines)
    labels = [line.rsplit(None, 1)[1].encode() for line in text.splitlines()]
    paths = file_paths(images) * repeats
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(count * shard // SHARDS, count * (shard + 1) // SHARDS):
                _add(tar, f"{number:09d}.jpg", Path(paths[number]).read_bytes())
                _add(tar, f"{number:09d}.cls", labels[number])
    return sum(path.stat().st_size for path in folder.iterdir())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, BytesIO(data))


def cases(shards: Path, out: Path) -> dict[str, Callable[[], float]]:
    """Both commands; each returns its seconds."""
    source, there = shlex.quote(str(shards)), shlex.quote(str(out))
    commands = {
        CAT: f"cat {source}/*.tar > /dev/null",
        INDEX: f"{shlex.quote(sys.executable)} -m packtrain index {source} {there}",
    }
    return {name: partial(cold_seconds, command, out) for name, command in commands.items()}
