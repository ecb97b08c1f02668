"""Laws of `check="first"`: what nobody has found sound is compared, and what somebody has found sound is not."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.chunking import CutChunks
from helpers.growing import TinyCache
from helpers.support import encoded, flip, image_set, packed, picture
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from packtrain import ImageDataset, open_dataset
from packtrain._codec import native
from packtrain._core.generations import index_path, shard_path
from packtrain._core.options import StoreOptions
from packtrain._packer.options import Columns, FieldColumn
from packtrain._readers.dataset.image_dataset import PackedDataset
from packtrain._readers.dataset.sound import SoundRows
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.transforms.batched import Destination
from packtrain.errors import CorruptRecord, UsageError
from packtrain.transforms import CenterCrop

ROWS = 19
SIDE = 8


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number in range(ROWS):
        (folder / f"{number}.png").write_bytes(encoded(picture(number, 12, 10), "PNG"))
    (folder / "train.txt").write_text("".join(f"{number}.png {number}\n" for number in range(ROWS)))
    return packed(folder / "train.txt", folder / "out", "tar", store=StoreOptions("raw"), shard_size=2000)


@pytest.fixture
def folder(raw: Path, tmp_path: Path) -> Path:
    """A dataset that may be damaged."""
    return Path(shutil.copytree(raw, tmp_path / "dataset"))


def harm(dataset: PackedDataset, row: int, field: str = "image") -> None:
    """Changes the last byte of a record; once more, and it is what it was."""
    store = dataset.store
    assert isinstance(store, RecordStore)
    columns = store.index.field(field)
    shard = store.path / store.manifest.shards[int(store.index["shard"][row])].name
    flip(shard, int(columns["offset"][row] + columns["length"][row]) - 1)


def sound(dataset: ImageDataset, row: int) -> bool:
    """True if a record can be read."""
    try:
        dataset.record(row)
    except CorruptRecord:
        return False
    return True


def copied(dataset: PackedDataset, rows: list[int]) -> bool:
    """True if a batch can be copied in one go."""
    count = len(rows)
    images, labels = np.empty((count, SIDE, SIDE, 3), np.uint8), np.empty(count, np.int64)
    places = np.arange(count)
    into = Destination(images, labels, places, np.zeros((count, 0)), places, memoryview(bytearray(8)))
    return dataset._samples.copy_rows(np.array(rows, np.int64), into)


ROW = st.integers(0, ROWS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("harm"), ROW),
        st.tuples(st.just("read"), ROW),
        st.tuples(st.just("copy"), st.lists(ROW, min_size=1, max_size=12)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("check", ["first", True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
# Neighbours in one byte, and a batch of which a part is known.
@example(steps=[("copy", [0, 1, 2, 4, 5, 6, 7]), ("harm", 3), ("read", 3), ("copy", [2, 3]), ("harm", 0), ("read", 0)])
@example(steps=[("read", 9), ("harm", 8), ("copy", [9, 8]), ("read", 8), ("harm", 8), ("harm", 9), ("copy", [8, 9])])
def test_whatever_comes_first(raw: Path, memory_path: Path, check: Any, steps: list[tuple[str, Any]]) -> None:
    """A record that nobody has found sound since the dataset was opened is always compared, and no other one is."""
    folder = Path(shutil.copytree(raw, memory_path / "dataset", dirs_exist_ok=True))
    dataset, damaged, known = open_dataset(folder, CenterCrop(SIDE), check=check), set[int](), set[int]()
    for step, what in steps:
        if step == "harm":
            harm(dataset, what)
            damaged ^= {what}
            continue
        rows = {what} if step == "read" else set(what)
        trusted = {"first": known, True: set(), False: set(range(ROWS))}[check]
        expected = not (rows & damaged) - trusted
        if step == "read":
            assert sound(dataset, what) is expected
        elif native.extension is None:
            continue
        else:
            assert copied(dataset, what) is expected
        # Of a batch that was not copied, nothing is known.
        if expected:
            known |= rows


def test_whoever_opens_it_anew_compares_anew(folder: Path) -> None:
    dataset = open_dataset(folder, check="first")
    assert all(sound(dataset, row) for row in range(ROWS))
    harm(dataset, 5)
    assert sound(dataset, 5) and sound(dataset.with_transform(CenterCrop(SIDE)), 5)
    assert not sound(open_dataset(folder, check="first"), 5)
    assert not sound(pickle.loads(pickle.dumps(dataset)), 5)
    assert sound(dataset, 5)
    store = dataset.store
    assert isinstance(store, RecordStore)
    assert store.check == "first"
    store.close()
    assert [sound(dataset, row) for row in (5, 6)] == [False, True]


def test_a_forked_process_knows_what_this_one_does_and_the_other_way_round(folder: Path) -> None:
    dataset = open_dataset(folder, check="first")
    assert sound(dataset, 5)
    harm(dataset, 5)
    child = os.fork()
    if not child:
        os._exit(0 if sound(dataset, 5) and sound(dataset, 6) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    harm(dataset, 6)
    harm(dataset, 7)
    assert sound(dataset, 6) and not sound(dataset, 7)


def test_each_field_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("image,label,caption\n" + "".join(f"{n}.png,1,text {n}\n" for n in range(3)))
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(number), "PNG"))
    columns = Columns("image", "label", (FieldColumn("caption", "text", "caption", by_path=False),))
    out = packed(tmp_path / "list.csv", tmp_path / "out", "tar", columns=columns)
    dataset = open_dataset(out, check="first", fields=["image", "caption"])
    assert [bytes(dataset.record(row)) for row in range(3)]
    harm(dataset, 1, "caption")
    assert dataset.record(1)
    with pytest.raises(CorruptRecord, match=r"caption .* is damaged"):
        dataset.record(1, "caption")


def test_what_is_known_of_other_records_is_not_believed(folder: Path) -> None:
    """Somebody may have put another dataset into the folder before a process that was started opens it."""
    store = open_dataset(folder).store
    columns, known = store.manifest.columns, {"image": SoundRows(ROWS)}
    reopen, arguments = store.__reduce__()
    assert reopen(*arguments[:-1], (columns, known))._sound == known
    for changed in (columns[:-1], (replace(columns[0], crc32c=columns[0].crc32c ^ 1), *columns[1:])):
        assert reopen(*arguments[:-1], (changed, known))._sound == {}


def test_a_cache_of_chunks_compares_always(tmp_path: Path) -> None:
    """A chunk may go and come again."""
    dataset = packed(image_set(tmp_path / "images"), tmp_path / "out", "tar")
    cache = CutChunks(dataset, tmp_path / "cache")
    one = cache.store(check="first")
    before = bytes(one.record(3))
    chunk, start = cache.table.find(0, int(one.index["offset"][3]), len(before))
    flip(cache.file(chunk), start)
    # The damaged chunk is fetched again.
    fetched = len(cache.fetched)
    assert bytes(one.record(3)) == before and len(cache.fetched) > fetched


def test_a_growing_cache_compares_always(tmp_path: Path) -> None:
    cache = TinyCache(tmp_path / "cache")
    cache.grow(3)
    grown = cache.dataset(check="first")
    assert grown.record(2, "name")
    flip(shard_path(cache.root, ".tar", 0), int(np.load(index_path(cache.root, 0))["field.name.offset"][2]))
    with pytest.raises(CorruptRecord):
        grown.record(2, "name")


@pytest.mark.parametrize("check", ["once", "", 1, None, b"first", ["first"]])
def test_other_values_are_refused(raw: Path, check: Any) -> None:
    with pytest.raises(UsageError, match=r'check=.*: expected True, False or "first"'):
        open_dataset(raw, check=check)


def test_numpy_flags_are_flags(raw: Path) -> None:
    assert open_dataset(raw, check=np.False_).store.check is False  # type: ignore[arg-type]
    assert open_dataset(raw).store.check is True


def test_rows_are_bits() -> None:
    rows = SoundRows(100_000_000)
    for row in (0, 7, 8, 99_999_999):
        assert not rows.of(np.array([row]))[0]
        rows.add(np.array([row, row]))
        assert rows.bits[row // 8] >> row % 8 & 1
    assert rows.of(np.array([0, 1, 6, 7, 8, 9, 99_999_998, 99_999_999])).tolist() == [1, 0, 0, 1, 1, 0, 0, 1]
    assert len(rows.bits) == 12_500_000
    # Three pages of 4 KiB at most, on a machine with such pages.
    assert os.fstat(rows._descriptor).st_blocks * 512 <= 3 * os.sysconf("SC_PAGE_SIZE")
