"""Remote datasets for tests, small chunks, and laws that a cache must obey at any time."""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from crc32c import crc32c
from helpers.local_objects import SPEC, STORE, LocalObjects, Store
from helpers.processes import ended
from helpers.waiting import wait_until

from packtrain._core.index import IndexWriter
from packtrain._core.locks import lock_holders
from packtrain._core.manifest import FieldInfo, FileInfo, Manifest, ShardInfo
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field
from packtrain._storage.remote.urls import Url
from packtrain._storage.staging.options import StageOptions
from packtrain._storage.streams.client import ChunkCache
from packtrain._storage.streams.layout import CHUNKS
from packtrain._storage.streams.opening import open_stream
from packtrain._storage.streams.order import ChunkOrder
from packtrain._storage.streams.policy import Reading

URL = Url.parse("s3://bucket/set")
MiB = 1 << 20
_PLAN = b"{}\n"


def write_plain(
    folder: Path, shards: list[list[int]], *, gap: int = 512, seed: int = 0, order: bool = True
) -> Manifest:
    """Writes a dataset of bytes without the packer: for each shard the sizes of its records, each after `gap` bytes.

    Args:
        folder: The dataset's folder; made.
        shards: Sizes of the records of each shard.
        gap: Bytes before each record.
        seed: Of the content.
        order: True if rows are in the order of places.
    """
    (folder / "index").mkdir(parents=True)
    random = np.random.default_rng(seed)
    rows = sum(map(len, shards))
    columns: dict[str, list[int]] = {"shard": [], "offset": [], "length": [], "crc32c": []}
    infos = []
    for number, sizes in enumerate(shards):
        data = bytearray()
        for size in sizes:
            data += bytes(gap)
            record = random.bytes(size)
            columns["shard"].append(number)
            columns["offset"].append(len(data))
            columns["length"].append(size)
            columns["crc32c"].append(crc32c(record))
            data += record
        name = f"t-{number:06d}.tar"
        (folder / name).write_bytes(data)
        infos.append(ShardInfo(name, len(data), crc32c(bytes(data)), len(sizes)))
    by_place = np.arange(rows) if order else random.permutation(rows)
    place_of = np.argsort(by_place)
    field = Field("blob", "bytes")
    index = IndexWriter(folder / "index", rows)
    index.add("line", np.arange(rows).astype("<i8"))
    index.add("shard", np.array(columns["shard"], "<u4")[place_of])
    index.add("by_place", by_place.astype("<i8"))
    texts = [f"row {row}".encode() for row in range(rows)]
    index.add_text("path", np.cumsum([0, *map(len, texts)]).astype("<i8"), np.frombuffer(b"".join(texts), np.uint8))
    for name, dtype in field.columns().items():
        index.add(name, np.array(columns[name.removeprefix(field.prefix)], dtype)[place_of])
    manifest = Manifest(
        name="t",
        format="tar",
        fields=(FieldInfo.of(field, sum(columns["length"]), max(columns["length"], default=0)),),
        labels=LabelSpec.parse("none"),
        classes=None,
        records=rows,
        lines=rows,
        rejects=0,
        duplicates=0,
        plan_sha256=hashlib.sha256(_PLAN).hexdigest(),
        written_by="a test",
        rejects_file=FileInfo("rejects.jsonl", 0, 0),
        columns=index.finish(),
        shards=tuple(infos),
    )
    (folder / "plan.json").write_bytes(_PLAN)
    (folder / "rejects.jsonl").touch()
    (folder / "manifest.json").write_bytes(manifest.dump())
    return manifest


def with_plan(folder: Path) -> Path:
    """Adds a plan to a dataset that was written without one. Returns its folder."""
    manifest = Manifest.load(folder)
    (folder / "plan.json").write_bytes(_PLAN)
    (folder / "manifest.json").write_bytes(replace(manifest, plan_sha256=hashlib.sha256(_PLAN).hexdigest()).dump())
    return folder


