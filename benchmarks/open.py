"""Opening 10 million records, choosing some by `where`, and the memory that reading 100,000 at random adds.

The dataset is synthetic: its index and manifest are those of 10 million records in some 2,000 tar shards (ImageNet's
mean size at the default shard size), but all shards are hard links to one small file of random records. Everything that
grows with the number of records or shards is there; only the images are missing.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from benchmarks.measure import alternate, child, kind_of, medians, print_table, scratch, target
from packtrain import LabelSpec, StoreOptions
from packtrain._core.files import write_file
from packtrain._core.index import IndexWriter
from packtrain._core.manifest import INDEX, MANIFEST, ColumnInfo, FieldInfo, FileInfo, Manifest, ShardInfo
from packtrain._core.schema import image_field

RECORDS: Final = 10_000_000
SHARDS: Final = 2048
QUICK_RECORDS: Final = 100_000
QUICK_SHARDS: Final = 16
RECORD_BYTES: Final = 16 << 10
DISTINCT: Final = 4096
READS: Final = 100_000
REPETITIONS: Final = 7
CONDITIONS: Final = {
    "sizes and labels": "width >= 500 and height > 100 and label in (1, 2, 3)",
    "paths": "path like '%7.JPEG'",
}
"""Filters for `where`, in a process that has polars already: first with the checks of the index, then again."""
PAGE_TABLES: Final = "VmPTE"
_MEMORY: Final = ("Rss", "Pss", "Pss_Shmem", "Pss_File", "Private_Clean", "Private_Dirty", "Anonymous", PAGE_TABLES)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds to open the dataset, and bytes of memory that opening and reading add."""
    records, shards, repetitions = (QUICK_RECORDS, QUICK_SHARDS, 1) if quick else (RECORDS, SHARDS, REPETITIONS)
    with scratch() as folder:
        index_bytes = make_dataset(folder, records, shards)
        asked = alternate(
            {name: partial(child, "open", "where", name, folder, records) for name in CONDITIONS}, repetitions
        )
        seconds = alternate({"open_dataset": partial(child, "open", "open", "auto", folder, records)}, repetitions)
        memory = alternate(
            {io: partial(child, "open", "read", io, folder, records) for io in ("mmap", "pread")}, repetitions
        )
        output, manifest_bytes = kind_of(folder), (folder / MANIFEST).stat().st_size
    added = {
        io: {
            when: {name: statistics.median(answer[when][name] for answer in answers) for name in _MEMORY}
            for when in ("after_open", "after_read")
        }
        for io, answers in memory.items()
    }
    middle = medians(seconds)
    where = {
        name: {when: statistics.median(answer[when] for answer in answers) for when in ("first", "again")}
        for name, answers in asked.items()
    }
    return {
        "input": {
            "records": records,
            "shards": shards,
            "index_bytes": index_bytes,
            "manifest_bytes": manifest_bytes,
            "note": f"synthetic; all shards are links to one file of {DISTINCT} records of {RECORD_BYTES} bytes",
        },
        "output": output,
        "settings": {"random_reads": READS, "repetitions": repetitions, "warm_up": 1, "order": "alternating"},
        "open_seconds": seconds,
        "where": asked,
        "memory": memory,
        "median_where_seconds": where,
        "median_open_seconds": middle,
        "median_added_bytes": added,
        "median_read_seconds": {
            io: statistics.median(answer["read_seconds"] for answer in answers) for io, answers in memory.items()
        },
        "targets": [
            target("open_dataset, seconds", middle["open_dataset"], most=0.1),
            target("where, sizes and labels, seconds", where["sizes and labels"]["first"], most=2),
            *(
                target(f"private memory added, {io}, MB", values["after_read"]["Anonymous"] / 1e6, most=50)
                for io, values in added.items()
            ),
        ],
    }


def show(result: dict[str, Any]) -> None:
    rows = [[name, f"{1000 * value:.1f} ms"] for name, value in result["median_open_seconds"].items()]
    given = result["input"]
    print_table([f"opening {given['records']:,} records, {given['shards']:,} shards", "median"], rows)
    print()
    rows = [
        [CONDITIONS[name], f"{found['first']:.2f} s", f"{found['again']:.2f} s"]
        for name, found in result["median_where_seconds"].items()
    ]
    print_table([f"where, of {given['records']:,} records", "with the checks of the index", "again"], rows)
    print()
    rows = []
    for io, added in result["median_added_bytes"].items():
        for when, values in added.items():
            shown = [f"{values[name] / 1e6:,.1f}" for name in ("Anonymous", PAGE_TABLES, "Private_Dirty", "Rss")]
            rows.append([f"{io}, {when.replace('_', ' ')}", *shown])
    print_table(
        [f"MB added, {READS:,} random reads", "private (Anonymous)", "page tables", "Private_Dirty", "RSS"], rows
    )


