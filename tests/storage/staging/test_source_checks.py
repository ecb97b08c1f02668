"""The only sound copy of a dataset is never evicted, whatever became of its source."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.staging.children import Child
from helpers.staging.laws import big_dataset, until_pieces_are_noted
from helpers.staging.unused import budget_of, room_for, staged, writable_shard
from helpers.support import spoil, tree

from packtrain import StageOptions, stage
from packtrain._storage.staging import eviction
from packtrain._storage.staging.source import SourceDataset
from packtrain.errors import Leased, NoRoom, StagingError
from packtrain.staging import entries, evict


@pytest.fixture
def source(datasets: tuple[Path, ...], tmp_path: Path) -> Path:
    """A dataset that may be damaged."""
    return shutil.copytree(datasets[3], tmp_path / "source")


def crowd_out(dataset: Path, place: Path) -> None:
    """Stages a dataset where there is only room for one."""
    staged(dataset, place, budget=budget_of(place, 1))


HOW = ("missing", "short", "empty", "flipped", "flipped, with its old times", "folder", "pipe", "broken link")


class TestKept:
    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("name", ["a shard", "index/label.npy"])
    def test_when_a_file_of_the_source_is(
        self, datasets: tuple[Path, ...], source: Path, place: Path, how: str, name: str
    ) -> None:
        only, before = staged(source, place), tree(source)
        file = writable_shard(source) if name == "a shard" else source / name
        spoil(file, how)
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
            shard = writable_shard(source)
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

        def load_and_evict(folder: Path, **known: Any) -> SourceDataset:
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
                os.utime(writable_shard(source), (1, 1))
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
        budget = room_for(source, place, 2)
        part = stage(source, StageOptions(to=place, budget=budget, partial=True))
        part.lease.close()
        assert part.local_shards < part.shards
        sorted(source.glob("*.tar"))[-1].unlink()
        assert [entry.path for entry in evict(place)] == [part.path]
