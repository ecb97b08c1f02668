"""A copy is damaged: `verify` finds the damage, and `repair` replaces that file and no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.staging.children import Child, Refused
from helpers.staging.laws import assert_same, assert_tidy, packed_pictures
from helpers.support import spoil

from packtrain import StageOptions, stage, verify
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import CorruptFile, DatasetError, SourceChanged, StagingError
from packtrain.staging import Staged, evict, repair


@pytest.fixture
def staged(dataset: Path, place: Path) -> Staged:
    return stage(dataset, StageOptions(to=place))


def inodes(path: Path) -> dict[str, int]:
    return {str(file.relative_to(path)): file.stat().st_ino for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("how", ["flipped", "short", "long", "missing"])
@pytest.mark.parametrize("name", ["train-000001.tar", "index/label.npy", "plan.json", "rejects.jsonl", "manifest.json"])
def test_it_is_found_and_mended(staged: Staged, dataset: Path, place: Path, name: str, how: str) -> None:
    if name == "rejects.jsonl" and how in ("flipped", "short"):
        pytest.skip("it is empty")
    if name.endswith(".tar"):
        name = sorted(path.name for path in dataset.glob("*.tar"))[1]
    before = inodes(staged.path)
    spoil(staged.path / name, how)
    if name != "manifest.json":
        found = {problem.file for problem in verify(staged.path, num_workers=1).problems}
        assert name in found
        assert found <= {name, "index"}
    assert repair(staged.path.parents[1], staged.id).files == (name,)
    after = inodes(staged.path)
    assert after.keys() == before.keys()
    assert {other for other in after if after[other] != before[other]} == {name}
    assert_same(staged.path, dataset)
    assert_tidy(place, staged.path)
    assert verify(staged.path, num_workers=1).problems == ()


def test_readers_go_on(staged: Staged, start: Callable[[], Child]) -> None:
    """They keep the old file while they have it open, and get the repaired one when they open it again."""
    reader = start()
    reader.do("open_store", path=staged.path, name="store")
    sound = reader.do("records", name="store")
    here = RecordStore(staged.path)
    view = here.record(0)
    first = bytes(view)
    spoil(sorted(staged.path.glob("*.tar"))[0], "flipped")
    with pytest.raises(Refused, match="CorruptRecord"):
        reader.do("records", name="store")
    damaged = bytes(view)
    repair(staged.path.parents[1], staged.id)
    assert bytes(view) == damaged, "the map of an open file stays"
    assert reader.do("records", name="store") == sound
    assert bytes(RecordStore(staged.path).record(0)) == first


@pytest.mark.complete
def test_whatever_is_removed_staging_again_or_repair_copies_it(staged: Staged, dataset: Path, place: Path) -> None:
    names = sorted(str(path.relative_to(staged.path)) for path in staged.path.rglob("*"))
    assert {"index", "index/line.npy", "manifest.json", "plan.json", "staged.json"} < {*names}
    for name in names:
        for again in (lambda: stage(dataset, place).lease.close(), lambda: repair(place, staged.id)):
            path = staged.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            if name in ("index/line.npy", "manifest.json"):
                with pytest.raises(
                    (StagingError, CorruptFile), match=f"`packtrain staged repair {staged.path}` copies"
                ):
                    RecordStore(staged.path)
            if name == "staged.json":
                stage(dataset, place).lease.close()
            else:
                again()
            assert RecordStore(staged.path).record(0) == RecordStore(dataset).record(0)
    assert_same(staged.path, dataset)


def test_who_has_removed_what_it_came_from_as_well_is_told_to_remove_the_rest(staged: Staged) -> None:
    for name in ("manifest.json", "staged.json"):
        (staged.path / name).unlink()
    with pytest.raises(StagingError, match=f"`rm -r {staged.path}`, and stage the dataset again"):
        RecordStore(staged.path)


def test_staging_again_replaces_what_has_not_its_size(staged: Staged, dataset: Path, place: Path) -> None:
    spoil(sorted(staged.path.glob("*.tar"))[2], "short")
    again = stage(dataset, StageOptions(to=place))
    assert again.path == staged.path
    assert 0 < again.copied < again.bytes
    assert_same(staged.path, dataset)


def test_a_link_of_a_partial_entry_is_the_sources_affair(place: Path, tmp_path: Path) -> None:
    source = packed_pictures(tmp_path / "source", 80)
    whole = stage(source, StageOptions(to=place))
    whole.lease.close()
    (entry,) = evict(place)
    staged = stage(source, StageOptions(to=place, budget=entry.bytes, partial=True))
    assert staged.local_shards < staged.shards
    spoil(sorted(source.glob("*.tar"))[-1], "flipped")
    assert repair(staged.path.parents[1], staged.id).files == ()
    spoil(sorted(staged.path.glob("*.tar"))[0], "flipped")
    assert len(repair(staged.path.parents[1], staged.id).files) == 1


class TestRefused:
    def test_not_an_entry(self, dataset: Path, tmp_path: Path) -> None:
        for path in (dataset, tmp_path / "nowhere"):
            with pytest.raises(StagingError, match="nothing is staged in"):
                repair(tmp_path, path)

    def test_nothing_says_where_it_came_from(self, staged: Staged) -> None:
        (staged.path / "staged.json").unlink()
        with pytest.raises(StagingError, match=r"does not say where it was copied from"):
            repair(staged.path.parents[1], staged.id)

    @pytest.mark.parametrize("how", ["gone", "other", "damaged"])
    def test_its_source_cannot_help(self, datasets: tuple[Path, ...], place: Path, tmp_path: Path, how: str) -> None:
        source = shutil.copytree(datasets[0], tmp_path / "source")
        staged = stage(source, StageOptions(to=place))
        shard = sorted(staged.path.glob("*.tar"))[1]
        spoil(shard, "flipped")
        if how == "damaged":
            spoil(source / shard.name, "flipped")
        else:
            shutil.rmtree(source)
            if how == "other":
                shutil.copytree(datasets[1], source)
        kinds = {"gone": DatasetError, "other": StagingError, "damaged": SourceChanged}
        before = inodes(staged.path)
        with pytest.raises(kinds[how], match="source"):
            repair(staged.path.parents[1], staged.id)
        assert inodes(staged.path) == before


def test_a_damaged_record_of_a_copy_says_how_to_mend_it(staged: Staged, dataset: Path) -> None:
    for shard in sorted(staged.path.glob("*.tar")):
        spoil(shard, "short")
    with RecordStore(staged.path) as store, pytest.raises(DatasetError, match=f"staged repair {staged.path}"):
        store.record(0)
    repair(staged.path.parents[1], staged.id)
    with RecordStore(staged.path) as store, RecordStore(dataset) as theirs:
        assert store.record(0) == theirs.record(0)
