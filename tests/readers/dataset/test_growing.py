"""Laws of reading a growing cache: a generation is a dataset like any other, until it is left or gone."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers.datasets import LEFT_OUT, NO_IMAGE, ROWS, SCHEMA, make_dataset
from helpers.growing import FIELDS, TinyCache, copy_of, numbers, sample, uncollected
from helpers.samples import new_sample as as_written
from helpers.samples import payload, sample_lists, schemas
from helpers.support import FORMATS, START_METHODS, output_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packtrain import Loader, concat, open_dataset
from packtrain._core.generations import (
    SHARDS,
    generation_path,
    index_path,
    retire,
    shard_path,
)
from packtrain._core.schema import Schema
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GenerationStore, newest
from packtrain.errors import (
    GenerationGone,
    NotADataset,
    PacktrainError,
    UsageError,
)
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

IOS = pytest.mark.parametrize("io", ["mmap", "pread"])


@pytest.fixture
def cache(memory_path: Path) -> TinyCache:
    """Three shards of 3, 4 and 2 samples."""
    made = TinyCache(memory_path / "cache")
    made.grow(3, 4, 2)
    return made


# What comes back


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=10)
@given(st.data(), st.sampled_from(FORMATS), st.sampled_from(["mmap", "pread"]), st.booleans())
def test_every_record_of_every_schema_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, format: str, io: str, check: bool
) -> None:
    schema = data.draw(schemas())
    parts = [part for part in data.draw(st.lists(sample_lists(schema), max_size=4)) if part]
    samples = [each for part in parts for each in part]
    if not samples:
        return
    drop = data.draw(st.integers(0, len(parts) - 1))
    cache = TinyCache(tmp_path_factory.mktemp("growing") / "cache", format, schema)
    cache.write([[_with_entries(schema, each, bare=cache.info.bare) for each in part] for part in parts], drop)
    kept = samples[sum(map(len, parts[:drop])) :]
    store = newest(CacheFiles(cache.root, io, check=check))
    assert (len(store), store.io) == (len(kept), io)
    read = 0
    for row in data.draw(st.permutations(range(-len(kept), len(kept)))):
        expected = kept[row]
        assert store.line(row) == len(samples) - len(kept) + row % len(kept)
        if schema.labels.kind != "none":
            assert np.array_equal(store.label(row), np.array(expected.label, schema.labels.dtype))
        for field, value in zip(schema.fields, expected.values, strict=True):
            records = store.field(field.name)
            if value is None:
                assert records.read(row) is None and records.length(row) == -1
                with pytest.raises(UsageError, match=f"sample .* has no {field.name}"):
                    store.record(row, field.name)
                continue
            stored = payload(value, bare=cache.info.bare)
            assert store.record(row, field.name) == stored and records.length(row) == len(stored)
            read += len(stored)
            if field.kind == "array":
                assert np.asarray(records.value(row)).tobytes() == value.tobytes()  # type: ignore[union-attr]
                read += len(stored)
    assert store.read_bytes == read
    if schema.labels.kind != "none":
        labels = np.array([each.label for each in kept], schema.labels.dtype)
        assert np.array_equal(store.all_labels(), labels) and store.all_labels().dtype == labels.dtype
    for row in (len(kept), -len(kept) - 1):
        with pytest.raises(IndexError):
            store.label(row)
        with pytest.raises(IndexError):
            store.line(row)


@pytest.mark.parametrize("rows", [[], [0], [4], [8], [6, 3], [8, 7], [8, 0, 8, 5]])
def test_a_column_has_the_rows_that_are_asked_for(cache: TinyCache, rows: list[int]) -> None:
    store = newest(CacheFiles(cache.root, "mmap"))
    wanted = np.array(rows, np.int64)
    assert store.column("label", wanted).tolist() == [store.label(row) for row in rows]
    assert store.column("line", wanted).tolist() == [store.line(row) for row in rows]
    assert store.column("length", wanted, "name").tolist() == [store.field("name").length(row) for row in rows]


def _with_entries(schema: Schema, each: Any, *, bare: bool) -> Any:
    """A sample, and what the index says about it."""
    written = as_written(schema, each, bare=bare)
    entries = []
    for field, record in zip(schema.fields, written.records, strict=True):
        place = (-1, 0) if record is None else (len(record.payload), record.crc32c)
        sizes = (0, 0) if record is None else (4, 3)
        entries.append((*place, *(sizes if field.has_pixels else ()), *((1,) if field.kind == "image" else ())))
    return written, entries


NAMES = {"with image": (*SCHEMA.names, "label", "crop"), "without": (*NO_IMAGE.names, "crop"), "pairs": None}


@pytest.mark.parametrize("what", NAMES)
@IOS
def test_samples_are_those_of_a_packed_dataset(memory_path: Path, format_name: str, what: str, io: str) -> None:
    schema, names = NO_IMAGE if what == "without" else SCHEMA, NAMES[what]
    packed = make_dataset(memory_path / "packed", format_name, schema)
    transform = [RandomResizedCrop(16), RandomHorizontalFlip()]
    plain = open_dataset(packed, fields=names)
    cache = copy_of(plain, memory_path / "cache", 2, 1, 5)
    grown = cache.dataset(names, io=io)
    assert grown.schema == plain.schema and grown.field_names == plain.field_names == (names or ("image", "label"))
    for one, other in ((plain, grown), (plain.with_transform(transform), grown.with_transform(transform))):
        for row in range(8):
            expected, found = one._samples.make(row % ROWS, [0.3] * 40), other._samples.make(row, [0.3] * 40)
            for name, mine, theirs in zip(grown.field_names, found, expected, strict=True):
                assert _same(mine, theirs), (row, name)
    for row in (0, LEFT_OUT, -1):
        for name in schema.names:
            assert _same(grown.value(row, name), plain.value(row % 8 % ROWS, name)), name


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None or isinstance(one, str | dict | bytes):
        return bool(one == other)
    return type(one) is type(other) and np.array_equal(np.asarray(one), np.asarray(other))


@IOS
def test_a_generation_is_a_dataset(cache: TinyCache, io: str) -> None:
    grown = cache.dataset(io=io)
    assert numbers(grown) == list(range(9)) and len(grown) == 9
    assert repr(grown).startswith("GrowingDataset(generation 0, 9 rows, fields=('x', 'name', 'label') of")
    for row in (*range(9), -1, -9):
        found, expected = grown[row], sample(row % 9)
        assert (found.name, found.label) == (expected["name"], expected["label"])
        assert np.array_equal(found.x, expected["x"])
        assert grown.line(row) == row % 9
    assert grown.targets.tolist() == [number % 7 for number in range(9)]
    assert grown.describe(4) == f"{cache.root}: sample 4 (row 1 of cache-000001.tar)"
    assert bytes(grown.record(4, "name")) == b"sample 4"
    assert grown.subset([5, -1]).targets.tolist() == [5, 1]
    assert concat([grown, grown.subset([2])]).targets.tolist()[-2:] == [1, 2]
    with pytest.raises(UsageError, match=r"there is no field 'nam'.*did you mean 'name'"):
        grown.value(0, "nam")
    for row in (9, -10):
        with pytest.raises(IndexError):
            grown[row]


def test_samples_of_a_cache_have_no_path(cache: TinyCache) -> None:
    grown = cache.dataset()
    with pytest.raises(UsageError, match="samples of a growing cache have no path"):
        grown.filename(0)
    with pytest.raises(PacktrainError, match="samples of a growing cache have no path"):
        next(iter(Loader(grown, 2, num_workers=0, fields=("path",))))
    assert next(iter(Loader(grown, 2, num_workers=0, fields=("line",)))).line.tolist() == [0, 1]


def test_other_programs_read_shard_and_index(cache: TinyCache) -> None:
    path = shard_path(cache.root, ".tar", 1)
    names = [f"{number:09d}.{end}" for number in range(3, 7) for end in ("cls", "x.npy", "name.txt")]
    assert output_of("tar", "-tf", path).split() == names
    table = np.load(index_path(cache.root, 1))
    assert table["number"].tolist() == [3, 4, 5, 6] and table["label"].tolist() == [3, 4, 5, 6]
    data = path.read_bytes()
    with tarfile.open(path) as archive:
        for row, member in zip(table, [each for each in archive if each.name.endswith(".txt")], strict=True):
            start, size = row["field.name.offset"], row["field.name.length"]
            assert (member.offset_data, member.size) == (start, size)
            assert data[start : start + size] == b"sample %d" % row["number"]
            assert crc32c(data[start : start + size]) == row["field.name.crc32c"]


# Moving on


def test_a_dataset_moves_to_later_and_earlier_generations(cache: TinyCache) -> None:
    grown = cache.dataset()
    assert grown.advance() == 0 and grown.generation == 0
    cache.grow(5)
    cache.grow(2, drop=2)
    assert grown.advance(1) == 5 and numbers(grown) == list(range(14))
    assert grown.advance() == 2 and (grown.generation, numbers(grown)) == (2, list(range(7, 16)))
    assert grown.advance() == 0
    keeper = cache.dataset()
    assert keeper.advance(0) == 0 and numbers(keeper) == list(range(9))
    assert keeper.advance(2) == 7, "all samples after those of generation 0"
    assert keeper.advance(0) == 0
    assert cache.evict() == [0, 2]
    with pytest.raises(GenerationGone, match=r"generation 1 is no longer there.* Open the cache again"):
        grown.advance(1)
    with pytest.raises(GenerationGone):
        grown.advance(99)
    assert (grown.generation, numbers(grown)) == (2, list(range(7, 16)))
    for wrong in (-1, "1", 1.5, True):
        with pytest.raises(UsageError, match="generation="):
            grown.advance(wrong)  # type: ignore[arg-type]
    assert grown.advance(np.int64(0)) == 0  # type: ignore[arg-type]


def test_samples_that_came_and_went_between_two_looks_are_not_new(cache: TinyCache) -> None:
    grown = cache.dataset()
    cache.grow(3, 3, drop=0)
    cache.grow(2, drop=4)
    assert grown.advance() == 5, "9 to 11 were never in reach of this dataset"
    assert numbers(grown) == list(range(12, 17))


@pytest.mark.parametrize("fields", [FIELDS, ("label",), ("name",)], ids=str)
def test_the_former_generation_is_let_go_of_at_once(cache: TinyCache, fields: tuple[str, ...]) -> None:
    with uncollected():
        grown = cache.dataset(fields)
        grown[0]
        cache.grow(2)
        grown.advance()
        assert cache.evict() == [1]
        part = grown.subset([0])
        both = concat([part, grown])
        other = grown.with_transform(None)
        alike = copy.copy(grown)
        assert (part[0], both[0]) is not None
        cache.grow(1, drop=3)
        assert grown.advance() == 1
        for _ in range(3):
            assert cache.evict() == [1, 2]
            assert part.label(0) == 0, "a subset stays with the generation that it was made of"
            assert both.label(len(both) - 1) == other.label(-1) == alike.label(-1)
        del part, both, other
        assert alike.advance() == 1
        assert cache.evict() == [2]
        assert not [path for path in os.listdir(cache.root / SHARDS) if "000000" in path]


def test_pairs_let_go_of_their_generation_too(memory_path: Path) -> None:
    packed = open_dataset(make_dataset(memory_path / "packed"))
    cache = copy_of(packed, memory_path / "cache", 3)
    with uncollected():
        for fields in (None, (*SCHEMA.names, "label", "crop")):
            grown = cache.dataset(fields, transform=[RandomResizedCrop(8), RandomHorizontalFlip()])
            grown[0]
            cache.publish()
            grown.advance()
            assert cache.evict() == [grown.generation]


def test_a_generation_that_is_gone_says_so(cache: TinyCache) -> None:
    grown = cache.dataset()
    opened = grown[0]
    grown.store.release()
    cache.grow(1)
    cache.evict()
    for use in (lambda: grown[0], lambda: grown.targets, lambda: grown.label(3), lambda: grown.record(1, "x")):
        with pytest.raises(GenerationGone, match=r"generation 0 is no longer there.* Open the cache again"):
            use()
    assert grown.line(3) == 3 and grown.describe(3).endswith("sample 3") and opened.name == "sample 0"
    assert grown._samples.will_need(3) == 0
    assert grown.advance() == 1
    assert numbers(grown) == list(range(10))


def test_how_long_states_keep_a_generation_is_checked_and_copied(cache: TinyCache) -> None:
    grown = cache.dataset()
    grown.keep_generation = 60
    assert grown.with_transform(None).keep_generation == 60
    for wrong in (-1, float("nan"), "60", 1e12):
        with pytest.raises(UsageError, match="keep_generation="):
            grown.keep_generation = wrong  # type: ignore[assignment]
    assert grown.keep_generation == 60


def test_before_the_first_generation_there_is_none(memory_path: Path) -> None:
    cache = TinyCache(memory_path / "cache")
    with pytest.raises(GenerationGone, match=r"no generation yet: nothing has been written. Start a filler"):
        cache.dataset()


@pytest.mark.parametrize("again", [0, 1, 2], ids=["nothing", "as many generations", "more generations"])
def test_a_cache_that_was_replaced_is_not_read_on(memory_path: Path, again: int) -> None:
    cache = TinyCache(memory_path / "cache")
    cache.grow(3)
    grown = cache.dataset()
    sent = pickle.dumps(grown)
    assert grown[2].label == 2
    cache.root.rename(memory_path / "before")
    expected: Any = (NotADataset, "no growing cache")
    if again:
        other = TinyCache(cache.root)
        for _ in range(again):
            other.grow(2, 2)
        expected = (GenerationGone, r"has been removed and filled anew.*Open the cache again")
    for use in (grown.advance, lambda: pickle.loads(sent)):
        with pytest.raises(expected[0], match=expected[1]):
            use()
    assert grown[2].label == 2, "what was read until now can be read on"


# The race between looking for a generation and leasing it


@pytest.mark.parametrize("times", [1, 3])
def test_a_generation_that_is_replaced_while_it_is_opened(
    cache: TinyCache, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    opened, left = GenerationStore.open, [times]

    def late(files: CacheFiles, number: int) -> GenerationStore:
        if left[0]:
            left[0] -= 1
            cache.grow(1)
            assert retire(cache.root, number)
        return opened(files, number)

    monkeypatch.setattr(GenerationStore, "open", late)
    assert cache.dataset().generation == times


# Processes


@START_METHODS
def test_a_plain_dataloader_reads_a_generation(cache: TinyCache, method: str) -> None:
    grown = cache.dataset()
    grown[0]
    loader = DataLoader(
        grown, 3, num_workers=2, multiprocessing_context=method, persistent_workers=True, collate_fn=list
    )
    for _ in range(2):
        assert [each.name for batch in loader for each in batch] == [f"sample {number}" for number in range(9)]
    # The workers live, and have leases of their own.
    cache.grow(1, drop=1)
    grown.advance()
    assert cache.evict() == [0, 1]
    assert [each.label for batch in loader for each in batch] == list(range(7)), "they stay with their generation"
    del loader
    gc.collect()
    assert cache.evict() == [1]


def test_a_pickled_dataset_takes_its_lease_when_it_is_first_used(cache: TinyCache) -> None:
    grown = cache.dataset()
    sent = pickle.dumps(grown)
    first, second = pickle.loads(sent), pickle.loads(sent)
    del grown
    assert numbers(first) == list(range(9))
    cache.grow(1)
    assert cache.evict() == [0, 1]
    del first
    gc.collect()
    assert cache.evict() == [1]
    with pytest.raises(GenerationGone):
        second[0]


# Caches and datasets


def test_a_cache_is_not_opened_as_a_dataset(cache: TinyCache) -> None:
    with pytest.raises(NotADataset, match=r"a growing cache, not a packed dataset.*packtrain.GrowingCache"):
        open_dataset(cache.root)


def test_a_dataset_is_not_opened_as_a_cache(memory_path: Path) -> None:
    packed = make_dataset(memory_path / "packed")
    with pytest.raises(NotADataset, match=r"is a packed dataset, not a growing cache.*packtrain.open_dataset"):
        CacheFiles(packed)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_elses_cache_is_read_and_not_changed(cache: TinyCache) -> None:
    for folder in (cache.root.parent, cache.root):
        folder.chmod(0o755)
    before = generation_path(cache.root, 0).stat()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            grown = cache.dataset()
            assert numbers(grown) == list(range(9))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert generation_path(cache.root, 0).stat().st_mtime_ns == before.st_mtime_ns