class Remote:
    """A remote dataset in a folder, and caches of it.

    Args:
        folder: For the store.
        place: Folder for staged copies.
    """

    def __init__(self, folder: Path, place: Path) -> None:
        self.store = Store(folder)
        self.dataset = folder / "bucket" / "set"
        self.place = place
        os.environ[STORE] = os.fspath(folder)
        self.pids = set[int]()

    def open(self, budget: int, url: Url = URL, *, check: bool = False) -> ChunkCache:
        """Opens the dataset through a cache."""
        cache = open_stream(url, StageOptions(self.place), budget, LocalObjects(), fetch_with=SPEC, check=check)
        assert isinstance(cache, ChunkCache)
        return cache

    def expected(self, cache: ChunkCache, chunk: int) -> bytes:
        """The bytes that the file of a chunk must hold."""
        manifest = Manifest.load(self.dataset)
        data = (self.dataset / manifest.shards[int(cache.table.shard[chunk])].name).read_bytes()
        return b"".join(data[extent.start : extent.stop] for extent in cache.table.extents(chunk))


@contextmanager
def remote_in(folder: Path) -> Iterator[Remote]:
    """An empty store, and a folder for caches, in this folder. Fetchers that are left at the end are killed."""
    (folder / "store").mkdir()
    (folder / "place").mkdir()
    yield Remote(folder / "store", folder / "place")
    end_fetchers(folder / "place")


def end_fetchers(place: Path) -> None:
    """Kills the fetchers of all caches in a folder."""
    for lock in place.glob("**/packtrain-*/*/fetcher.lock"):
        for pid in lock_holders(lock.stat()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def fetcher_pid(cache: ChunkCache) -> int:
    """The process that fetches."""
    return int(cache.state()["pid"])


def kill_fetcher(cache: ChunkCache) -> int:
    """Kills the fetcher, and waits until it is gone."""
    pid = fetcher_pid(cache)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ended(pid), "the fetcher is gone")
    return pid


def assert_whole(remote: Remote, cache: ChunkCache) -> None:
    """Whatever has the name of a chunk is that chunk, complete."""
    for path in (cache.entry / CHUNKS).glob("[!.]*"):
        with suppress(FileNotFoundError):
            assert path.read_bytes() == remote.expected(cache, int(path.name)), path


class GaveUp(Exception):
    """Whoever waited for a chunk waits no longer."""


def impatient(seconds: float) -> Callable[[], None]:
    """Something to do while waiting, which gives up after a while."""
    until = time.monotonic() + seconds

    def meanwhile() -> None:
        if time.monotonic() > until:
            raise GaveUp

    return meanwhile


def read(cache: ChunkCache, chunk: int) -> bytes:
    """The bytes of a chunk."""
    descriptor = cache.open(chunk)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def taken(folder: Path) -> int:
    """Bytes that all below a folder takes on its file system."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(inner, name).lstat().st_blocks * 512
    return total


def consume(
    cache: ChunkCache,
    job_id: str,
    keys: Iterable[int],
    *,
    epochs: int | None = None,
    lanes: int = 4,
    maps: dict[int, mmap.mmap] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Goes through epochs as one rank of a job does. Yields the chunks and their bytes."""
    window, batch = 1, 8
    order = ChunkOrder(np.array(cache.table.bounds), lanes, window)
    every = list(keys)
    # Jobs of one process share their maps: while one of them waits, the others cannot let go of theirs.
    maps = {} if maps is None else maps

    def let_go() -> None:
        for gone in [gone for gone in maps if not cache.present[gone]]:
            maps.pop(gone).close()

    job = cache.register(job_id, Reading(0, 1, batch, lanes, window, tuple(every[:2])))
    for epoch, key in enumerate(every[:epochs]):
        for start in range(0, len(order), batch):
            job.progress(tuple(every[epoch : epoch + 2]), start, batch)
            places = order.places(key, start, min(len(order), start + batch))
            for chunk in dict.fromkeys((np.searchsorted(order.bounds, places, side="right") - 1).tolist()):
                let_go()
                if chunk not in maps:
                    descriptor = cache.open(chunk, let_go)
                    maps[chunk] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
                    os.close(descriptor)
                yield chunk, bytes(maps[chunk])
    job.close()
