"""Records in the files of a bounded cache: the same bytes as in the shards, and nothing kept that has gone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers.chunking import CutChunks
from helpers.datasets import make_dataset
from helpers.growing import held_in
from helpers.support import FORMATS, flip, image_set, packed

from packtrain._core.errors import CorruptFile, CorruptRecord, RemoteError
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.image_dataset import PackedDataset
from packtrain._readers.dataset.samples import PackedSamples
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.transforms.batched import Destination
from packtrain._storage.streams import cutting
from packtrain.transforms import RandomHorizontalFlip

ROWS = 60


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few records."""
    monkeypatch.setattr(cutting, "ENOUGH", 5_000)
    monkeypatch.setattr(cutting, "MOST", 8_000)


@pytest.fixture(scope="module", params=FORMATS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards."""
    folder = tmp_path_factory.mktemp("whole")
    return packed(image_set(folder / "images", ROWS), folder / "out", request.param, shard_size=60_000)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_records_are_those_of_the_shards_in_any_order_and_however_few_chunks_are_kept(
    dataset: Path, tmp_path: Path, io: str
) -> None:
    whole = RecordStore(dataset)
    cache = CutChunks(dataset, tmp_path / "cache", most=2)
    assert len(cache.table) > 5
    store = cache.store(io)
    for row in np.random.default_rng(0).permutation(np.repeat(np.arange(ROWS), 3)).tolist():
        assert store.record(row) == whole.record(row)
    assert len(cache.fetched) > 2 * len(cache.table)
    assert store.identity == whole.identity and store.io == io
    assert (store.all_labels() == whole.all_labels()).all()


@pytest.mark.parametrize("format", FORMATS)
def test_every_field_of_a_row_is_read(tmp_path: Path, format: str) -> None:
    whole = RecordStore(make_dataset(tmp_path / "whole", format))
    cache = CutChunks(tmp_path / "whole", tmp_path / "cache")
    store = cache.store()
    for field in whole.schema.names:
        for row in range(len(whole)):
            one, other = whole.field(field).read(row), store.field(field).read(row)
            assert one == other and type(one) is type(other)


WAYS: dict[str, Callable[[RecordStore, int], object]] = {
    "opens another": lambda store, row: store.record(row),
    "is idle": lambda store, row: store.close_unused(),
    # All that it reads is open already.
    "looks ahead": lambda store, row: PackedSamples(store).expect(np.array([row])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_files_that_have_gone_are_closed_by_who(dataset: Path, tmp_path: Path, io: str, way: str) -> None:
    cache = CutChunks(dataset, tmp_path / "cache")
    for chunk in range(len(cache.table)):
        os.close(cache.open(chunk))
    store = cache.store(io)
    *rows, last = store.rows_at(cache.table.bounds[:-1]).tolist()
    for row in rows if way == "opens another" else (*rows, last):
        store.record(row)
    for chunk in range(len(rows)):
        cache.evict(chunk)
    assert len(held_in(tmp_path / "cache" / "chunks")) >= len(rows)
    WAYS[way](store, last)
    assert len(held_in(tmp_path / "cache" / "chunks")) == 1


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_who_waits_for_a_chunk_keeps_no_other(dataset: Path, tmp_path: Path, io: str) -> None:
    cache = CutChunks(dataset, tmp_path / "cache", most=3)
    store = cache.store(io)
    for row in store.rows_at(np.arange(ROWS)).tolist():
        store.record(row)
        assert len(held_in(tmp_path / "cache" / "chunks")) == 1
    assert store.waited_ns > 0


def test_a_view_outlives_its_chunk(dataset: Path, tmp_path: Path) -> None:
    cache = CutChunks(dataset, tmp_path / "cache", most=1)
    store = cache.store("mmap")
    first = store.record(0)
    copy = bytes(first)
    for row in range(ROWS):
        store.record(row)
    assert first == copy


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_an_open_chunk_is_locked_until_it_is_closed(dataset: Path, tmp_path: Path, io: str) -> None:
    cache = CutChunks(dataset, tmp_path / "cache")
    store = cache.store(io)
    store.record(0)
    with cache.file(cache.fetched[0]).open("rb") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        store.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_rows_that_are_read_soon_are_asked_for_once_each_and_only_if_they_are_missing(
    dataset: Path, tmp_path: Path
) -> None:
    cache = CutChunks(dataset, tmp_path / "cache")
    store = cache.store()
    samples = PackedSamples(store)
    samples.expect(np.arange(ROWS))
    assert sorted(cache.asked) == list(range(len(cache.table)))
    cache.asked.clear()
    store.record(3)
    samples.expect(np.array([3, 3, ROWS + 5, -1]))
    assert cache.asked == []
    part = PackedDataset(samples).subset(range(0, ROWS, 7))
    part._samples.expect(np.arange(len(part)))
    rows = np.arange(0, ROWS, 7)
    shards, offsets = (np.asarray(store.index[name])[rows].tolist() for name in ("shard", "offset"))
    missing = {cache.table.find(*place, 0)[0] for place in zip(shards, offsets, strict=True)} - set(cache.fetched)
    assert set(cache.asked) == missing


def test_an_error_names_dataset_row_and_chunk(dataset: Path, tmp_path: Path) -> None:
    cache = CutChunks(dataset, tmp_path / "cache")
    cache.broken = set(range(len(cache.table)))
    store = cache.store()
    with pytest.raises(RemoteError) as caught:
        store.record(7)
    message = str(caught.value)
    for part in ("s3://bucket/set", "row 7", "image 7.jpg", "chunk "):
        assert part in message
    assert "/cache/" not in message


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_chunk_that_the_disk_has_changed_is_fetched_again(dataset: Path, tmp_path: Path, io: str) -> None:
    cache = CutChunks(dataset, tmp_path / "cache")
    store = cache.store(io)
    shard, offset = int(store.index["shard"][5]), int(store.index["offset"][5])
    sound = bytes(store.record(5))
    chunk, position = cache.table.find(shard, offset, 1)
    cache.file(chunk).chmod(0o600)
    flip(cache.file(chunk), position)
    assert store.record(5) == sound and cache.fetched.count(chunk) == 2
    cache.mends = False
    flip(cache.file(chunk), position)
    with pytest.raises(CorruptRecord, match=r"row 5 .* the disk has changed it: `packtrain staged evict "):
        store.record(5)


def test_a_chunk_of_another_size_is_an_error(dataset: Path, tmp_path: Path) -> None:
    cache = CutChunks(dataset, tmp_path / "cache")
    store = cache.store()
    store.record(5)
    store.close()
    os.truncate(cache.file(cache.fetched[0]), 10)
    with pytest.raises(CorruptFile, match=r"row 5 .* has 10 bytes"):
        store.record(5)


def test_lengths_that_cannot_be_are_cut_into_chunks_all_the_same(dataset: Path) -> None:
    store = RecordStore(dataset)
    columns = store.index.field("image")
    changed = columns["length"].copy()
    changed[::2] = (1 << 63) - 1
    columns.check_all()
    columns._arrays["length"] = changed
    bounds = store.chunk_bounds()
    assert bounds[0] == 0 and bounds[-1] == ROWS and (np.diff(bounds) > 0).all()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A dataset of pixels, in several shards."""
    store = StoreOptions("raw", resize="24x24")
    return packed(image_set(tmp_path / "images", ROWS), tmp_path / "out", "tar", store=store, shard_size=30_000)


def copied(store: RecordStore, rows: npt.NDArray[np.int64]) -> tuple[bytes, bytes] | None:
    """Images and labels of some rows, copied in one go; None if that cannot be."""
    samples = PackedSamples(store, [RandomHorizontalFlip()])
    images, labels = np.zeros((len(rows), 24, 24, 3), np.uint8), np.zeros(len(rows), np.int64)
    random = np.random.default_rng(2).random((len(rows), samples.draws))
    into = Destination(images, labels, rows, random, np.arange(len(rows)), memoryview(bytearray(8)).cast("q"))
    return (images.tobytes(), labels.tobytes()) if samples.copy_rows(rows, into) else None


@pytest.mark.parametrize("check", [True, False])
def test_raw_records_are_copied_from_chunks_in_one_go(raw: Path, tmp_path: Path, check: bool) -> None:
    cache = CutChunks(raw, tmp_path / "cache")
    rows = np.random.default_rng(1).permutation(ROWS)
    # Nobody waits for one chunk with others in his hands.
    assert copied(cache.store(check=check), rows) is None and cache.fetched == []
    for chunk in range(len(cache.table)):
        os.close(cache.open(chunk))
    one, other = cache.store(check=check), RecordStore(raw, check=check)
    found = copied(one, rows)
    assert found is not None and any(found[0]) and found == copied(other, rows)
    assert one.read_bytes == other.read_bytes


def test_who_copies_in_one_go_lets_go_of_what_has_gone(raw: Path, tmp_path: Path) -> None:
    """Also if all that it reads is open already."""
    cache = CutChunks(raw, tmp_path / "cache")
    for chunk in range(len(cache.table)):
        os.close(cache.open(chunk))
    store = cache.store()
    assert copied(store, np.arange(ROWS))
    for chunk in range(len(cache.table) - 1):
        cache.evict(chunk)
    for _ in range(len(cache.table)):
        assert copied(store, store.rows_at(cache.table.bounds[-2:-1]))
    assert len(held_in(tmp_path / "cache" / "chunks")) == 1
