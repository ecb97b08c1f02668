"""Where the table of restart intervals should lie: in the record, or in a text column of the index.

What a reader does to have a table in hand is measured either way: warm, per record; and cold, with neither shard nor
index in memory, per record of a random few, with what the system has to read for it. The record is read anyway, by
pread and without read-ahead, so that what comes on top can be seen; the index is mapped as always. An index is checked
by blocks of 1024 rows, so the first row of a block costs the whole block.
"""

from __future__ import annotations

import mmap
import os
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from benchmarks.crops import file_paths, microseconds
from benchmarks.intervals import table_segment
from benchmarks.measure import alternate, describe_list, kind_of, medians, print_table, real_list
from benchmarks.transcoding import transcodable
from packtrain._codec.native import require_extension
from packtrain._core.index import ROWS_PER_BLOCK

REPETITIONS: Final = 7
ROWS: Final = 1 << 18
READS: Final = 300
HEADER: Final = 32
"""Bytes of the segment before its entries."""
PLACES: Final = ("segment", "column")
COLUMNS: Final = ("shard", "offsets", "bytes")


class Files:
    """A shard of real records over and over, and the columns that their tables would make: `ROWS` rows of them."""

    def __init__(self, folder: Path, records: Sequence[bytes], copies: int) -> None:
        self.folder = folder
        self.tables = [bytes(table_segment(memoryview(record))) for record in records]
        self.spans = np.cumsum([0, *map(len, list(records) * copies)]).tolist()
        (folder / "shard").write_bytes(b"".join(list(records) * copies))
        column = [self.tables[row % len(records)][HEADER:] for row in range(ROWS)]
        np.cumsum([0, *map(len, column)]).astype("<i8").tofile(folder / "offsets")
        (folder / "bytes").write_bytes(b"".join(column))

    def forget(self) -> None:
        """Drops the files from the page cache."""
        for name in COLUMNS:
            descriptor = os.open(self.folder / name, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Reader:
    """Opens the files anew; nothing is checked yet."""

    def __init__(self, files: Files) -> None:
        self._spans = files.spans
        self._shard = (files.folder / "shard").open("rb", buffering=0)
        os.posix_fadvise(self._shard.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        offsets, self._texts = (_map(files.folder / name) for name in COLUMNS[1:])
        self._offsets = offsets.cast("q")
        self._unchecked = bytearray(b"\1") * (ROWS // ROWS_PER_BLOCK)

    def record(self, row: int) -> memoryview:
        """The stored bytes."""
        row %= len(self._spans) - 1
        start, end = self._spans[row], self._spans[row + 1]
        return memoryview(os.pread(self._shard.fileno(), end - start, start))

    def column(self, row: int) -> memoryview:
        """The table out of the index."""
        block = row // ROWS_PER_BLOCK
        if self._unchecked[block]:
            start, stop = block * ROWS_PER_BLOCK, (block + 1) * ROWS_PER_BLOCK
            checksum = crc32c(self._offsets[start : stop + 1].cast("B"))
            crc32c(self._texts[self._offsets[start] : self._offsets[stop]], checksum)
            self._unchecked[block] = 0
        return self._texts[self._offsets[row] : self._offsets[row + 1]]


def segment(record: memoryview) -> memoryview:
    """The table out of the record."""
    return table_segment(record)[HEADER:]


def measure() -> dict[str, Any]:
    images = real_list()
    transcode = require_extension("Making tables").transcode
    records = [transcode(data) for data in transcodable([Path(path).read_bytes() for path in file_paths(images)])]
    # Not in memory: what is cold has to come from a disk.
    with tempfile.TemporaryDirectory(prefix="packtrain-bench-") as name:
        files = Files(Path(name), records, copies=10)
        warm = alternate({place: partial(_warm, files, place) for place in PLACES}, 3 * REPETITIONS)
        cold_cases = {what: partial(_cold, files, what) for what in ("record", *PLACES)}
        cold = alternate(cold_cases, REPETITIONS)
        disk = kind_of(Path(name))
    whole = sum(map(len, records))
    tables = sum(map(len, files.tables))
    return {
        "input": {**describe_list(images), "records": len(records), "copies": 10, "index_rows": ROWS},
        "output": disk,
        "settings": {"repetitions": REPETITIONS, "warm_up": 1, "order": "alternating", "random_reads": READS},
        "mean_table_bytes": tables / len(records),
        "bytes_over_records": {
            "segment": tables / whole,
            # Of the segment a column would save the header; it costs eight bytes of offset.
            "column": (tables - (HEADER - 8) * len(records)) / whole,
        },
        "warm_microseconds": warm,
        "median_warm_microseconds": medians(warm),
        "cold": cold,
        "median_cold": {
            what: medians({name: [figure[name] for figure in figures] for name in figures[0]})
            for what, figures in cold.items()
        },
        "targets": [],
    }


def show(result: dict[str, Any]) -> None:
    cold = result["median_cold"]
    rows = []
    for what in ("record", *PLACES):
        warm = result["median_warm_microseconds"].get(what)
        share = result["bytes_over_records"].get(what)
        rows.append(
            [
                what if what == "record" else f"record, table in a {what}",
                "" if share is None else f"{100 * share:.2f}",
                "" if warm is None else f"{warm:.2f}",
                *(f"{cold[what][name]:,.1f}" for name in cold[what]),
            ]
        )
    print_table(["what is read", "% of the records", "warm, us", *(f"cold, {name}" for name in cold["record"])], rows)


def _warm(files: Files, place: str) -> float:
    """Microseconds to have one table. The maps do not outlive this: mapped pages could not be dropped."""
    reader = Reader(files)
    rows = random.Random(0).sample(range(ROWS), READS)
    if place == "column":
        for row in rows:
            reader.column(row)
        return microseconds(reader.column, rows)
    return microseconds(segment, [reader.record(row) for row in rows])


def _cold(files: Files, what: str) -> dict[str, float]:
    """For one record of a random few: microseconds, page faults that wait for the disk, KiB read from it."""
    files.forget()
    reader = Reader(files)
    rows = random.Random(0).sample(range(ROWS), READS)
    faults, read, started = _faults(), _bytes_read(), time.perf_counter()
    for row in rows:
        record = reader.record(row)
        crc32c(record)
        if what == "segment":
            segment(record)
        elif what == "column":
            reader.column(row)
    return {
        "us": (time.perf_counter() - started) / READS * 1e6,
        "page faults": (_faults() - faults) / READS,
        "KiB": (_bytes_read() - read) / READS / 1024,
    }


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
