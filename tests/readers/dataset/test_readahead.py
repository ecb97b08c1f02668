"""Read-ahead brings in what comes next and nothing else, and falls silent where nothing has to be read."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.memory import disk_factory
from helpers.support import packed, param_id, picture
from hypothesis import given
from hypothesis import strategies as st

from packtrain import PackOptions, concat, open_dataset, pack
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset import readahead
from packtrain._readers.dataset.readahead import ReadAhead
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import CorruptFile, CorruptRecord

PAGE = mmap.PAGESIZE


tmp_path_factory = disk_factory


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six records of 300 KB, in three shards; they are longer than what Linux reads ahead by default."""
    folder = tmp_path_factory.mktemp("readahead")
    for number in range(6):
        picture(number, 400, 250).save(folder / f"{number}.png")
    (folder / "list").write_text("".join(f"{number}.png {number}\n" for number in range(6)))
    options = PackOptions(store=StoreOptions("raw"), shard_size=700_000, seed=None)
    pack(folder / "list", folder / "out", options)
    store = RecordStore(folder / "out")
    assert len(store.manifest.shards) == 3 and store.index["length"].min() > 2 * 128 * 1024
    return folder / "out"


@pytest.fixture(params=["mmap", "pread"])
def cold(request: pytest.FixtureRequest, dataset: Path) -> RecordStore:
    """A store of which no record is in memory."""
    forget(dataset)
    return RecordStore(dataset, io=request.param)


