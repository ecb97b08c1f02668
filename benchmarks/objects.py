"""Parallel ranged reads from an S3 server on this machine: through packtrain, and by a plain loop of obstore's."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from benchmarks.measure import alternate, child, medians, print_table, ratio, scratch, target
from benchmarks.servers import bucket
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

BYTES: Final = 512 << 20
QUICK_BYTES: Final = 32 << 20
RANGE: Final = 8 << 20
THREADS: Final = 16
ROUNDS: Final = 4
REPETITIONS: Final = 5
PLAIN: Final = "obstore"
SIDES: Final = (PLAIN, "Bucket", "ObjectStore")
LEAST: Final = 0.8


def measure(*, quick: bool = False) -> dict[str, Any]:
    """MB/s of each side, each in a process of its own."""
    size, repetitions = (QUICK_BYTES, 1) if quick else (BYTES, REPETITIONS)
    with scratch() as folder, bucket(folder) as server, server.in_environment():
        server.put("object", os.urandom(size))
        url = f"{server.url}/object"
        cases = {side: partial(child, "objects", side, url, size, 1 if quick else ROUNDS) for side in SIDES}
        speeds = alternate(cases, repetitions)
    ratios = {side: ratio(speeds[side], speeds[PLAIN]) for side in SIDES if side != PLAIN}
    return {
        "input": {"object_bytes": size, "range_bytes": RANGE, "threads": THREADS},
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating", "server": "SeaweedFS"},
        "mb_per_second": speeds,
        "ratios": ratios,
        "targets": [
            target(f"{side}: speed over a plain loop of obstore's", value, least=LEAST)
            for side, value in ratios.items()
        ],
    }


def show(result: dict[str, Any]) -> None:
    """Prints the medians."""
    rows = [[side, f"{value:.0f}"] for side, value in medians(result["mb_per_second"]).items()]
    print_table(["reads by", "MB/s"], rows)


def _reader(side: str, url: Url) -> Callable[[int], int]:
    """Reads the range at an offset. Returns how many bytes it got."""
    if side == PLAIN:
        import obstore

        store = obstore.store.from_url(url.base, client_options={"allow_http": True})
        return lambda offset: len(obstore.get_range(store, url.key, start=offset, length=RANGE))
    if side == "Bucket":
        from packtrain._storage.remote.bucket import Bucket

        objects: Objects = Bucket()
    else:
        objects = ObjectStore()
    own = threading.local()

    def read(offset: int) -> int:
        if not hasattr(own, "view"):
            own.view = memoryview(bytearray(RANGE))
        objects.read_into(url, offset, own.view)
        return len(own.view)

    return read


def _main() -> None:
    side, url, size, rounds = sys.argv[1], Url.parse(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    read = _reader(side, url)
    offsets = list(range(0, size, RANGE))
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(read, offsets))  # connections, buffers and the service are there afterwards
        started = time.perf_counter()
        count = sum(threads.map(read, offsets * rounds))
        seconds = time.perf_counter() - started
    print(json.dumps(count / seconds / 1e6))


if __name__ == "__main__":
    _main()
