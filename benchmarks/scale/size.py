"""Costs that grow with a dataset: reading a list, the plan, the index, the table of chunks, and the order of an epoch.

Each is measured in a process of its own, at as many records as a small machine can hold: all that is arithmetic at a
billion, a list and a merge at a hundred million lines. The index of a billion records lies in files that are holes, so
its blocks are checked, but nothing is read from a disk.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from benchmarks.measure import child, print_table, scratch, target
from packtrain import LabelSpec, PackOptions, StoreOptions, merge, pack_status
from packtrain._core.files import write_file
from packtrain._core.index import ROWS_PER_BLOCK, Index, IndexWriter
from packtrain._core.keys import mixed
from packtrain._core.manifest import PLAN, ColumnInfo, FieldInfo, FileInfo, Manifest, ShardInfo
from packtrain._core.npy import npy_header
from packtrain._core.permutation import Permutation
from packtrain._core.schema import image_field
from packtrain._packer.columns import ShardColumns
from packtrain._packer.lists.reader import read_list
from packtrain._packer.notes import ListFacts, NoteFacts, ShardNote, make_parts
from packtrain._packer.plan import Plan, PlannedShard
from packtrain._packer.planning import outline_plan, plan_shards
from packtrain._storage.streams.chunks import ChunkTable
from packtrain._storage.streams.order import ChunkOrder

LINES: Final = 100_000_000
RECORDS: Final = 1_000_000_000
IMAGENET: Final = 1_281_167
TABLE_RECORDS: Final = 10_000_000
MERGED_RECORDS: Final = 100_000_000
RECORD_BYTES: Final = 110_000
"""As in ImageNet."""
PER_CHUNK: Final = 107
PER_SHARD: Final = 5_000
NODES: Final = 256
RANKS: Final = 8
BATCH: Final = 256
_CALLS: Final = 20
_LOOKS: Final = 4
_PATH: Final = b"n00000000/n00000000_00000000.JPEG"


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds of one core and bytes of memory of each part."""
    scale = 1000 if quick else 1
    lines, records, table = LINES // scale, RECORDS // scale, TABLE_RECORDS // scale
    merged = max(PER_SHARD, MERGED_RECORDS // scale)
    with scratch(on_disk=True) as folder:
        _write_list(folder / "list.txt", lines)
        list_bytes = (folder / "list.txt").stat().st_size
        parts = {
            "list": child("scale.size", "list", folder / "list.txt"),
            "plan": child("scale.size", "plan", records),
            "order": child("scale.size", "order", records, NODES),
            "order of ImageNet": child("scale.size", "order", IMAGENET, 1),
        }
    # On a disk, the system takes long to find out that there is nothing.
    with scratch() as folder:
        index_bytes = _write_hollow_index(folder / "hollow", records)
        parts["index"] = child("scale.size", "index", folder / "hollow")
    with scratch() as folder:
        _write_index(folder, table)
        parts["table"] = child("scale.size", "table", folder)
    with scratch(on_disk=True) as folder:
        _write_notes(folder, merged)
        parts["status"] = child("scale.size", "status", folder)
        parts["merge"] = child("scale.size", "merge", folder)
    return {
        "input": {"lines": lines, "list_bytes": list_bytes, "records": records, "table_records": table},
        "settings": {"nodes": NODES, "ranks_per_node": RANKS, "batch_size": BATCH, "index_bytes": index_bytes},
        "parts": parts,
        "targets": [
            target("plan for the lines, seconds of one core", parts["list"]["seconds"], most=60),
            target("plan for the lines, GB of memory", parts["list"]["peak_bytes"] / 1e9, most=2),
            target("256 positions of the order, ms", 1e3 * parts["order of ImageNet"]["batch_seconds"], most=2),
            target(
                "positions computed ahead, us each", 1e6 * parts["order of ImageNet"]["ahead_seconds_each"], most=0.5
            ),
        ],
    }


def show(result: dict[str, Any]) -> None:
    """Prints all figures."""
    rows = [
        [f"{part}: {name.replace('_', ' ')}", f"{value:,.6g}"]
        for part, values in result["parts"].items()
        for name, value in values.items()
    ]
    print_table(["part", "figure"], rows)


def _write_list(path: Path, lines: int) -> None:
    with path.open("wb") as file:
        for start in range(0, lines, 1 << 20):
            numbers = range(start, min(lines, start + (1 << 20)))
            labels = [number * 2654435761 % 21841 for number in numbers]
            file.writelines(
                b"train/n%08d/n%08d_%d.JPEG %d\n" % (1440764 + label, 1440764 + label, number, label)
                for number, label in zip(numbers, labels, strict=True)
            )


def _manifest(records: int, columns: tuple[ColumnInfo, ...]) -> Manifest:
    counts = [PER_SHARD] * (records // PER_SHARD) + [records % PER_SHARD] * (records % PER_SHARD > 0)
    shards = [
        ShardInfo(f"train-{number:06d}.tar", count * (RECORD_BYTES + 1024) + 1024, 0, count, ())
        for number, count in enumerate(counts)
    ]
    return Manifest(
        name="train",
        format="tar",
        fields=(FieldInfo.of(image_field(StoreOptions())),),
        labels=LabelSpec(),
        classes=None,
        records=records,
        lines=records,
        rejects=0,
        duplicates=0,
        plan_sha256="0" * 64,
        written_by="benchmarks/scale/size.py",
        rejects_file=FileInfo("rejects.jsonl", 0, 0),
        columns=columns,
        shards=tuple(shards),
    )


def _write_hollow_index(folder: Path, records: int) -> int:
    """Writes an index of zeros that takes no space; returns the size that it seems to have."""
    (folder / "index").mkdir(parents=True)
    dtypes = {"line": "<i8", "shard": "<u4", "offset": "<i8", "length": "<i8", "crc32c": "<u4", "width": "<i4"}
    dtypes |= {"height": "<i4", "orientation": "|u1", "label": "<i8", "by_place": "<i8", "path_offsets": "<i8"}
    columns = []
    for name, dtype in dtypes.items():
        columns.append(_hollow(folder, name, dtype, records + (name == "path_offsets")))
    columns.append(_hollow(folder, "path_bytes", "|u1", 0))
    # All blocks are equal but the last.
    whole, rest = divmod(records, ROWS_PER_BLOCK)
    checksums = np.full(whole + (rest > 0), _zeros(dtypes.values(), ROWS_PER_BLOCK), "<u4")
    if rest:
        checksums[-1] = _zeros(dtypes.values(), rest)
    header = npy_header("<u4", checksums.shape)
    write_file(folder / "index" / "blocks.npy", [header, checksums.tobytes()])
    crc = crc32c(checksums.tobytes(), crc32c(header))
    columns.append(ColumnInfo("blocks", len(header) + checksums.nbytes, crc, "<u4", checksums.shape))
    write_file(folder / "manifest.json", [_manifest(records, tuple(columns)).dump()])
    return sum(column.bytes for column in columns)


def _hollow(folder: Path, name: str, dtype: str, length: int) -> ColumnInfo:
    header = npy_header(dtype, (length,))
    size = len(header) + np.dtype(dtype).itemsize * length
    with (folder / "index" / f"{name}.npy").open("wb") as file:
        file.write(header)
        file.truncate(size)
    return ColumnInfo(name, size, 0, dtype, (length,))


def _zeros(dtypes: Any, rows: int) -> int:
    # The offsets of the texts have one entry more.
    return crc32c(bytes(sum(np.dtype(dtype).itemsize for dtype in dtypes) * rows + 8))


def _write_index(folder: Path, records: int) -> None:
    (folder / "index").mkdir()
    writer, place = IndexWriter(folder / "index", records), np.random.default_rng(0).permutation(records)
    inside = place % PER_SHARD
    writer.add("line", np.arange(records, dtype="<i8"))
    writer.add("shard", (place // PER_SHARD).astype("<u4"))
    writer.add("offset", inside * (RECORD_BYTES + 1024) + 512)
    del inside
    writer.add("length", np.full(records, RECORD_BYTES, "<i8"))
    writer.add("crc32c", np.zeros(records, "<u4"))
    for name, dtype in (("width", "<i4"), ("height", "<i4"), ("orientation", "|u1"), ("label", "<i8")):
        writer.add(name, np.ones(records, dtype))
    by_place = np.empty(records, "<i8")
    by_place[place] = np.arange(records)
    writer.add("by_place", by_place)
    offsets = np.arange(records + 1, dtype="<i8") * len(_PATH)
    writer.add_text("path", offsets, np.frombuffer(_PATH * records, np.uint8))
    write_file(folder / "manifest.json", [_manifest(records, writer.finish()).dump()])


def _merge_plan(records: int) -> Plan:
    shards = [
        PlannedShard(f"train-{number:06d}.tar", number * PER_SHARD, PER_SHARD) for number in range(records // PER_SHARD)
    ]
    return Plan(
        name="train",
        format="tar",
        fields=(image_field(StoreOptions()),),
        labels=LabelSpec(),
        classes=None,
        columns=None,
        list_sha256="0" * 64,
        lines=records,
        entries=records,
        seed=0,
        shard_bytes=1,
        encoder=None,
        written_by="benchmarks/scale/size.py",
        shards=tuple(shards),
    )


def _write_notes(folder: Path, records: int) -> None:
    """Writes what is there when all shards are packed; the shards are holes."""
    plan = _merge_plan(records)
    write_file(folder / PLAN, [plan.dump()])
    make_parts(folder)
    every = np.arange(PER_SHARD)
    columns = {"offset": every * (RECORD_BYTES + 1024) + 512, "length": np.full(PER_SHARD, RECORD_BYTES, "<i8")}
    columns |= {"crc32c": every.astype("<u4"), "width": every.astype("<i4"), "height": every.astype("<i4")}
    columns |= {"orientation": np.ones(PER_SHARD, "|u1")}
    for number, shard in enumerate(plan.shards):
        size = PER_SHARD * (RECORD_BYTES + 1024) + 1024
        with (folder / shard.name).open("wb") as file:
            file.truncate(size)
        info = ShardInfo(shard.name, size, 0, PER_SHARD, ())
        facts = NoteFacts(plan.sha256, info, (), None if number else ListFacts(0, ()))
        paths = np.arange(PER_SHARD + 1, dtype="<i8") * len(_PATH), np.frombuffer(_PATH * PER_SHARD, np.uint8)
        lines = {"line": plan.ordinals(number)}
        ShardNote(facts, ShardColumns(lines | columns | {"label": every}, {"path": paths})).save(folder)


# --- in a fresh process: python -m benchmarks.scale.size PART ... ---


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """The result of a function, and the seconds of a processor that it took: the machine may do other things, too."""
    started = time.process_time()
    result = function()
    return time.process_time() - started, result


def _peak() -> int:
    # Not what getrusage says, which begins with the memory of the parent.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _list(path: str) -> dict[str, float]:
    store = StoreOptions("raw", resize="224x224")
    options = PackOptions(store=store)

    def plan() -> Any:
        images = read_list(Path(path), options.labels)
        return images, plan_shards(outline_plan(images, options), images)

    started = time.perf_counter()
    seconds, (images, made) = _timed(plan)
    elapsed = time.perf_counter() - started
    shard, entries = _timed(lambda: images.entries(made.ordinals(0)))
    return {
        "seconds": seconds,
        "elapsed_seconds": elapsed,
        "peak_bytes": _peak(),
        "lines": images.lines,
        "shards": len(made.shards),
        "plan_bytes": len(made.dump()),
        "seconds_for_the_lines_of_a_shard": shard,
        "lines_of_a_shard": len(entries),
    }


def _plan(records: str) -> dict[str, float]:
    permutation = Permutation(int(records), 0)
    first, _ = _timed(lambda: permutation.range(int(records) // 2, int(records) // 2 + PER_SHARD))
    return {"seconds_for_the_places_of_a_shard": first, "places_of_a_shard": PER_SHARD, "peak_bytes": _peak()}


def _order(records: str, machines: str) -> dict[str, float]:
    # It imports torch.
    from packtrain._readers.loader.schedule import Schedule

    count, nodes, before = int(records), int(machines), _peak()
    bounds = np.append(np.arange(0, count, PER_CHUNK), count)
    order = ChunkOrder(bounds, max(32, nodes), max(2, 64 * nodes // max(32, nodes)))
    line, _ = _timed(lambda: order.line(mixed(0, 0)))
    line_peak = _peak()
    order.places(mixed(0, 0), 0, BATCH)
    starts = np.linspace(0, count - 8192, _CALLS).astype(np.int64).tolist()
    batch, _ = _timed(lambda: [order.places(mixed(0, 0), start, start + BATCH) for start in starts])
    ahead, _ = _timed(lambda: [order.places(mixed(0, 0), start, start + 8192) for start in starts])
    ranks = nodes * RANKS
    schedule = Schedule(count, BATCH, ranks // 3, ranks, False, "lanes", order.lanes, nodes)
    whole = ranks * BATCH if count > 10 * ranks * BATCH else 0
    step, _ = _timed(lambda: [schedule.step(whole * number) for number in range(_CALLS if whole else 1)])
    visits, found = _timed(lambda: order.visits(mixed(0, 0)))
    return {
        "chunks": order.chunk_count,
        "seconds_as_an_epoch_begins": line,
        "bytes_of_the_bounds_and_an_epoch": line_peak - before,
        "batch_seconds": batch / _CALLS,
        "ahead_seconds_each": ahead / _CALLS / 8192,
        "step_seconds": step / (_CALLS if whole else 1),
        "seconds_for_all_visits": visits,
        "visits": len(found.chunk),
        "peak_bytes": _peak(),
    }


def _index(folder: str) -> dict[str, float]:
    before = _peak()
    seconds, manifest = _timed(lambda: Manifest.load(Path(folder)))
    opening, index = _timed(lambda: Index.of(Path(folder), manifest))
    after = _peak()
    places = np.random.default_rng(0).integers(0, manifest.records, (_LOOKS, BATCH))
    batch, _ = _timed(lambda: [index.rows_at(some) for some in places])
    return {
        "manifest_seconds": seconds,
        "manifest_bytes": os.stat(Path(folder) / "manifest.json").st_size,
        "open_seconds": opening,
        "bytes_of_an_open_index": after - before,
        "seconds_for_the_first_look_at_256_rows": batch / _LOOKS,
    }


def _table(folder: str) -> dict[str, float]:
    manifest = Manifest.load(Path(folder))
    index, before = Index.of(Path(folder), manifest), _peak()
    seconds, table = _timed(lambda: ChunkTable.of(manifest, index))
    return {
        "seconds": seconds,
        "records": manifest.records,
        "chunks": len(table),
        "table_bytes": sum(getattr(table, name).nbytes for name in ("bounds", "shard", "bytes", "start", "stop"))
        + table.chunk.nbytes
        + table.position.nbytes,
        "peak_bytes_with_the_index": _peak() - before,
    }


def _status(folder: str) -> dict[str, float]:
    before = _peak()
    seconds, status = _timed(lambda: pack_status(folder))
    return {"seconds": seconds, "shards": status.done, "peak_bytes": _peak() - before}


def _merge(folder: str) -> dict[str, float]:
    before = _peak()
    seconds, report = _timed(lambda: merge(folder))
    return {"seconds": seconds, "records": report.records, "peak_bytes": _peak() - before}


_PARTS: Final[dict[str, Callable[..., dict[str, float]]]] = {
    "list": _list,
    "plan": _plan,
    "order": _order,
    "index": _index,
    "table": _table,
    "status": _status,
    "merge": _merge,
}

if __name__ == "__main__":
    print(json.dumps(_PARTS[sys.argv[1]](*sys.argv[2:])))
