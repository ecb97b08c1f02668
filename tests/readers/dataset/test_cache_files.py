"""Laws of the files of a growing cache: damage is named, forgeries end in errors, and few files are open at a time."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers.growing import FIELDS, TinyCache, held_in, numbers, uncollected
from helpers.support import flip, soon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain import concat
from packtrain._core.document import dump_document
from packtrain._core.generations import (
    GENERATIONS,
    REMEDY,
    SHARDS,
    Generation,
    generation_path,
    index_path,
    shard_path,
)
from packtrain._core.manifest import CACHE
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import newest
from packtrain.errors import (
    CorruptFile,
    CorruptRecord,
    DatasetError,
    UsageError,
)

IOS = pytest.mark.parametrize("io", ["mmap", "pread"])


@pytest.fixture
def cache(memory_path: Path) -> TinyCache:
    """Three shards of 3, 4 and 2 samples."""
    made = TinyCache(memory_path / "cache")
    made.grow(3, 4, 2)
    return made


# Damage


@IOS
def test_a_damaged_record_is_named(cache: TinyCache, io: str) -> None:
    table = np.load(index_path(cache.root, 1))
    flip(shard_path(cache.root, ".tar", 1), int(table["field.name.offset"][2]))
    grown = cache.dataset(io=io)
    message = rf"{cache.root}: field name of sample 5 \(row 2 of cache-000001.tar\) is damaged: crc32c is .*{REMEDY}"
    for use in (lambda: grown[5], lambda: grown.record(5, "name")):
        with pytest.raises(CorruptRecord, match=message) as caught:
            use()
        assert (caught.value.line, caught.value.file) == (5, f"{SHARDS}/cache-000001.tar")
    assert numbers(grown.subset([4, 6])) == [4, 6]  # type: ignore[arg-type]
    assert cache.dataset(io=io, check=False)[5].name != "sample 5"


DAMAGE = ("cut", "grown", "emptied", "huge", "removed", "fifo", "folder", "loop", "endless")


def harm(path: Path, damage: str) -> None:
    size = path.stat().st_size
    sizes = {"cut": size - 8, "grown": size + 8, "emptied": 0, "huge": 1 << 40}
    if damage in sizes:
        os.truncate(path, sizes[damage])
    elif damage in ("header", "content"):
        flip(path, 20 if damage == "header" else -8)
    else:
        path.unlink()
        if damage in ("loop", "endless"):
            path.symlink_to(path.name if damage == "loop" else "/dev/zero")
        elif damage != "removed":
            (os.mkfifo if damage == "fifo" else os.mkdir)(path)


@pytest.mark.parametrize("damage", [*DAMAGE, "header", "content"])
@pytest.mark.parametrize("most", [1 << 16, 0], ids=["mapped", "copied"])
def test_a_damaged_index_is_named_and_never_waited_for(
    cache: TinyCache, damage: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packtrain._readers.dataset.cache_files.descriptor_budget", lambda: most)
    path = index_path(cache.root, 1)
    harm(path, damage)
    grown = cache.dataset()
    assert numbers(grown.subset([0, 7])) == [0, 7]  # type: ignore[arg-type]
    for use in (lambda: grown[3], lambda: grown.targets):
        with soon(), pytest.raises(CorruptFile) as caught:
            use()
        assert str(path) in str(caught.value) and REMEDY in str(caught.value)
        assert caught.value.file == f"{SHARDS}/{path.name}"
    assert grown.describe(3).endswith("sample 3")


@pytest.mark.parametrize("damage", DAMAGE)
@IOS
def test_a_damaged_shard_is_named_and_never_waited_for(cache: TinyCache, damage: str, io: str) -> None:
    harm(shard_path(cache.root, ".tar", 1), damage)
    grown = cache.dataset(io=io)
    assert numbers(grown.subset([0, 7])) == [0, 7]  # type: ignore[arg-type]
    with soon(), pytest.raises(CorruptFile, match=r"sample 3 \(row 0 of cache-000001.tar\) cannot be read") as caught:
        grown[3]
    assert caught.value.file == f"{SHARDS}/cache-000001.tar" and "delete its folder" in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=2 * settings().max_examples)
@given(st.data())
def test_a_forged_index_ends_in_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whoever forges an index forges the checksum, too."""
    cache = TinyCache(tmp_path_factory.mktemp("growing") / "cache")
    cache.grow(3)
    path = index_path(cache.root, 0)
    content = bytearray(path.read_bytes())
    dtype = np.load(path).dtype
    start = len(content) - 3 * dtype.itemsize
    table = np.frombuffer(content, dtype, 3, start)
    name = data.draw(st.sampled_from([each for each in dtype.names if each != "label"]))
    kind = np.iinfo(dtype[name])
    table[name][data.draw(st.integers(0, 2))] = data.draw(st.integers(int(kind.min), int(kind.max)))
    path.write_bytes(content)
    _forge(cache.root, {"index_crc32c": [crc32c(content)]})
    for io in ("mmap", "pread"):
        grown = cache.dataset(io=io)
        for row in range(3):
            # What was not changed is read; anything else is noticed.
            with suppress(DatasetError):
                found = grown[row]
                assert (found.name, found.label) == (f"sample {row}", row)


