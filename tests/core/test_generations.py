"""Laws of a cache's files: what was published comes back, and no file, however made, is trusted or waited for."""

from __future__ import annotations

import fcntl
import io
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.damage import forge
from helpers.samples import schemas
from helpers.support import soon, spoil
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain._core import generations
from packtrain._core.errors import (
    CorruptFile,
    GenerationGone,
    NotADataset,
    UnreadableFile,
    UnsupportedVersion,
)
from packtrain._core.generations import (
    GENERATIONS,
    REMEDY,
    CacheInfo,
    Generation,
    GenerationLease,
    generation_numbers,
    generation_path,
    index_bytes,
    index_dtype,
    promise,
    promised,
    retire,
)
from packtrain._core.manifest import CACHE
from packtrain._core.opening import open_regular
from packtrain._core.options import LabelSpec
from packtrain._core.schema import Field, Schema
from packtrain._core.typed import MOST

SMALL = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
COUNTS = st.integers(0, 1 << 40)
SHARD = st.tuples(st.integers(1, 1 << 40), COUNTS, st.integers(0, 0xFFFFFFFF))
GENERATION = Generation(17, 1, 3, 40, (5, 6), (700, 800), (1, 2))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a cache with generation 17."""
    (tmp_path / GENERATIONS).mkdir()
    info_of(Schema((Field("x", "array", dtype="<f4", shape=(3,)),), LabelSpec("int"))).save(tmp_path)
    GENERATION.publish(tmp_path)
    return tmp_path


def info_of(schema: Schema) -> CacheInfo:
    return CacheInfo("0" * 32, "tar", schema.fields, schema.labels)


@SMALL
@given(st.integers(0, 1 << 60), st.integers(-(1 << 60), 1 << 60), COUNTS, COUNTS, st.lists(SHARD, min_size=1))
def test_a_published_generation_comes_back(
    tmp_path_factory: pytest.TempPathFactory, number: int, time_ns: int, shard: int, sample: int, shards: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("cache")
    (root / GENERATIONS).mkdir()
    records, sizes, sums = zip(*shards, strict=True)
    published = Generation(number, time_ns, shard, sample, records, sizes, sums)
    published.publish(root)
    assert generation_numbers(root) == [number]
    assert Generation.load(root, number) == published
    assert published.end_shard == shard + len(records) and published.end_sample == sample + sum(records)


@given(st.lists(SHARD, min_size=1), st.data())
def test_a_generation_without_its_oldest_shards_ends_where_it_did(shards: list[Any], data: st.DataObject) -> None:
    whole = Generation(1, 2, 3, 4, *zip(*shards, strict=True))
    count = data.draw(st.integers(0, len(shards)))
    rest = whole.without_oldest(count)
    assert (rest.end_shard, rest.end_sample) == (whole.end_shard, whole.end_sample)
    assert (rest.first_shard, rest.records) == (3 + count, whole.records[count:])


@SMALL
@given(schemas())
def test_the_description_of_a_cache_comes_back(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> None:
    root = tmp_path_factory.mktemp("cache")
    info = info_of(schema)
    info.save(root)
    assert CacheInfo.load(root) == info and CacheInfo.load(root).schema == schema
    with pytest.raises(FileExistsError):
        info.save(root)


@given(schemas(), st.integers(0, 5))
def test_numpy_reads_an_index_and_its_columns_are_aligned(schema: Schema, rows: int) -> None:
    dtype = index_dtype(schema)
    table = np.frombuffer(np.random.default_rng(0).bytes(rows * dtype.itemsize), dtype)
    data = index_bytes(table)
    found = np.load(io.BytesIO(data))
    assert found.dtype.names == dtype.names and len(found) == rows
    start = len(data) - table.nbytes
    assert start % 64 == 0
    for name in dtype.names or ():
        assert found[name].tobytes() == table[name].tobytes()
        assert dtype.fields is not None
        kind, offset = dtype.fields[name][:2]
        assert (start + offset) % kind.base.itemsize == 0, name
        # How readers get plain numbers.
        if rows and not kind.subdtype and table[name].dtype.isnative:
            assert table[name].data[0] == table[name][0].item()


def test_an_index_of_many_columns_has_a_longer_header() -> None:
    fields = tuple(Field(f"{'f' * 50}{number}", "mask", encoding="png", dtype="|u1") for number in range(300))
    table = np.zeros(2, index_dtype(Schema(fields, LabelSpec("none"))))
    data = index_bytes(table)
    assert data[6:8] == b"\x02\x00"
    assert np.load(io.BytesIO(data), max_header_size=len(data)).dtype.names == table.dtype.names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": 18}, "it says that it is generation 18"),
        ({"number": -1}, "number: expected a whole number from 0, found -1"),
        ({"records": [5]}, "it has 1 records, 2 bytes, 2 index_crc32c"),
        ({"records": [5, 0]}, "shard 4 has no sample"),
        ({"records": [5, True]}, r"records\[1\]: expected a whole number from 0, found true"),
        ({"records": [5, MOST]}, "its numbers are too large"),
        ({"first_shard": MOST}, "its numbers are too large"),
        ({"bytes": [MOST, 1]}, "its numbers are too large"),
        ({"bytes": [1.0, 1]}, r"bytes\[0\]: expected a whole number from 0, found 1.0"),
        ({"index_crc32c": [0, 1 << 32]}, r"index_crc32c\[1\]: expected a whole number"),
        ({"records": [], "bytes": [], "index_crc32c": []}, "it has no shard"),
        ({"more": 1}, 'has an unknown key "more"'),
    ],
    ids=str,
)
def test_a_forged_generation_is_refused(root: Path, change: dict[str, Any], message: str) -> None:
    path = generation_path(root, 17)
    forge(path, lambda body: body.update(change))
    with pytest.raises(CorruptFile, match=message) as caught:
        Generation.load(root, 17)
    assert caught.value.file == f"{GENERATIONS}/00000017.json"
    assert str(path) in str(caught.value) and "delete this file" in str(caught.value)


FIELD = asdict(Field("x", "array", dtype="<f4", shape=(3,)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "x"}, "id: expected 32 hexadecimal digits"),
        ({"format": "zip"}, "format: expected one of"),
        ({"labels": "many"}, "labels: labels='many'"),
        ({"fields": []}, "a dataset without a field"),
        ({"fields": [FIELD, FIELD]}, "two fields are called x"),
        ({"fields": [FIELD | {"dtype": "<O8"}]}, "arrays of <O8 cannot be stored"),
        ({"fields": [FIELD | {"name": "../x"}]}, r"fields\[0\].name: expected a name"),
        ({"fields": [FIELD | {"name": "label"}]}, "it is reserved"),
        ({"fields": [FIELD | {"bytes": 3}]}, r'fields\[0\]: has an unknown key "bytes"'),
        ({"fields": [FIELD | {"missing": 3}]}, r'fields\[0\]: has an unknown key "missing"'),
    ],
    ids=str,
)
def test_a_forged_description_is_refused(root: Path, change: dict[str, Any], message: str) -> None:
    forge(root / CACHE, lambda body: body.update(change))
    with pytest.raises(CorruptFile, match=message) as caught:
        CacheInfo.load(root)
    assert caught.value.file == CACHE and REMEDY in str(caught.value)


@pytest.mark.parametrize("damage", ["pipe", "folder", "device", "loop", "huge", "empty", "nested"])
@pytest.mark.parametrize("which", ["cache", "generation"])
def test_a_damaged_document_is_named_and_never_waited_for(root: Path, damage: str, which: str) -> None:
    path = root / CACHE if which == "cache" else generation_path(root, 17)
    load = CacheInfo.load if which == "cache" else partial(Generation.load, number=17)
    if damage == "nested":
        path.write_bytes(b"[" * 100_000)
    else:
        spoil(path, damage)
    with soon(), pytest.raises(CorruptFile) as caught:
        load(root)
    assert str(path) in str(caught.value) and "delete" in str(caught.value)
    assert caught.value.file == str(path.relative_to(root))


@pytest.mark.parametrize("load", [CacheInfo.load, lambda root: Generation.load(root, 17)])
def test_a_newer_version_asks_for_a_newer_packtrain(root: Path, load: Callable[[Path], object]) -> None:
    for path in (root / CACHE, generation_path(root, 17)):
        forge(path, lambda body: body.update(version=2))
    with pytest.raises(UnsupportedVersion, match="pip install -U packtrain"):
        load(root)


def test_names_that_no_filler_gives_are_no_generations(root: Path) -> None:
    for name in ("000000018.json", "0000019.json", "٠٠٠٠٠٠٢٠.json", f"{'9' * 19}.json", f"{'9' * 200}.json", "x.json"):
        (root / GENERATIONS / name).touch()
    Generation(123456789, 1, 0, 0, (1,), (1,), (1,)).publish(root)
    assert generation_numbers(root) == [17, 123456789]


def test_generations_that_are_no_folder_are_damage(tmp_path: Path) -> None:
    assert generation_numbers(tmp_path) == []
    (tmp_path / GENERATIONS).touch()
    with pytest.raises(CorruptFile, match=GENERATIONS):
        generation_numbers(tmp_path)


def test_what_is_no_cache_is_told_from_one(tmp_path: Path) -> None:
    with pytest.raises(NotADataset, match="not a growing cache, or nothing has been written"):
        CacheInfo.load(tmp_path)
    with pytest.raises(NotADataset, match=r"no such folder. `packtrain fill` makes one"):
        CacheInfo.load(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(NotADataset, match="is a file, but a growing cache is a folder"):
        CacheInfo.load(tmp_path / "file")


# Leases, promises, retiring


def test_a_generation_stays_while_it_is_leased_or_promised(root: Path) -> None:
    first, second = GenerationLease(root, 17), GenerationLease(root, 17)
    first.close()
    assert not retire(root, 17)
    second.close()
    assert promise(root, 17, time.time() + 60)
    assert promise(root, 17, time.time() + 1)
    assert generation_path(root, 17).stat().st_mtime > time.time() + 50, "a promise was shortened"
    assert not retire(root, 17)
    os.utime(generation_path(root, 17), (0, 0))
    assert retire(root, 17)
    assert retire(root, 17) and generation_numbers(root) == []
    assert not promise(root, 17, time.time() + 60)
    for use in (GenerationLease, Generation.load):
        with pytest.raises(GenerationGone, match=r"generation 17 is no longer there.* Open the cache again"):
            use(root, 17)


def test_a_clock_that_is_put_back_promises_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = 3 * 86400
    before = time.time() - days
    assert promise(root, 17, time.time() + 60)
    monkeypatch.setattr(time, "time", lambda: before)
    assert not promised(generation_path(root, 17).stat())
    os.utime(generation_path(root, 17))
    assert not promised(generation_path(root, 17).stat()), "it was only written"
    assert retire(root, 17)


def test_a_promise_keeps_to_a_clock_that_is_put_forward(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = time.time() + 60
    assert promise(root, 17, end)
    monkeypatch.setattr(time, "time", lambda: end - 1)
    assert 0.5 < promised(generation_path(root, 17).stat()) <= 1 and not retire(root, 17)
    monkeypatch.setattr(time, "time", lambda: end)
    assert retire(root, 17)


@pytest.mark.parametrize("moment", ["before opening", "before locking"])
def test_a_generation_that_goes_while_it_is_leased_is_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    opened = open_regular

    def removed(path: Path, **options: Any) -> int:
        monkeypatch.undo()
        if moment == "before opening":
            assert retire(root, 17)
            return opened(path, **options)
        descriptor = opened(path, **options)
        assert retire(root, 17)
        return descriptor

    monkeypatch.setattr(generations, "open_regular", removed)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(GenerationGone):
        GenerationLease(root, 17)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lease_waits_for_a_filler_but_not_for_a_stranger(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "_PATIENCE", 0.2)
    with generation_path(root, 17).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with soon(), pytest.raises(UnreadableFile, match=r"another process keeps it locked, `fuser -v .*17.json`"):
            GenerationLease(root, 17)
        with soon(), pytest.raises(UnreadableFile):
            promise(root, 17, time.time() + 60)
        assert not retire(root, 17)
    GenerationLease(root, 17).close()


def test_nobody_is_led_to_another_file_by_a_generation(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    mine = tmp_path_factory.mktemp("mine") / "file"
    mine.write_bytes(generation_path(root, 17).read_bytes())
    os.utime(mine, (0, 0))
    generation_path(root, 17).unlink()
    generation_path(root, 17).symlink_to(mine)
    with pytest.raises(CorruptFile, match="put the file itself there"):
        GenerationLease(root, 17)
    with pytest.raises(CorruptFile):
        promise(root, 17, time.time() + 60)
    with pytest.raises(OSError, match="symbolic"):
        retire(root, 17)
    assert mine.stat().st_mtime == 0


@pytest.mark.parametrize("damage", ["pipe", "folder", "loop"])
def test_a_lease_on_something_else_is_refused(root: Path, damage: str) -> None:
    spoil(generation_path(root, 17), damage)
    with soon(), pytest.raises(CorruptFile, match=r"00000017\.json cannot be read"):
        GenerationLease(root, 17)


def test_a_forked_child_holds_no_lease(root: Path) -> None:
    lease = GenerationLease(root, 17)
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.write(send, b"1" if lease.held else b"0")
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(receive, 1) == b"0"
        assert lease.held and not retire(root, 17)
        lease.close()
        assert retire(root, 17), "an idle child keeps the generation"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(receive)
        os.close(send)
