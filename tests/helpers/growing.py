"""For tests of reading a growing cache: caches written shard by shard, without a filler."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c
from helpers.samples import EXTENSIONS

from packtrain._core.generations import (
    GENERATIONS,
    READERS,
    SHARDS,
    TEMPORARY,
    CacheInfo,
    Generation,
    generation_numbers,
    index_bytes,
    index_dtype,
    index_path,
    retire,
    shard_path,
)
from packtrain._core.options import FORMATS, LabelSpec
from packtrain._core.schema import Field, Schema
from packtrain._formats.writing import NewRecord, NewSample, shard_writer
from packtrain._growing.shard import GrowingShard
from packtrain._packer.samples import SampleEncoder
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GrowingDataset, newest
from packtrain._readers.dataset.image_dataset import PackedDataset
from packtrain._readers.dataset.samples import PackedSamples

SCHEMA: Final = Schema(
    (
        Field("x", "array", dtype="<f4", shape=(3,)),
        Field("name", "text"),
    ),
    LabelSpec("int"),
)
"""Of the samples that `sample` makes."""
FIELDS: Final = ("x", "name", "label")


def sample(number: int) -> dict[str, Any]:
    """The sample of a number, as a source yields it; the same in every cache."""
    return {"x": np.full(3, number, np.float32), "name": f"sample {number}", "label": number % 7}


class TinyCache:
    """A cache that a test fills by hand.

    Args:
        root: Its folder, which is made.
        format: Container format.
        schema: What samples hold.

    Attributes:
        root: Its folder.
        info: What it holds.
        newest: Its newest generation; an empty one, which is not on disk, before the first.
    """

    def __init__(self, root: Path, format: str = "tar", schema: Schema = SCHEMA) -> None:
        self.root: Final = root
        for name in (SHARDS, GENERATIONS, READERS, TEMPORARY):
            (root / name).mkdir(parents=True)
        self.info: Final = CacheInfo(np.random.default_rng().bytes(16).hex(), format, schema.fields, schema.labels)
        self.info.save(root)
        self.newest = Generation(-1, 0, 0, 0, (), (), ())

    def grow(self, *sizes: int, drop: int = 0) -> Generation:
        """Writes shards of so many samples each through the filler's writer, and publishes a generation with them.

        Args:
            sizes: Number of samples of each new shard.
            drop: Number of oldest shards that the generation leaves out.
        """
        encoder = SampleEncoder(self.info.schema, bare=self.info.bare)
        shards: list[tuple[int, int, int]] = []
        first = self.newest.end_sample
        for size in sizes:
            number = self.newest.end_shard + len(shards)
            shard = GrowingShard(self.root, self.info, number, first)
            for place in range(first, first + size):
                shard.add(encoder.encode(sample(place)))
            first += size
            done = shard.finish()
            shards.append((done.records, done.bytes, done.index_crc32c))
        return self.publish(shards, drop)

    def write(self, parts: Iterable[Sequence[tuple[NewSample, Sequence[Sequence[int]]]]], drop: int = 0) -> Generation:
        """Writes shards of any samples, and publishes a generation with them.

        Args:
            parts: For each shard its samples, each with the index entries of its fields, in the order of the schema:
                length, checksum and so on, see `Field.columns`; the offset is left out.
            drop: Number of oldest shards that the generation leaves out.
        """
        shards: list[tuple[int, int, int]] = []
        first = self.newest.end_sample
        for part in parts:
            shards.append(self._shard(self.newest.end_shard + len(shards), first, part))
            first += len(part)
        return self.publish(shards, drop)

    def _shard(
        self, number: int, first: int, part: Sequence[tuple[NewSample, Sequence[Sequence[int]]]]
    ) -> tuple[int, int, int]:
        path = shard_path(self.root, FORMATS[self.info.format].suffix, number)
        schema = self.info.schema
        writer = shard_writer(self.info.format)(path, schema)
        try:
            for place, (each, _) in enumerate(part):
                writer.add(each._replace(line=first + place))
            offsets = writer.finish().offsets
        finally:
            writer.close()
        table = np.zeros(len(part), index_dtype(schema))
        table["number"] = np.arange(first, first + len(part))
        if schema.labels.kind != "none":
            table["label"] = [each.label for each, _ in part]
        for at, field in enumerate(schema.fields):
            columns = list(field.columns())
            rows = [(where[at], *entries[at]) for where, (_, entries) in zip(offsets, part, strict=True)]
            for name, values in zip(columns, zip(*rows, strict=True), strict=True):
                table[name] = values
        data = index_bytes(table)
        index_path(self.root, number).write_bytes(data)
        return len(part), path.stat().st_size, crc32c(data)

    def publish(self, shards: Sequence[tuple[int, int, int]] = (), drop: int = 0) -> Generation:
        """Publishes a generation with these new shards (samples, bytes, checksum of the index), which are there."""
        last = self.newest
        records, sizes, sums = zip(*shards, strict=True) if shards else ((), (), ())
        grown = Generation(
            last.number + 1,
            time.time_ns(),
            last.first_shard,
            last.first_sample,
            (*last.records, *records),
            (*last.bytes, *sizes),
            (*last.index_crc32c, *sums),
        )
        self.newest = grown.without_oldest(drop)
        self.newest.publish(self.root)
        return self.newest

    def evict(self) -> list[int]:
        """Retires all generations but the newest, and deletes shards that are in none. Returns those that stay."""
        for number in generation_numbers(self.root)[:-1]:
            retire(self.root, number)
        left = generation_numbers(self.root)
        oldest = min(Generation.load(self.root, number).first_shard for number in left)
        for path in (self.root / SHARDS).iterdir():
            if int(path.name.partition(".")[0].rpartition("-")[2]) < oldest:
                path.unlink()
        return left

    def dataset(self, fields: Sequence[str] | None = FIELDS, **options: Any) -> GrowingDataset:
        """The newest generation. Options are those of `CacheFiles` and `PackedSamples`."""
        opening = {name: options.pop(name) for name in ("io", "check") if name in options}
        return GrowingDataset(PackedSamples(newest(CacheFiles(self.root, **opening)), fields=fields, **options))


def copy_of(packed: PackedDataset, root: Path, *sizes: int) -> TinyCache:
    """A cache with the rows of a packed dataset, again and again, byte by byte, in shards of so many samples."""
    cache = TinyCache(root, packed.store.manifest.format, packed.schema)
    rows = itertools.cycle(range(len(packed)))
    cache.write([[_copied(packed, next(rows)) for _ in range(size)] for size in sizes])
    return cache


def _copied(packed: PackedDataset, row: int) -> tuple[NewSample, list[list[int]]]:
    records: list[NewRecord | None] = []
    entries = []
    for field in packed.schema.fields:
        stored = packed.store.field(field.name)
        names = [name.removeprefix(field.prefix) for name in field.columns()]
        entries.append([int(stored.columns[name][row]) for name in names if name != "offset"])
        data = stored.read(row)
        if data is None:
            records.append(None)
            continue
        shape = (*stored.size(row)[::-1], 3) if field.has_pixels else np.shape(packed.value(row, field.name))
        extension = "npy" if field.encoding == "raw" else EXTENSIONS.get(field.kind, "npy")
        records.append(NewRecord(bytes(data), extension, crc32c(data), shape))
    label: Any = packed.store.label(row) if packed.schema.labels.kind != "none" else None
    return NewSample(0, label, tuple(records)), entries


def numbers(dataset: GrowingDataset) -> list[int]:
    """The numbers of all samples of a `TinyCache`, from the records themselves."""
    return [int(dataset.value(row, "name").split()[1]) for row in range(len(dataset))]


@contextmanager
def uncollected() -> Iterator[None]:
    """What is dropped inside is freed at once, or not at all."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def held_in(root: Path) -> list[str]:
    """Files of a folder that this process has mapped or open."""
    maps = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    links = set()
    for each in os.scandir("/proc/self/fd"):
        try:
            links.add(os.readlink(each.path))
        except FileNotFoundError:
            continue
    return sorted(path for path in maps | links if path.startswith(str(root)))
