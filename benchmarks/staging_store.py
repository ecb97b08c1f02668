"""Staging from an S3 server on this machine, against loops of obstore's that drop what they get, or write it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from benchmarks.measure import alternate, child, medians, print_table, ratio, scratch, target
from benchmarks.memory import touch_memory
from benchmarks.servers import Server, bucket
from packtrain import StageOptions, stage
from packtrain._core.manifest import PLAN, REJECTS, FieldInfo, FileInfo, Manifest, ShardInfo
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import image_field

SHARD_BYTES: Final = 256 << 20
SHARDS: Final = 12
QUICK_SHARDS: Final = 1
RANGE: Final = 8 << 20
THREADS: Final = 16
REPETITIONS: Final = 5
PLAIN: Final = "obstore, nothing kept"
WRITTEN: Final = "obstore, written to files"
OURS: Final = "stage()"
LEAST: Final = 0.8


def measure(*, quick: bool = False) -> dict[str, Any]:
    """MB/s and processor seconds per GB of each side, each in a process of its own."""
    shards, repetitions = (QUICK_SHARDS, 1) if quick else (SHARDS, REPETITIONS)
    with scratch() as folder, bucket(folder) as server, server.in_environment():
        url = _upload(server, shards)
        place = folder / "place"
        cases = {
            side: partial(child, "staging_store", what, url, place, shards, shards * SHARD_BYTES)
            for side, what in ((PLAIN, "plain"), (WRITTEN, "written"), (OURS, "stage"))
        }
        figures = alternate(cases, repetitions)
    speeds = {side: [each["mb_per_second"] for each in rounds] for side, rounds in figures.items()}
    cpu = {side: [each["cpu_seconds_per_gb"] for each in rounds] for side, rounds in figures.items()}
    found = {side: ratio(speeds[OURS], speeds[side]) for side in (PLAIN, WRITTEN)}
    return {
        "input": {"shards": shards, "shard_bytes": SHARD_BYTES, "range_bytes": RANGE, "threads": THREADS},
        "settings": {"repetitions": repetitions, "warm_up": 1, "order": "alternating", "server": "SeaweedFS"},
        "mb_per_second": speeds,
        "cpu_seconds_per_gb": cpu,
        "ratio": found,
        "targets": [target("speed over a plain loop of obstore's", found[PLAIN], least=LEAST)],
    }


def show(result: dict[str, Any]) -> None:
    """Prints the medians."""
    cpu = medians(result["cpu_seconds_per_gb"])
    rows = [[side, f"{value:.0f}", f"{cpu[side]:.2f}"] for side, value in medians(result["mb_per_second"]).items()]
    print_table(["", "MB/s", "processor s/GB, without the server"], rows)


def _upload(server: Server, shards: int) -> str:
    """Puts a dataset of random bytes into the store."""
    infos = []
    for number in range(shards):
        data = os.urandom(SHARD_BYTES)
        infos.append(ShardInfo(_name(number), len(data), crc32c(data), 0))
        server.put(f"set/{_name(number)}", data)
    plan = b"{}\n"
    manifest = Manifest(
        name="big",
        format="tar",
        fields=(FieldInfo.of(image_field(StoreOptions("verbatim"))),),
        labels=LabelSpec(),
        classes=None,
        records=0,
        lines=0,
        rejects=0,
        duplicates=0,
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        written_by="a benchmark",
        rejects_file=FileInfo(REJECTS, 0, 0),
        columns=(),
        shards=tuple(infos),
    )
    for name, data in ((PLAN, plan), (REJECTS, b""), ("manifest.json", manifest.dump())):
        server.put(f"set/{name}", data)
    return f"{server.url}/set"


def _name(number: int) -> str:
    return f"big-{number:06d}.tar"


def _plain(url: str, shards: int, place: Path | None) -> int:
    """Fetches all ranges, and drops them or writes them to files. Returns how many bytes there were."""
    import obstore

    base, _, folder = url.rpartition("/")
    store = obstore.store.from_url(base, client_options={"allow_http": True})
    files = [(place / _name(number)).open("xb") for number in range(shards)] if place else []

    def fetch(each: tuple[int, int]) -> int:
        number, start = each
        data = obstore.get_range(store, f"{folder}/{_name(number)}", start=start, length=RANGE)
        return os.pwrite(files[number].fileno(), data, start) if files else len(data)

    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(THREADS))
        for file in files:
            stack.enter_context(file)
        return sum(threads.map(fetch, [(n, start) for n in range(shards) for start in range(0, SHARD_BYTES, RANGE)]))


def _stage(url: str, place: Path) -> int:
    with stage(url, StageOptions(place, reserve=0, threads=THREADS)).lease:
        return sum(path.stat().st_size for path in place.rglob("*.tar"))


def _main() -> None:
    side, url, folder, shards, size = sys.argv[1:]
    touch_memory(Path("/dev/shm", f"touch-{os.getpid()}"), int(size))
    place = Path(folder)
    place.mkdir()
    started, before = time.perf_counter(), _processor_seconds()
    count = _stage(url, place) if side == "stage" else _plain(url, int(shards), place if side == "written" else None)
    seconds = time.perf_counter() - started
    spent = _processor_seconds() - before
    shutil.rmtree(place)
    print(json.dumps({"mb_per_second": count / seconds / 1e6, "cpu_seconds_per_gb": spent / count * 1e9}))


def _processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


if __name__ == "__main__":
    _main()