def test_an_index_of_other_columns_is_refused(cache: TinyCache) -> None:
    path = index_path(cache.root, 1)
    data = path.read_bytes().replace(b"'field.x.offset'", b"'field.y.offset'")
    path.write_bytes(data)
    _forge(cache.root, {"index_crc32c": [crc32c(index_path(cache.root, number).read_bytes()) for number in range(3)]})
    with pytest.raises(CorruptFile, match="its header is not that of 4 samples of this cache"):
        cache.dataset()[5]


def _forge(root: Path, change: dict[str, Any]) -> None:
    """Changes generation 0, and gives it a sound checksum."""
    path = generation_path(root, 0)
    body = json.loads(path.read_bytes())
    del body["checksum"]
    path.write_bytes(dump_document(body | change))


def test_a_generation_of_other_samples_than_the_index_is_refused(cache: TinyCache) -> None:
    _forge(cache.root, {"first_sample": 1})
    with pytest.raises(CorruptFile, match=r"cache-000001.index.npy is damaged: it does not hold the samples from 4 on"):
        cache.dataset()[5]


def test_a_generation_whose_index_would_be_endless_is_refused(cache: TinyCache) -> None:
    _forge(cache.root, {"records": [1 << 50, 4, 2]})
    with soon(), pytest.raises(CorruptFile, match="samples are too many for one shard"):
        cache.dataset()[5]


# Limits


@IOS
def test_threads_read_while_shards_are_forgotten(memory_path: Path, io: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # So few may be open that threads close each other's shards, too.
    monkeypatch.setattr("packtrain._readers.dataset.cache_files.descriptor_budget", lambda: 4)
    cache = TinyCache(memory_path / "cache")
    cache.grow(*[2] * 12)
    grown = cache.dataset(io=io)
    problems: list[BaseException] = []
    done = threading.Event()

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            while not done.is_set():
                row = int(random.integers(0, 24))
                assert bytes(grown.record(row, "name")) == b"sample %d" % row
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        end = time.monotonic() + 0.4
        while time.monotonic() < end and not problems:
            grown.store.opened.forget(7)
            grown.store.opened.forget(100)
    finally:
        sys.setswitchinterval(switching)
        done.set()
        for thread in threads:
            thread.join()
    assert not problems


@pytest.mark.parametrize("left", [True, False], ids=["another one is left", "none is left"])
def test_a_shard_that_another_thread_closes_first_is_no_problem(
    cache: TinyCache, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raced(dict[int, Any]):
        """Loses its first key, or all of them, whenever somebody looks for it."""

        def __iter__(self) -> Iterator[int]:
            found = list(super().keys())
            self.pop(found[0])
            return iter(found[:1] if left else ())

    files = CacheFiles(cache.root)
    files.opened = Raced()  # type: ignore[misc]
    monkeypatch.setattr("packtrain._readers.dataset.shards.descriptor_budget", lambda: 1)
    store = newest(files)
    for row in (0, 3, 7, 0):
        assert bytes(store.record(row, "name")) == b"sample %d" % row


def test_forgotten_shards_are_closed(cache: TinyCache) -> None:
    grown = cache.dataset()
    with uncollected():
        numbers(grown)
        cache.grow(1, drop=2)
        grown.advance()
        held = held_in(cache.root / SHARDS)
    assert not [path for path in held if "000000" in path or "000001" in path]
    assert [path for path in held if path.endswith("cache-000002.tar")]


def test_nothing_is_held_once_a_dataset_is_dropped(cache: TinyCache) -> None:
    with uncollected():
        grown = cache.dataset((*FIELDS,))
        numbers(grown)
        part = concat([grown.subset([0, 5]), grown.with_transform(None)])
        assert part[0].label == 0
        del grown
        assert held_in(cache.root)
        del part
        assert held_in(cache.root) == []


def test_generations_of_many_shards_are_opened_without_looking_at_them(memory_path: Path) -> None:
    """The time that an epoch's change takes hardly depends on the number of shards."""
    cache = TinyCache(memory_path / "cache")
    cache.grow(1)
    cache.publish([(1, 1 << 20, 0)] * 5000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    grown = cache.dataset()
    assert len(grown) == 5001 and grown[0].label == 0
    assert len(held_in(cache.root)) <= 3 and before >= 0
    assert Generation.load(cache.root, 1).end_sample == 5001


# Other files


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize(
    "name",
    [
        CACHE,
        SHARDS,
        GENERATIONS,
        "shards/cache-000000.index.npy",
        "shards/cache-000000.tar",
        "generations/00000000.json",
    ],
)
def test_a_link_leads_nowhere_else(cache: TinyCache, name: str, io: str) -> None:
    """What a stranger's cache links to is not read, and is not locked."""
    path = cache.root / name
    target = cache.root.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(DatasetError, match="put the file itself there"):
        newest(CacheFiles(cache.root, io)).field("x").read(0)
    path.unlink()
    target.rename(path)
    assert cache.dataset()[0].label == 0


def test_the_folder_of_a_cache_may_be_reached_by_a_link(cache: TinyCache) -> None:
    link = cache.root.with_name("link")
    link.symlink_to(cache.root)
    assert newest(CacheFiles(link)).label(0) == 0


def test_io_and_cache_json_are_checked(cache: TinyCache) -> None:
    with pytest.raises(UsageError, match="io="):
        CacheFiles(cache.root, "mmapp")
    flip(cache.root / CACHE, 30)
    with pytest.raises(CorruptFile, match=REMEDY):
        CacheFiles(cache.root)
