"""Where the time of packing goes, per image: one process, verbatim, output on tmpfs.

Each stage gets its own time, without that of the stages it calls.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import MiB, describe_list, kind_of, print_table, real_list, repeated_list, scratch
from benchmarks.packers import SHARD_BYTES
from benchmarks.stopwatch import REST, watching
from packtrain import PackOptions, pack
from packtrain._core.options import StoreOptions
from packtrain._readers.formats import FORMATS

LINES: Final = 4500
REPETITIONS: Final = 7
STAGES: Final = {
    "list": ["_packer.runner:read_list", "_packer.listing:ImageList.entries", "_packer.listing:ImageList.paths"],
    "read": ["_packer.shard:read_source"],
    "probe": ["_packer.shard:store_image"],
    "crc32c of records": ["_packer.shard:crc32c"],
    "container": ["_packer.formats.{format}:Writer.add", "_packer.formats.{format}:Writer.finish"],
    "write": ["_packer.formats.tar:write_all", "_packer.formats.hdf5:write_all"],
    "checksum of shards": ["_packer.shard:checksum_file"],
    "fsync, rename": ["_packer.shard:fsync_file", "_packer.shard:publish"],
    "notes": ["_packer.notes:ShardNote.save"],
    "merge": ["_packer.runner:merge"],
}
ABSENT: Final = {"tar": ("checksum of shards",), "hdf5": (), "lmdb": ("write",)}
"""A tar shard's checksum is made of those of its parts; LMDB writes by itself."""


def measure() -> dict[str, Any]:
    images = real_list()
    described = describe_list(images)
    with scratch() as folder:
        text, repeats, lines = repeated_list(images, LINES)
        (folder / "train.txt").write_text(text)
        stages: dict[str, list[dict[str, float]]] = {name: [] for name in FORMATS}
        pages: list[dict[str, float]] = []
        for _ in range(1 + REPETITIONS):
            for format_name, figures in stages.items():
                figures.append(_pack_once(format_name, folder, images.parent, lines))
            pages.append(_write_pages(folder / "pages", described["bytes"] // described["images"]))
        output = kind_of(folder)
    return {
        "input": {**described, "repeats": repeats, "lines": lines, "note": "the lines of the list, repeated"},
        "output": output,
        "settings": {"shard_bytes": SHARD_BYTES, "repetitions": REPETITIONS, "warm_up": 1, "order": "alternating"},
        "microseconds_per_image": {name: figures[1:] for name, figures in stages.items()},
        "median_microseconds_per_image": {name: _medians(figures[1:]) for name, figures in stages.items()},
        "median_write_microseconds": _medians(pages[1:]),
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    middle = result["median_microseconds_per_image"]
    rows = [[stage, *(f"{middle[name][stage]:.1f}" for name in FORMATS)] for stage in [*STAGES, REST]]
    rows.append(["all", *(f"{sum(middle[name].values()):.1f}" for name in FORMATS)])
    print_table(["us per image", *FORMATS], rows)
    print()
    print_table(
        ["writing as many bytes", "us"],
        [[what, f"{value:.1f}"] for what, value in result["median_write_microseconds"].items()],
    )


def _pack_once(format_name: str, folder: Path, root: Path, lines: int) -> dict[str, float]:
    """Microseconds per image of each stage."""
    out = folder / "out"
    options = PackOptions(format=format_name, root=root, shard_bytes=SHARD_BYTES, store=StoreOptions(store="verbatim"))
    stages = {stage: [name.format(format=format_name) for name in names] for stage, names in STAGES.items()}
    with watching(stages, ABSENT[format_name]) as watch:
        pack(folder / "train.txt", out, options)
    shutil.rmtree(out)
    return {stage: float(f"{seconds / lines * 1e6:.6g}") for stage, seconds in watch.seconds.items()}


def _write_pages(path: Path, size: int) -> dict[str, float]:
    """Microseconds to write `size` bytes into a file: once where it has no pages yet, once where it has them."""
    data, pieces = bytes(size), 64 * MiB // size
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    figures = {}
    for what in ("pages to be found", "pages there"):
        os.lseek(descriptor, 0, os.SEEK_SET)
        started = time.perf_counter()
        for _ in range(pieces):
            os.write(descriptor, data)
        figures[what] = (time.perf_counter() - started) / pieces * 1e6
    os.close(descriptor)
    path.unlink()
    return figures


def _medians(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}
