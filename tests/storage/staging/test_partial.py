"""A partially staged dataset is an ordinary dataset, and is later completed in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.staging.children import Child
from helpers.staging.laws import SHARDS, assert_same, assert_tidy, big_dataset, packed_pictures, root_of
from helpers.staging.unused import room_for

from packtrain import StageOptions, stage, verify
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import DatasetError, NoRoom, NotADataset
from packtrain.staging import Staged, entries, evict


def shard_size(dataset: Path) -> int:
    return max(path.stat().st_blocks * 512 for path in dataset.glob("*.tar"))


@pytest.fixture
def whole(dataset: Path, place: Path) -> int:
    """A budget that holds the whole dataset."""
    return room_for(dataset, place)


def in_part(dataset: Path, place: Path, budget: int) -> Staged:
    """Stages as much as fits into a budget."""
    return stage(dataset, StageOptions(to=place, budget=budget, partial=True))


def assert_readable(path: Path, source: Path) -> None:
    for io in ("mmap", "pread"):
        with RecordStore(source) as theirs, RecordStore(path, io=io) as ours:
            assert [ours.record(row) for row in range(len(ours))] == [theirs.record(row) for row in range(len(theirs))]


@pytest.mark.complete
@pytest.mark.parametrize("left_out", range(SHARDS + 1))
def test_leading_shards_are_local(dataset: Path, place: Path, whole: int, left_out: int) -> None:
    staged = in_part(dataset, place, whole - left_out * shard_size(dataset))
    shards = sorted(staged.path.glob("*.tar"))
    local = [not path.is_symlink() for path in shards]
    assert local == sorted(local, reverse=True)
    assert (sum(local), len(local)) == (staged.local_shards, staged.shards)
    assert SHARDS - left_out - 1 <= staged.local_shards <= SHARDS - left_out
    assert {path.resolve() for path in shards if path.is_symlink()} == {
        dataset / path.name for path in shards[staged.local_shards :]
    }
    assert staged.bytes == sum(file.stat().st_size for file in files_of(staged.path))
    (entry,) = entries(place)
    assert (entry.state, entry.local_shards) == ("partial" if left_out else "complete", staged.local_shards)
    assert entry.bytes <= whole - left_out * shard_size(dataset)
    assert_readable(staged.path, dataset)
    assert verify(staged.path, num_workers=1).problems == ()
    assert_tidy(place, staged.path)


def test_local_shards_lead_even_where_a_later_one_would_fit(place: Path, tmp_path: Path) -> None:
    """So the number of local shards also says which ones are local."""
    source = big_dataset(tmp_path / "uneven", [200_000, 800_000, 50_000])
    staged = in_part(source, place, 500_000)
    assert [path.is_symlink() for path in sorted(staged.path.glob("*.tar"))] == [False, True, True]


def files_of(path: Path) -> list[Path]:
    own = ("staged.json", "manifest.json")
    return [file for file in path.rglob("*") if file.is_file() and not file.is_symlink() and file.name not in own]


def test_who_does_not_ask_for_a_part_does_not_get_one(dataset: Path, place: Path, whole: int) -> None:
    budget = whole - 2 * shard_size(dataset)
    with pytest.raises(NoRoom, match="`partial`"):
        stage(dataset, StageOptions(to=place, budget=budget))
    in_part(dataset, place, budget)
    with pytest.raises(NoRoom):
        stage(dataset, StageOptions(to=place, budget=budget))
    assert [entry.state for entry in entries(place)] == ["partial"]


def test_it_grows_while_somebody_reads(dataset: Path, place: Path, whole: int, start: Callable[[], Child]) -> None:
    staged = in_part(dataset, place, whole - 3 * shard_size(dataset))
    numbers = {str(path.relative_to(staged.path)): path.stat().st_ino for path in files_of(staged.path)}
    reader = start()
    reader.do("open_store", path=staged.path, name="store")
    before = reader.do("records", name="store")
    steps = [staged.local_shards]
    for left_out in (2, 1):
        steps.append(in_part(dataset, place, whole - left_out * shard_size(dataset)).local_shards)
        assert reader.do("records", name="store") == before
    last = stage(dataset, StageOptions(to=place, budget=whole))
    assert last.path == staged.path
    assert steps == sorted(steps)
    assert len(set(steps)) > 1
    assert reader.do("records", name="store") == before
    assert_same(staged.path, dataset)
    assert {name: (staged.path / name).stat().st_ino for name in numbers} == numbers
    assert_tidy(place, staged.path)


def test_again_without_more_room(dataset: Path, place: Path, whole: int) -> None:
    budget = whole - 2 * shard_size(dataset)
    first = in_part(dataset, place, budget)
    # The first reserved space for notes that turned out shorter, so there may be room for one more shard.
    second, third = in_part(dataset, place, budget), in_part(dataset, place, budget)
    assert first.local_shards <= second.local_shards == third.local_shards < SHARDS
    assert (third.path, third.copied) == (first.path, 0)
    assert_tidy(place, first.path)


def test_a_part_does_not_push_out_what_is_read(datasets: tuple[Path, ...], place: Path, whole: int) -> None:
    other = stage(datasets[1], StageOptions(to=place))
    staged = in_part(datasets[0], place, whole + whole // 2)
    assert 0 < staged.local_shards < SHARDS
    assert other.path.is_dir()
    assert_readable(staged.path, datasets[0])


class TestSource:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return packed_pictures(tmp_path / "source", 80)

    @pytest.mark.parametrize("replaced", [False, True])
    def test_moved_it_is_linked_anew(
        self, source: Path, datasets: tuple[Path, ...], place: Path, tmp_path: Path, replaced: bool
    ) -> None:
        """Also if another dataset, with shards of the same names, lies in its place."""
        staged = in_part(source, place, budget := room_for(source, place, 2))
        source.rename(moved := tmp_path / "moved")
        if replaced:
            shutil.copytree(datasets[1], source)
        with pytest.raises(DatasetError):
            assert_readable(staged.path, moved)
        again = in_part(moved, place, budget)
        assert again.path == staged.path
        assert_readable(staged.path, moved)
        staged.lease.close()
        again.lease.close()
        assert [entry.path for entry in evict(place)] == [staged.path], "its source is known"

    def test_staged_by_its_own_path_it_is_completed_from_its_source(self, source: Path, place: Path) -> None:
        staged = in_part(source, place, room_for(source, place, 2))
        again = stage(staged.path, StageOptions(to=place))
        assert again.path == staged.path
        assert_same(staged.path, source)

    def test_gone_the_rest_cannot_be_staged(self, source: Path, place: Path) -> None:
        staged = in_part(source, place, room_for(source, place, 2))
        shutil.rmtree(source)
        with pytest.raises(NotADataset, match="source"):
            stage(staged.path, StageOptions(to=place))
        assert evict(place) == []

    def test_an_interrupted_copy_links_nothing_that_a_later_one_writes_through(self, source: Path, place: Path) -> None:
        """A partial copy that was killed before it was published has links, which must not be written through."""
        staged = in_part(source, place, room_for(source, place, 2))
        key = staged.path.name.rpartition("-")[2]
        before = {path: (path.stat().st_mode, path.read_bytes()) for path in source.rglob("*.tar")}
        copy = root_of(place) / ".tmp" / key
        copy.mkdir()
        os.rename(staged.path, copy / "data")
        staged.lease.close()
        again = stage(source, StageOptions(to=place))
        assert_same(again.path, source)
        assert_tidy(place, again.path)
        assert {path: (path.stat().st_mode, path.read_bytes()) for path in source.rglob("*.tar")} == before
