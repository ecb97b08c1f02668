"""Time of packing, fetching, staging and sampling on many machines: arithmetic with measured rates.

The machines are imagined; `Machine` says what they can do. What packtrain needs for each record is measured by
``scale-size`` and ``pack``, on one core of the machine that the results name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.measure import RESULTS, Unmeasurable, print_table

RECORDS: Final = (1_281_167, 1_000_000_000, 10_000_000_000)
NODES: Final = (1, 16, 256)
RECORD_BYTES: Final = 110_000
CHUNK_BYTES: Final = 107 * RECORD_BYTES
SHARD_BYTES: Final = 512 << 20
INDEX_BYTES: Final = 98
"""Of a record, with a path of 32 bytes; see ``open``."""


@dataclass(frozen=True)
class Machine:
    """Rates of a machine.

    Attributes:
        cores: Cores for packing.
        network: Bytes per second from or to the object store.
        disk: Bytes per second to its disk.
        images: Images per second that its GPUs train with.
        cache: Bytes of the cache.
    """

    cores: int = 64
    network: float = 3e9
    disk: float = 3e9
    images: float = 20_000
    cache: float = 4e12


def figures(nodes: int, records: int, measured: dict[str, Any], machine: Machine) -> dict[str, float]:
    """Return the times with this many machines and records, in seconds."""
    parts, size = measured["parts"], records * RECORD_BYTES
    listing, merging, table, order = parts["list"], parts["merge"], parts["table"], parts["order"]
    chunks, shards, status = size / CHUNK_BYTES, -(-size // SHARD_BYTES), parts["status"]
    per_chunk = records / RECORDS[1]
    # Of the dataset that each machine's cache holds.
    share = min(1.0, machine.cache / size)
    rate = machine.images * nodes
    return {
        "pack": max(records / (measured["images_per_cpu_second"] * machine.cores), 2 * size / machine.network) / nodes,
        "read the list and plan": listing["seconds"] / listing["lines"] * records,
        "memory of the list": listing["peak_bytes"] / listing["lines"] * records,
        "merge": merging["seconds"] / merging["records"] * records,
        # Runs and buckets grow with the root, and each shard has its lines in the manifest.
        "memory of the merge": merging["peak_bytes"] * max(1, records / merging["records"]) ** 0.5
        + status["peak_bytes"] / status["shards"] * shards,
        "disk for the merge, beside notes and index": INDEX_BYTES * records,
        "index": INDEX_BYTES * records,
        "fetch the index": INDEX_BYTES * records / machine.network,
        "make the table of chunks": table["seconds"] / table["records"] * records,
        "begin an epoch": order["seconds_as_an_epoch_begins"] * per_chunk,
        "memory of two epochs, each process": 8 * chunks + 2 * 12 * chunks,
        "epoch": records / rate,
        "first epoch, bytes per second": rate * RECORD_BYTES,
        "first epoch, requests per second": rate * RECORD_BYTES / CHUNK_BYTES,
        "in the long run, bytes per second": (1 - share) * rate * RECORD_BYTES,
        "stage a copy on each machine": size / min(machine.network, machine.disk),
        "shards": shards,
    }


def measure(*, quick: bool = False) -> dict[str, Any]:
    """All figures, for each number of records and machines."""
    path = RESULTS / "scale-size.json"
    if not path.exists():
        raise Unmeasurable("it needs the figures of scale-size: run that first")
    measured = json.loads(path.read_text())
    packing = json.loads((RESULTS / "pack.json").read_text())
    measured["images_per_cpu_second"] = packing["median_images_per_cpu_second"]["packtrain tar"]
    machine = Machine()
    return {
        "machine_imagined": asdict(machine),
        "settings": {"record_bytes": RECORD_BYTES, "chunk_bytes": CHUNK_BYTES, "index_bytes_per_record": INDEX_BYTES},
        "figures": [
            {"records": records, "nodes": nodes, **figures(nodes, records, measured, machine)}
            for records in RECORDS
            for nodes in NODES
        ],
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    """Prints one column for each number of records and machines."""
    columns = result["figures"]
    heads = [f"{column['records']:.3g}, {column['nodes']}" for column in columns]
    names = [name for name in columns[0] if name not in ("records", "nodes")]
    print_table(["records, machines", *heads], [[name, *(f"{each[name]:.3g}" for each in columns)] for name in names])
