"""Filling the cache of a dataset from an S3 server on this machine, against a plain loop of obstore's.

    python -m benchmarks.fetching (plain | cache) ADDRESS FOLDER SIZE

each go through the dataset once in a process of its own. FOLDER is a copy of the dataset, or where the cache may be.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measure import (
    alternate,
    child,
    medians,
    print_table,
    ratio,
    real_list,
    repeated_list,
    scratch,
    target,
)
from benchmarks.memory import touch_memory
from benchmarks.servers import bucket

LINES: Final = 6000
QUICK_LINES: Final = 2400
PER_RECORD: Final = "raw, 256x256"
REPETITIONS: Final = 5
PLAIN: Final = "obstore, nothing kept"
OURS: Final = "the cache, filled"
LEAST: Final = 0.8


def measure(*, quick: bool = False) -> dict[str, Any]:
    """MB/s of both sides."""
    lines, repetitions = (QUICK_LINES, 1) if quick else (LINES, REPETITIONS)
    with scratch() as folder, bucket(folder) as server, server.in_environment():
        dataset = _pack(folder, lines)
        for path in dataset.rglob("*"):
            if path.is_file():
                server.put(f"set/{path.relative_to(dataset)}", path.read_bytes())
        url = f"{server.url}/set"
        size = sum(path.stat().st_size for path in dataset.glob("*.tar"))
        cases = {
            PLAIN: partial(child, "fetching", "plain", url, dataset, size),
            OURS: partial(child, "fetching", "cache", url, folder / "place", size),
        }
        figures = alternate(cases, repetitions)
    speeds = {side: [each["mb_per_second"] for each in rounds] for side, rounds in figures.items()}
    found = ratio(speeds[OURS], speeds[PLAIN])
    return {
        "input": {"records": lines, "store": PER_RECORD, "bytes": figures[PLAIN][0]["bytes"]},
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating", "server": "SeaweedFS"},
        "mb_per_second": speeds,
        "ratio": found,
        "targets": [target("speed over a plain loop of obstore's", found, least=LEAST)],
    }


def show(result: dict[str, Any]) -> None:
    """Prints the medians."""
    print_table(["", "MB/s"], [[side, f"{value:.0f}"] for side, value in medians(result["mb_per_second"]).items()])


def _pack(folder: Path, lines: int) -> Path:
    from packtrain import PackOptions, StoreOptions, pack

    images = real_list()
    text, _, _ = repeated_list(images, lines)
    (folder / "train.txt").write_text(text)
    pack(
        folder / "train.txt",
        folder / "set",
        PackOptions("tar", StoreOptions("raw", resize="256x256"), root=images.parent),
        num_workers=2,
    )
    return folder / "set"


def _plain(address: str, dataset: Path) -> tuple[int, float]:
    """Fetches the ranges of all chunks, as many at a time as the cache does, and drops them: bytes and seconds."""
    import obstore

    from packtrain._core.index import Index
    from packtrain._core.manifest import Manifest
    from packtrain._storage.streams.chunks import ChunkTable
    from packtrain._storage.streams.fetching import ranges
    from packtrain._storage.streams.policy import IN_FLIGHT

    manifest = Manifest.load(dataset)
    table = ChunkTable.of(manifest, Index.of(dataset, manifest))
    wanted = [
        (manifest.shards[int(table.shard[chunk])].name, each[0].start, each[-1].stop)
        for chunk in range(len(table))
        for each in ranges(table.extents(chunk))
    ]
    base, _, folder = address.rpartition("/")
    store = obstore.store.from_url(base, client_options={"allow_http": True})

    def fetch(each: tuple[str, int, int]) -> int:
        name, start, stop = each
        return len(obstore.get_range(store, f"{folder}/{name}", start=start, end=stop))

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        list(threads.map(fetch, wanted[:IN_FLIGHT]))  # connections are there afterwards
        started = time.perf_counter()
        count = sum(threads.map(fetch, wanted[IN_FLIGHT:]))
        return count, time.perf_counter() - started


def _cache(address: str, place: Path) -> tuple[int, float]:
    """Fills a cache; the clock starts when as many chunks are there as are fetched at a time."""
    from packtrain import open_dataset
    from packtrain._storage.streams.policy import IN_FLIGHT

    place.mkdir()
    cache = open_dataset(address, stage=place).store.chunks
    assert cache is not None
    sizes, present = cache.table.bytes, np.frombuffer(cache.present, bool)
    filling = cache.fill()
    while present.sum() < IN_FLIGHT:
        time.sleep(0.002)
    before, started = int(sizes[present].sum()), time.perf_counter()
    while not present.all():
        time.sleep(0.002)
    seconds = time.perf_counter() - started
    filling.close()
    return int(sizes.sum()) - before, seconds


def _main() -> None:
    side, address, folder, size = sys.argv[1:]
    touch_memory(Path("/dev/shm", f"touch-{os.getpid()}"), int(size))
    count, seconds = (_plain if side == "plain" else _cache)(address, Path(folder))
    if side == "cache":
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"bytes": count, "mb_per_second": count / seconds / 1e6}))


if __name__ == "__main__":
    _main()
