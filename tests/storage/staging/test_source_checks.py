"""The only sound copy of a dataset is never evicted, whatever became of its source."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.staging.children import Child
from helpers.staging.laws import assert_same, big_dataset, until_pieces_are_noted
from helpers.support import flip, tree

from packtrain import StageOptions, stage
from packtrain._storage.staging import eviction
from packtrain._storage.staging.source import SourceDataset
from packtrain.errors import Leased, NoRoom, StagingError
from packtrain.staging import entries, evict


@pytest.fixture
def source(datasets: tuple[Path, ...], tmp_path: Path) -> Path:
    """A dataset that may be damaged."""
    return shutil.copytree(datasets[3], tmp_path / "source")


def staged(source: Path, place: Path) -> Path:
    """An entry that nobody uses."""
    result = stage(source, StageOptions(to=place))
    result.lease.close()
    return result.path


def shard_of(source: Path) -> Path:
    path = sorted(source.glob("*.tar"))[2]
    path.chmod(0o644)
    return path


def budget_for_one(place: Path) -> int:
    return max(entry.bytes for entry in entries(place)) + 40_960


def crowd_out(dataset: Path, place: Path) -> None:
    """Stages a dataset where there is only room for one."""
    stage(dataset, StageOptions(to=place, budget=budget_for_one(place))).lease.close()


def damage(file: Path, how: str) -> None:
    before = file.stat()
    match how:
        case "truncated":
            os.truncate(file, before.st_size - 1)
        case "empty":
            os.truncate(file, 0)
        case "flipped":
            flip(file, -1)
        case "flipped, with its old times":
            flip(file, -1)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case _:
            file.unlink()
    match how:
        case "a folder":
            file.mkdir()
        case "a pipe":
            os.mkfifo(file)
        case "a broken link":
            file.symlink_to("nowhere")


HOW = ("deleted", "truncated", "empty", "flipped", "flipped, with its old times", "a folder", "a pipe", "a broken link")


class TestKept:
    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("name", ["a shard", "index/label.npy"])
    def test_when_a_file_of_the_source_is(
        self, datasets: tuple[Path, ...], source: Path, place: Path, how: str, name: str
    ) -> None:
        only, before = staged(source, place), tree(source)
        file = shard_of(source) if name == "a shard" else source / name
        damage(file, how)
        with pytest.raises(NoRoom, match=rf"{only.name} \(may be the only copy: .*{file.name}"):
            crowd_out(datasets[0], place)
        assert evict(place) == evict(place, force=True) == []
        with pytest.raises(StagingError, match=rf"may be the only copy: .*{file.name}.*evict {only.name} --force"):
            evict(place, [only.name])
        found = tree(only)
        assert found.pop("staged.json") and found == before
        assert [entry.path for entry in evict(place, [only.name], force=True)] == [only]

    @pytest.mark.parametrize("how", ["link", "hard link", "linked folder"])
    def test_when_the_source_is_the_copy_itself(
        self, datasets: tuple[Path, ...], source: Path, tmp_path: Path, how: str
    ) -> None:
        """Somebody saved room by putting links to the copy in place of the original."""
        place = tmp_path / "place"
        place.mkdir()
        only = staged(source, place)
        if how == "linked folder":
            source.rename(tmp_path / "gone")
            shutil.rmtree(tmp_path / "gone")
            source.symlink_to(only)
        else:
            shard = shard_of(source)
            shard.unlink()
            copy = only / shard.name
            shard.symlink_to(copy) if how == "link" else shard.hardlink_to(copy)
        assert evict(place) == []
        with pytest.raises(NoRoom, match="may be the only copy"):
            crowd_out(datasets[0], place)
        assert only.is_dir()

    def test_when_two_copies_name_each_other(self, source: Path, place: Path, tmp_path: Path) -> None:
        """One of them may go, and the other one is the only copy from then on."""
        other_place = tmp_path / "other"
        other_place.mkdir()
        first = staged(source, place)
        second = staged(first, other_place)
        shutil.rmtree(source)
        for path, where in ((second, place), (first, other_place)):
            staged(path, where)
        assert [entry.source for entry in (*entries(place), *entries(other_place))] == [second, first]
        assert len(evict(place)) + len(evict(other_place)) == 1

    def test_when_two_copies_that_name_each_other_are_evicted_at_once(
        self, source: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What makes a copy dispensable is leased until that copy is gone."""
        other_place = tmp_path / "other"
        other_place.mkdir()
        first = staged(source, place)
        second = staged(first, other_place)
        shutil.rmtree(source)
        staged(second, place)
        load = SourceDataset.load

        def load_and_evict(folder: Path) -> SourceDataset:
            found = load(folder)
            with pytest.raises(Leased):
                evict(other_place, [second], force=True)
            return found

        monkeypatch.setattr(SourceDataset, "load", load_and_evict)
        assert [entry.path for entry in evict(place)] == [first]
        assert second.is_dir()


