"""Reads some epochs of a dataset in an object store with one loader, in a process of its own, and prints each.

    python -m benchmarks.epochs CONTESTANT STREAM ADDRESS FOLDER LIMIT EPOCHS

LIMIT is what the cache in FOLDER may take, in bytes, or 0 for as much as it needs. The peers' interpreters run this
module too. Imports run before any clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path

from benchmarks.contestants import CONTESTANTS


def main() -> None:
    name, stream, address, folder, limit, epochs = sys.argv[1:]
    try:
        module = import_module(f"benchmarks.peers.{CONTESTANTS[name].module}")
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    started = time.perf_counter()
    batches = module.remote(stream, address, Path(folder), int(limit) or None)
    for _ in range(int(epochs)):
        images, first = 0, 0.0
        for _pixels, labels in batches():
            first = first or time.perf_counter() - started
            images += len(labels)
        seconds = time.perf_counter() - started
        print(json.dumps({"images": images, "seconds": seconds, "first_batch_seconds": first}), flush=True)
        started = time.perf_counter()


if __name__ == "__main__":
    main()