def make_dataset(folder: Path, records: int, shards: int, images: Sequence[bytes] | None = None) -> int:
    """Writes the synthetic dataset; returns the size of its index in bytes.

    Args:
        folder: Where to write it.
        records: Number of records.
        shards: Number of shards.
        images: JPEGs of 500 x 375 pixels, of which each record is one; None: random bytes.
    """
    random = np.random.default_rng(0)
    if images is None:
        images = [record.tobytes() for record in random.integers(0, 256, (DISTINCT, RECORD_BYTES), np.uint8)]
    slot = random.integers(0, len(images), records, np.int32)
    infos = _write_shards(folder, b"".join(images), records, shards)
    columns = _write_index(folder / INDEX, slot, images, shards, random)
    rejects = FileInfo("rejects.jsonl", 0, 0)
    (folder / rejects.name).touch()
    manifest = Manifest(
        name="synthetic",
        format="tar",
        fields=(FieldInfo.of(image_field(StoreOptions())),),
        labels=LabelSpec(),
        classes=None,
        records=records,
        lines=records,
        rejects=0,
        duplicates=0,
        plan_sha256="0" * 64,
        written_by="benchmarks/open.py",
        rejects_file=rejects,
        columns=columns,
        shards=infos,
    )
    write_file(folder / MANIFEST, [manifest.dump()])
    return sum(column.bytes for column in columns)


def _write_shards(folder: Path, data: bytes, records: int, count: int) -> tuple[ShardInfo, ...]:
    first = folder / "synthetic-000000.tar"
    first.write_bytes(data)
    checksum = crc32c(data)
    counts = np.bincount(np.arange(records) * count // records, minlength=count).tolist()
    shards = []
    for number, held in enumerate(counts):
        name = f"synthetic-{number:06d}.tar"
        if number:
            os.link(first, folder / name)
        sidecar = FileInfo(f"synthetic-{number:06d}.idx", 300_000 + number, number)
        shards.append(ShardInfo(name, len(data), checksum, held, (sidecar,)))
    return tuple(shards)


def _write_index(
    folder: Path, slot: npt.NDArray[np.int32], images: Sequence[bytes], shards: int, random: np.random.Generator
) -> tuple[ColumnInfo, ...]:
    folder.mkdir()
    records, lengths = len(slot), np.array([len(image) for image in images], "<i8")
    writer = IndexWriter(folder, records)
    place = random.permutation(records)
    writer.add("line", np.arange(records, dtype="<i8"))
    writer.add("shard", (place * shards // records).astype("<u4"))
    writer.add("offset", (np.cumsum(lengths) - lengths)[slot])
    writer.add("length", lengths[slot])
    writer.add("crc32c", np.array([crc32c(image) for image in images], "<u4")[slot])
    writer.add("width", np.full(records, 500, "<i4"))
    writer.add("height", np.full(records, 375, "<i4"))
    writer.add("orientation", np.ones(records, "|u1"))
    writer.add("label", random.integers(0, 1000, records).astype("<i8"))
    by_place = np.empty(records, "<i8")
    by_place[place] = np.arange(records)
    writer.add("by_place", by_place)
    texts = np.tile(np.frombuffer(b"n00000000/n00000000_00000000.JPEG", np.uint8), (records, 1))
    for digit in range(8):
        texts[:, 20 + digit] += (np.arange(records) // 10 ** (7 - digit) % 10).astype(np.uint8)
    writer.add_text("path", np.arange(records + 1, dtype="<i8") * texts.shape[1], texts.reshape(-1))
    return writer.finish()


# --- in a fresh process: python -m benchmarks.open open|where|read ... ---


def _open_once(io: str, folder: Path, records: int) -> float:
    """Seconds to open the dataset; its imports are not timed."""
    from packtrain import open_dataset

    started = time.perf_counter()
    dataset = open_dataset(folder, io=io)
    seconds = time.perf_counter() - started
    assert len(dataset) == records
    return seconds


def _where(name: str, folder: Path, records: int) -> dict[str, float]:
    """Seconds to choose rows, of a dataset that was just opened and once more."""
    from packtrain import open_dataset

    dataset, seconds = open_dataset(folder), []
    dataset.subset([0]).where("row = 0")  # imports polars
    for _ in range(2):
        started = time.perf_counter()
        assert 0 < len(dataset.where(CONDITIONS[name])) < records
        seconds.append(time.perf_counter() - started)
    return {"first": seconds[0], "again": seconds[1]}


def _read_random(io: str, folder: Path, records: int) -> dict[str, Any]:
    """Bytes of memory that opening the dataset, and then reading records at random, add to this process."""
    from packtrain import open_dataset

    rows = np.random.default_rng(os.getpid()).integers(0, records, READS).tolist()
    before = _memory()
    dataset = open_dataset(folder, io=io)
    opened = _memory()
    started = time.perf_counter()
    for row in rows:
        dataset.record(row)
    seconds = time.perf_counter() - started
    read = _memory()
    return {
        "after_open": {name: opened[name] - before[name] for name in _MEMORY},
        "after_read": {name: read[name] - before[name] for name in _MEMORY},
        "read_seconds": seconds,
    }


def _memory() -> dict[str, int]:
    """Memory of this process by kind, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    lines += [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(PAGE_TABLES)]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def main() -> None:
    what, which, folder, records = sys.argv[1:]
    measured = {"open": _open_once, "where": _where, "read": _read_random}[what]
    print(json.dumps(measured(which, Path(folder), int(records))))


if __name__ == "__main__":
    main()