class TestGoes:
    def test_without_reading_the_source(
        self, datasets: tuple[Path, ...], source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The files have the stamps that they had when they were copied."""
        only = staged(source, place)
        monkeypatch.setattr(eviction, "check_files", lambda _, files, **__: pytest.fail("it reads") if files else [])
        crowd_out(datasets[0], place)
        assert not only.exists()

    @pytest.mark.parametrize("how", ["touched", "another copy", "a note without stamps"])
    def test_after_reading_what_was_changed_in_the_source(
        self, datasets: tuple[Path, ...], source: Path, place: Path, how: str
    ) -> None:
        """Making room does not read the source, which may take hours; evicting by hand does."""
        only = staged(source, place)
        match how:
            case "touched":
                os.utime(shard_of(source), (1, 1))
            case "another copy":
                source.rename(moved := source.with_name("moved"))
                shutil.copytree(moved, source)
                shutil.rmtree(moved)
            case _:
                (only / "staged.json").unlink()
                staged(source, place)
        with pytest.raises(NoRoom, match=rf"was changed since it was copied; `packtrain staged evict {only.name} "):
            crowd_out(datasets[0], place)
        assert [entry.path for entry in evict(place, [only.name])] == [only]

    def test_without_reading_after_a_killed_copy_was_continued(
        self, place: Path, tmp_path: Path, start: Callable[[], Child], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stamps of the pieces that were copied before are in the journal."""
        source = big_dataset(tmp_path / "big", [40 << 20] * 2)
        child = start()
        child.send("stage", dataset=source, to=place)
        until_pieces_are_noted(place)
        child.kill()
        path = staged(source, place)
        monkeypatch.setattr(eviction, "check_files", lambda _, files, **__: pytest.fail("it reads") if files else [])
        assert [entry.path for entry in evict(place)] == [path]

    def test_a_part_that_the_source_has_lost_does_not_count_if_the_copy_never_had_it(
        self, source: Path, place: Path
    ) -> None:
        whole = staged(source, place)
        (entry,) = evict(place, [whole.name])
        size = max(path.stat().st_blocks * 512 for path in source.glob("*.tar"))
        part = stage(source, StageOptions(to=place, budget=entry.bytes + 40_960 - 2 * size, partial=True))
        part.lease.close()
        assert part.local_shards < part.shards
        sorted(source.glob("*.tar"))[-1].unlink()
        assert [entry.path for entry in evict(place)] == [part.path]


def test_a_source_that_does_not_answer_stops_nobody_else(
    datasets: tuple[Path, ...], source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system whose server is down."""
    staged(source, place)
    load = SourceDataset.load
    asked, answer = threading.Event(), threading.Event()

    def hang(folder: Path) -> object:
        if Path(folder) == source:
            asked.set()
            assert answer.wait(60)
        return load(folder)

    monkeypatch.setattr(SourceDataset, "load", hang)
    budget = budget_for_one(place)
    waiting = threading.Thread(target=stage, args=(datasets[0], StageOptions(to=place, budget=budget)))
    waiting.start()
    assert asked.wait(60)
    try:
        assert len(entries(place)) == 1
        other = stage(datasets[1], StageOptions(to=place))
        assert_same(other.path, datasets[1])
        other.lease.close()
        assert evict(place, [other.id])
    finally:
        answer.set()
        waiting.join()
    assert [entry.source for entry in entries(place)] == [datasets[0]]