def forget(dataset: Path) -> None:
    """Drops all shards from memory; the test is skipped where they cannot be."""
    for path in dataset.glob("*.tar"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if any(resident(path)):
            pytest.skip(f"the file system of {path} keeps files in memory: set TMPDIR to a folder on a disk")


def resident(path: Path) -> list[bool]:
    """For each page of a file, whether it is in memory, whole."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        first = ctypes.c_char.from_buffer(pages)
        found = (ctypes.c_ubyte * (-(-len(pages) // PAGE)))()
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(pages)), found)
        del first
        assert not failed, os.strerror(ctypes.get_errno())
    return [bool(page & 1) for page in found]


def expected(store: RecordStore, rows: Sequence[int]) -> dict[str, list[bool]]:
    """The value of `in_memory` when these records alone are in memory."""
    pages = {name: [False] * len(found) for name, found in in_memory(store).items()}
    for row in rows:
        shard, offset, size = (int(store.index[column][row]) for column in ("shard", "offset", "length"))
        for page in range(offset // PAGE, (offset + size - 1) // PAGE + 1):
            pages[store.manifest.shards[shard].name][page] = True
    return pages


def in_memory(store: RecordStore) -> dict[str, list[bool]]:
    return {shard.name: resident(store.path / shard.name) for shard in store.manifest.shards}


def settled(store: RecordStore, wanted: dict[str, list[bool]]) -> dict[str, list[bool]]:
    """The value of `in_memory` once reading is over."""
    deadline = time.monotonic() + 20
    while (found := in_memory(store)) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("rows", [[0], [1, 4], [5, 0, 2]], ids=param_id)
def test_the_records_asked_for_come_into_memory_and_no_page_besides(cold: RecordStore, rows: list[int]) -> None:
    wanted = expected(cold, rows)
    assert [cold.field("image").will_need(row) for row in rows] == cold.index["length"][rows].tolist()
    assert settled(cold, wanted) == wanted


def test_reading_records_that_were_asked_for_reads_nothing_besides(cold: RecordStore) -> None:
    rows = [3, 0, 5]
    wanted = expected(cold, rows)
    for row in ReadAhead(cold.field("image").will_need).through(rows):
        cold.record(row)
    assert settled(cold, wanted) == wanted


def test_rows_of_subsets_and_concatenations_are_those_of_their_stores(dataset: Path) -> None:
    forget(dataset)
    one = open_dataset(dataset)
    both = concat([one.subset([4, 1]), one])
    wanted = expected(one.store, [1, 3])
    assert [both._samples.will_need(row) for row in (1, 2 + 3)] == one.store.index["length"][[1, 3]].tolist()
    assert settled(one.store, wanted) == wanted


def test_nothing_is_asked_for_while_everything_is_in_memory_and_everything_when_it_no_longer_is(
    cold: RecordStore,
) -> None:
    asked: list[int] = []

    def will_need(row: int) -> int:
        asked.append(row)
        return cold.field("image").will_need(row)

    def one_pass() -> list[int]:
        """Reads all records; returns which were asked for."""
        asked.clear()
        for row in ahead.through(rows):
            cold.record(row)
        return list(asked)

    ahead, rows = ReadAhead(will_need), [5, 2, 0, 1, 4, 3]
    assert one_pass() == rows, "what is in memory is not known at first"
    assert one_pass() == rows, "something was read"
    assert one_pass() == one_pass() == []
    cold.close()
    forget(cold.path)
    assert one_pass() == [], "that something has to be read is seen when it is read"
    assert one_pass() == rows
    assert one_pass() == []


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize(("offset", "size"), [(-4096, 10), (1 << 40, 10), (0, 1 << 40), (0, -1), ((1 << 63) - 1, 1)])
def test_a_record_outside_its_shard_is_for_record_to_complain_of(
    dataset: Path, io: str, offset: int, size: int
) -> None:
    store = RecordStore(dataset, io=io)
    records = store.records("image")
    records._offset, records._size = (np.array([number] * 6).data for number in (offset, size))
    assert store.field("image").will_need(0) == 0
    with pytest.raises(CorruptRecord, match="outside the shard"):
        store.record(0)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_missing_shard_is_for_record_to_complain_of(images: Path, tmp_path: Path, io: str) -> None:
    store = RecordStore(packed(images, tmp_path / "out", "tar"), io=io)
    (store.path / store.manifest.shards[0].name).unlink()
    assert [*ReadAhead(store.field("image").will_need).through(range(12))] == [*range(12)]
    with pytest.raises(CorruptFile, match="cannot be opened"):
        store.record(0)


@pytest.mark.parametrize("row", [6, -7, 1 << 70])
def test_a_row_that_does_not_exist_is_for_record_to_complain_of(dataset: Path, row: int) -> None:
    one = open_dataset(dataset)
    for rows in (one, one.subset(range(6)), concat([one])):
        assert rows._samples.will_need(row) == 0
        with pytest.raises(IndexError):
            rows.record(row)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_system_that_refuses_does_not_keep_a_record_from_being_read(
    dataset: Path, io: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("packtrain._readers.dataset.shards._pieces", refuse)
    store = RecordStore(dataset, io=io)
    assert store.field("image").will_need(0) == 0
    assert len(store.record(0)) == store.index["length"][0]


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(0, 300))
def test_every_row_is_asked_for_once_before_it_comes_and_no_more_than_the_window_at_a_time(
    sizes: list[int], window: int
) -> None:
    asked: list[int] = []

    def will_need(row: int) -> int:
        asked.append(row)
        return sizes[row]

    for number, row in enumerate(ReadAhead(will_need, window).through(range(len(sizes)))):
        assert row == number
        assert asked == [*range(len(asked))]
        held = [sizes[row] for row in asked[number:]]
        assert len(held) >= 2 or number == len(sizes) - 1, "the next one is always asked for"
        assert len(held) <= 2 or sum(held[:-1]) < window
        assert len(asked) == len(sizes) or sum(held) >= window
    assert len(asked) == len(sizes)


@given(st.lists(st.booleans(), max_size=20))
def test_rows_are_asked_for_exactly_if_something_was_read_since_the_last_time(reads: list[bool]) -> None:
    count = 0
    asked: list[int] = []

    def will_need(row: int) -> int:
        asked.append(row)
        return 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readahead, "_blocks_read", lambda: count)
        ahead = ReadAhead(will_need)
        for read, silent in zip(reads, [False, *(not read for read in reads)], strict=False):
            asked.clear()
            assert [*ahead.through(range(3))] == [0, 1, 2]
            assert asked == ([] if silent else [0, 1, 2])
            count += 8 * read
