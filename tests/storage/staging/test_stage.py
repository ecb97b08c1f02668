"""Results of staging: a verified copy, named after its content, in a root that nobody else can touch."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.staging.laws import assert_same, assert_tidy, packed_pictures, root_of
from helpers.support import flip, held, packed, tree

from packtrain import StageOptions, drop_rows, open_dataset, stage
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import CorruptFile, NoRoom, NotADataset, PacktrainError, SourceChanged, StagingError
from packtrain.staging import StageProgress, entries, evict, lease_on


class TestCopy:
    def test_it_is_the_source_and_stays(self, images: Path, tmp_path: Path, place: Path, format_name: str) -> None:
        source = packed(images, tmp_path / "set", format_name)
        staged = stage(source, StageOptions(to=place))
        assert staged.path.parent == root_of(place)
        assert_same(staged.path, source)
        assert_tidy(place, staged.path)
        assert staged.copied == staged.bytes == sum(map(len, tree(source).values())) - len(manifest_of(source))
        assert staged.shards == staged.local_shards
        again = stage(source, StageOptions(to=place))
        assert (again.path, again.id, again.copied, again.bytes) == (staged.path, staged.path.name, 0, staged.bytes)
        with RecordStore(source) as theirs, RecordStore(staged.path) as ours:
            assert [ours.record(row) for row in range(len(ours))] == [theirs.record(row) for row in range(len(theirs))]

    def test_to_a_disk_and_into_the_page_cache(self, dataset: Path, tmp_path: Path) -> None:
        seen: list[StageProgress] = []
        staged = stage(dataset, StageOptions(to=tmp_path, warm=True), on_progress=seen.append)
        assert_same(staged.path, dataset)
        assert {progress.phase for progress in seen} == {"copy", "warm"}
        for phase in ("copy", "warm"):
            last = [progress for progress in seen if progress.phase == phase][-1]
            assert last.done == last.total == staged.bytes

    def test_a_copy_can_be_staged_again_elsewhere(self, dataset: Path, place: Path, tmp_path: Path) -> None:
        first = stage(dataset, StageOptions(to=tmp_path))
        second = stage(first.path, StageOptions(to=place))
        assert second.id.rpartition("-")[2] == first.id.rpartition("-")[2]
        assert_same(second.path, dataset)
        # Its origin is the dataset, so it can be repaired even after the copy that it was made from is evicted.
        assert {entry.source for entry in (*entries(place), *entries(tmp_path))} == {dataset}

    def test_so_can_one_of_a_changed_dataset(self, dataset: Path, place: Path, tmp_path: Path) -> None:
        changed = Path(shutil.copytree(dataset, tmp_path / "changed"))
        drop_rows(changed, [1])
        first = stage(changed, StageOptions(to=tmp_path))
        second = stage(first.path, StageOptions(to=place))
        assert held(open_dataset(second.path)) == held(open_dataset(changed))

    def test_relative_paths_and_links_lead_to_the_source(
        self, dataset: Path, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (place / "link").symlink_to(dataset)
        monkeypatch.chdir(place)
        staged = stage("link", StageOptions(to=Path()))
        assert_same(staged.path, dataset)
        (entry,) = entries(place)
        assert entry.source == dataset
        assert entry.path == staged.path == stage(dataset, StageOptions(to=place)).path

    def test_not_a_dataset(self, place: Path, tmp_path: Path) -> None:
        with pytest.raises(NotADataset, match=r"has no manifest\.json"):
            stage(tmp_path, StageOptions(to=place))
        assert not root_of(place).exists()


class TestIdentity:
    def test_a_dataset_packed_anew_at_the_same_path_is_another_entry(self, place: Path, tmp_path: Path) -> None:
        source = packed_pictures(tmp_path / "train", 70)
        old, before = stage(source, StageOptions(to=place)), tree(source)
        shutil.rmtree(source)
        shutil.rmtree(source.with_name("train-images"))
        packed_pictures(source, 71)
        new = stage(source, StageOptions(to=place))
        assert_same(new.path, source)
        assert new.id.startswith("train-")
        assert {name: data for name, data in tree(old.path).items() if name != "staged.json"} == before

    @pytest.mark.parametrize("name", ["Ünïcode 图", "-", "a b.c", "x" * 200, "packtrain-0"])
    def test_any_name_of_a_folder_will_do(self, dataset: Path, place: Path, tmp_path: Path, name: str) -> None:
        source = shutil.copytree(dataset, tmp_path / name)
        staged = stage(source, StageOptions(to=place))
        assert_same(staged.path, source)
        assert lease_on(staged.path) is not None
        assert [entry.path for entry in entries(place)] == [staged.path]
        staged.lease.close()
        assert [entry.path for entry in evict(place)] == [staged.path]


class TestDamagedSource:
    """Damage is found during the copy, the error names the file, and nothing is published."""

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("train-000002.tar", SourceChanged),
            ("index/line.npy", SourceChanged),
            ("plan.json", SourceChanged),
            ("manifest.json", CorruptFile),
        ],
    )
    def test_a_flipped_byte(
        self, dataset: Path, place: Path, tmp_path: Path, name: str, kind: type[PacktrainError]
    ) -> None:
        source = shutil.copytree(dataset, tmp_path / "damaged")
        shard = next(iter(sorted(source.glob("*000002.tar")))) if name.endswith(".tar") else source / name
        flip(shard, 600 if shard.stat().st_size > 600 else -1)
        with pytest.raises(kind, match=shard.name):
            stage(source, StageOptions(to=place))
        assert not list(root_of(place).glob("[!.]*"))
        # The undamaged dataset has the same key, unless the manifest was damaged, so good files are kept.
        assert_same(stage(dataset, StageOptions(to=place)).path, dataset)


class TestRoot:
    """Every error says what to do."""

    def test_it_is_ours_alone(self, dataset: Path, place: Path) -> None:
        before = os.umask(0)
        try:
            stage(dataset, StageOptions(to=place))
        finally:
            os.umask(before)
        root = root_of(place)
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        assert {stat.S_IMODE((root / name).stat().st_mode) for name in (".locks", ".tmp", ".trash")} == {0o700}

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("link", "is not a folder made by packtrain: find out who made it"),
            ("file", "is not a folder made by packtrain"),
            ("owner", "belongs to user 12345.*`to`"),
            *((mode, "chmod 700") for mode in (0o770, 0o707, 0o750, 0o701)),
        ],
    )
    def test_one_that_is_not_is_refused(self, dataset: Path, place: Path, how: str | int, message: str) -> None:
        root = root_of(place)
        match how:
            case "link":
                (place / "elsewhere").mkdir(mode=0o700)
                root.symlink_to(place / "elsewhere")
            case "file":
                root.touch(mode=0o600)
            case "owner":
                if os.geteuid() != 0:
                    pytest.skip("only root gives folders away")
                root.mkdir(mode=0o700)
                os.chown(root, 12345, -1)
            case int(mode):
                root.mkdir()
                root.chmod(mode)
        refused(dataset, place, message)
        assert root.is_file() or not list(root.iterdir())

    def test_a_place_that_is_not_there(self, dataset: Path, place: Path) -> None:
        (place / "file").touch()
        for name in ("nowhere", "file"):
            refused(dataset, place / name, "is not a folder.*`to`")

    def test_a_network_file_system(self, dataset: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("packtrain._core.mounts.file_system", lambda path: "nfs4")
        monkeypatch.setattr("packtrain._storage.staging.root.file_system", lambda path: "nfs4")
        refused(dataset, place, r"network file system \(nfs4\).*`to`")
        assert not root_of(place).exists()

    def test_a_read_only_mount(self, dataset: Path, datasets: tuple[Path, ...], mounted: Callable[[str], Path]) -> None:
        place = mounted("size=4m")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        refused(dataset, place, r"cannot write to .*Read-only.*`to`")
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)
        staged = stage(dataset, StageOptions(to=place))
        staged.lease.close()
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        # Existing entries can be used, but nothing can be added.
        again = stage(dataset, StageOptions(to=place))
        assert (again.path, again.copied) == (staged.path, 0)
        assert len(RecordStore(again.path)) > 0
        with pytest.raises(PacktrainError, match="Read-only"):
            stage(datasets[1], StageOptions(to=place))

    def test_half_made_it_is_made_whole(self, dataset: Path, place: Path) -> None:
        root = root_of(place)
        root.mkdir(mode=0o700)
        for name in (".tmp", ".trash", ".locks"):
            assert entries(place) == evict(place) == []
            (root / name).mkdir(mode=0o700)
        assert entries(place) == evict(place) == []
        (root / ".trash").rmdir()
        assert_same(stage(dataset, StageOptions(to=place)).path, dataset)

    def test_what_packtrain_did_not_put_there_is_left_alone(self, dataset: Path, place: Path) -> None:
        staged = stage(dataset, StageOptions(to=place))
        staged.lease.close()
        foreign = [staged.path.with_name(name) for name in ("notes", f"my-{'0' * 16}", f"file-{'1' * 16}")]
        for path in foreign[:2]:
            path.mkdir()
            (path / "thesis.txt").write_text("years of work")
        foreign[2].write_text("more of it")
        assert [entry.path for entry in evict(place)] == [staged.path]
        assert (foreign[0] / "thesis.txt").read_text() == (foreign[1] / "thesis.txt").read_text() == "years of work"
        assert foreign[2].read_text() == "more of it"


class TestRoom:
    def test_too_large_for_the_file_system(self, dataset: Path, mounted: Callable[[str], Path]) -> None:
        place = mounted("size=40k")
        with pytest.raises(NoRoom, match=r"free of 40.*mount -o remount,size="):
            stage(dataset, StageOptions(to=place, reserve=0))
        assert_tidy(place)

    def test_no_room_leaves_nothing_locked(self, datasets: tuple[Path, ...], place: Path) -> None:
        """Not even while the error is handled; otherwise opening an entry in the handler would wait forever."""
        kept = stage(datasets[0], StageOptions(to=place))
        kept.lease.close()
        try:
            stage(datasets[1], StageOptions(to=place, budget=30_000))
        except NoRoom:
            assert [entry.leased for entry in entries(place)] == [False]
            assert evict(place, [kept.id])
        else:
            pytest.fail("there was room")

    def test_the_index_does_not_fit(self, dataset: Path, place: Path) -> None:
        with pytest.raises(NoRoom, match="not even its index fits"):
            stage(dataset, StageOptions(to=place, budget=20_000, partial=True))
        assert_tidy(place)


def refused(dataset: Path, place: Path, pattern: str) -> None:
    with pytest.raises(StagingError, match=f"(?s){pattern}"):
        stage(dataset, StageOptions(to=place))


def manifest_of(folder: Path) -> bytes:
    data = (folder / "manifest.json").read_bytes()
    assert json.loads(data)["version"] == 1
    return data
