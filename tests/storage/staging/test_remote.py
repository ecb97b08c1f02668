"""Staging from an object store keeps the laws of staging from a disk."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.staging.laws import assert_same, big_dataset, root_of
from helpers.staging.remote import BUCKET, FolderObjects, installed
from helpers.staging.unused import SLACK, budget_of, staged, writable_shard
from helpers.support import flip
from helpers.waiting import wait_until

from packtrain import StageOptions, append, index_shards, stage, verify
from packtrain._core.manifest import Manifest
from packtrain._storage.staging.source import SourceDataset
from packtrain.errors import (
    CorruptFile,
    NoRoom,
    NotADataset,
    RemoteError,
    SourceChanged,
    StagingError,
    UsageError,
)
from packtrain.staging import entries, evict, repair

MiB = 1 << 20
ENDS = ("json", "dropped")


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderObjects:
    return installed(tmp_path / "store", monkeypatch)


@pytest.fixture
def url(objects: FolderObjects, datasets: tuple[Path, ...]) -> str:
    """A dataset in the store, as `datasets[3]`."""
    return uploaded(objects, datasets[3], f"{BUCKET}/sets/eels")


def uploaded(objects: FolderObjects, dataset: Path, url: str) -> str:
    shutil.copytree(dataset, objects.path(url))
    return url


def shard_of(objects: FolderObjects, url: str) -> Path:
    return writable_shard(objects.path(url))


class TestCopying:
    def test_it_shares_the_entry_with_the_same_content_on_a_disk(
        self, url: str, datasets: tuple[Path, ...], place: Path
    ) -> None:
        path = staged(url, place)
        for dataset in (datasets[3], url, f"{url}/", Path(url)):
            again = stage(dataset, place)
            assert (again.path, again.copied) == (path, 0)
            again.lease.close()
        assert [str(entry.source) for entry in entries(place)] == [url]

    @pytest.mark.parametrize("name", ["with spaces", "ünï/çødé", "a%20b", "plus+and&", "100%"])
    def test_any_address(self, objects: FolderObjects, datasets: tuple[Path, ...], place: Path, name: str) -> None:
        url = uploaded(objects, datasets[0], f"{BUCKET}/{name}")
        assert_same(staged(url, place), datasets[0])
        assert [str(entry.source) for entry in entries(place)] == [url]

    def test_nothing_is_listed_and_no_byte_is_sent_twice(self, url: str, objects: FolderObjects, place: Path) -> None:
        staged(url, place)
        assert len(set(objects.asked("read_into"))) == len(objects.asked("read_into"))
        assert len(set(objects.asked("head"))) == len(objects.asked("head"))

    @pytest.mark.complete
    def test_large_files_are_asked_for_in_parts_side_by_side(
        self, objects: FolderObjects, tmp_path: Path, place: Path
    ) -> None:
        url = uploaded(objects, big_dataset(tmp_path / "big", [70 * MiB, 5]), f"{BUCKET}/big")
        under_way, most = [0], [0]

        def count(member: str, key: str) -> None:
            if member == "read_into":
                under_way[0] += 1
                most[0] = max(most[0], under_way[0])
                time.sleep(0.05)
                under_way[0] -= 1

        objects.fault = count
        assert_same(staged(url, place), tmp_path / "big")
        assert len(objects.asked("read_into")) == 9 + 1 + 1, "shards and plan"
        assert most[0] > 2

    def test_a_copy_of_the_copy_comes_from_the_store(
        self, url: str, datasets: tuple[Path, ...], place: Path, tmp_path: Path
    ) -> None:
        """So that each of them may go."""
        other = tmp_path / "other"
        other.mkdir()
        first = staged(url, place)
        assert_same(staged(first, other), datasets[3])
        assert [str(entry.source) for entry in entries(other)] == [url]
        assert len(evict(place)) == len(evict(other)) == 1


class TestVersions:
    """A dataset that was changed: what two versions have in common is asked for once."""

    @pytest.fixture
    def changed(self, objects: FolderObjects, datasets: tuple[Path, ...], tmp_path: Path) -> str:
        """Two versions in the store: `datasets[3]`, and with `datasets[0]` behind it."""
        out = shutil.copytree(datasets[3], tmp_path / "out")
        append(out, datasets[0])
        return uploaded(objects, out, f"{BUCKET}/sets/changed")

    def test_a_later_version_asks_only_for_what_is_new(self, changed: str, objects: FolderObjects, place: Path) -> None:
        first = stage(changed, place, version=1)
        objects.requests.clear()
        second = stage(changed, place)
        asked = [key.removeprefix("sets/changed/") for _, key in objects.requests]
        (segment,) = objects.path(changed).glob("segments/*")
        new = {str(path.relative_to(objects.path(changed))) for path in segment.rglob("*") if path.is_file()}
        documents = {name for name in asked if not name.startswith("segments/")}
        assert documents <= {"manifest.json", *(f"versions/0000000{n}.{end}" for n in (1, 2, 3, 4) for end in ENDS)}
        assert {*asked} - documents == new
        assert len(asked) <= 12 + 2 * len(new), "each file: its size, and its bytes"
        assert second.copied == sum((objects.path(changed) / name).stat().st_size for name in new if "mani" not in name)
        objects.requests.clear()
        assert (stage(changed, place).copied, {key for _, key in objects.requests} & new) == (0, set())
        assert set(first.parts[0].path.iterdir()) == set(second.parts[0].path.iterdir())

    @pytest.mark.parametrize("name", ["manifest.json", "00000002.json", "base.json"])
    def test_a_document_that_arrives_damaged_is_fetched_again(
        self, changed: str, objects: FolderObjects, place: Path, name: str
    ) -> None:
        lies = [1]

        def lie(key: str, offset: int, view: memoryview) -> None:
            if key.endswith(f"sets/changed/{name}") or key.endswith(f"versions/{name}"):
                view[len(view) // 2] ^= lies.pop() if lies else 0

        objects.spoil = lie
        assert len(stage(changed, place).parts) == 2
        assert not lies

    @pytest.mark.parametrize(
        ("damage", "error", "message"),
        [
            (lambda path: flip(path / "versions/00000002.json", 300), CorruptFile, "00000002.json is damaged"),
            (lambda path: flip(path / "base.json", 300), CorruptFile, "base.json is damaged"),
            (lambda path: (path / "versions/00000001.json").unlink(), CorruptFile, "has no version"),
            (lambda path: (path / "versions/00000002.dropped").touch(), UsageError, "version 2 was dropped"),
        ],
    )
    def test_what_stays_wrong_is_named(
        self,
        changed: str,
        objects: FolderObjects,
        place: Path,
        damage: Callable[[Path], object],
        error: type[Exception],
        message: str,
    ) -> None:
        damage(objects.path(changed))
        with pytest.raises(error, match=message):
            stage(changed, place)

    def test_versions_that_there_are(self, changed: str, place: Path) -> None:
        for version in (0, 3, -1):
            with pytest.raises(UsageError, match=f"version {version} does not exist; the newest one is 2"):
                stage(changed, place, version=version)


class TestLinked:
    """Shards that were indexed where they lie, in the store or on the machine that indexed them."""

    @pytest.fixture
    def indexed(self, datasets: tuple[Path, ...], tmp_path: Path) -> Path:
        tars = tmp_path / "tars"
        tars.mkdir()
        for path in datasets[0].glob("*.tar"):
            shutil.copy(path, tars)
        index_shards([tars], tmp_path / "indexed")
        return tmp_path / "indexed"

    def upload(self, objects: FolderObjects, indexed: Path, base: str) -> str:
        shutil.copytree(indexed.parent / "tars", objects.path(f"{BUCKET}/some tars"))
        url = uploaded(objects, indexed, f"{BUCKET}/sets/indexed")
        manifest = replace(Manifest.load(indexed), base=base)
        (objects.path(url) / "manifest.json").write_bytes(manifest.dump())
        return url

    @pytest.mark.parametrize("base", ["../../some tars", f"{BUCKET}/some tars", "s3:/bucket/some tars/."])
    def test_shards_that_lie_elsewhere_in_the_store(
        self, objects: FolderObjects, indexed: Path, place: Path, base: str
    ) -> None:
        path = staged(self.upload(objects, indexed, base.removesuffix("/.")), place)
        for tar in indexed.parent.glob("tars/*"):
            assert (path / tar.name).read_bytes() == tar.read_bytes()
        assert verify(path).problems == ()

    @pytest.mark.parametrize("base", ["/data/tars", "../../../tars"])
    def test_shards_that_lie_on_another_machine(
        self, objects: FolderObjects, indexed: Path, place: Path, base: str
    ) -> None:
        with pytest.raises(UsageError, match=r"is linked, and .* leads out of .*`packtrain index`"):
            stage(self.upload(objects, indexed, base), place)


class TestRefused:
    def test_where_there_is_no_dataset(self, objects: FolderObjects, place: Path) -> None:
        with pytest.raises(NotADataset, match=f"no dataset at {BUCKET}/nothing"):
            stage(f"{BUCKET}/nothing", place)

    def test_half_an_upload(self, url: str, objects: FolderObjects, place: Path) -> None:
        (objects.path(url) / "manifest.json").unlink()
        with pytest.raises(
            NotADataset, match=f"packing did not finish, or the upload did not.*`packtrain status {url}`"
        ):
            stage(url, place)

    def test_an_address_to_stage_to(self, datasets: tuple[Path, ...]) -> None:
        with pytest.raises(UsageError, match="s3://bucket/copies is a URL"):
            stage(datasets[0], f"{BUCKET}/copies")

    @pytest.mark.parametrize("partial", [False, True])
    def test_a_part(self, url: str, objects: FolderObjects, place: Path, partial: bool) -> None:
        """Nothing can be linked to an object."""
        whole = staged(url, place)
        (entry,) = evict(place, [whole.name])
        with pytest.raises(NoRoom, match=r"open_dataset\(url, stage=, budget=\)`. .* in a store are never partial"):
            stage(url, StageOptions(to=place, budget=entry.bytes - 4096, partial=partial))
        assert_same(staged(url, place, budget=entry.bytes + SLACK, partial=True), objects.path(url))

    def test_a_part_of_a_copy_that_came_from_a_store(self, url: str, place: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        first = staged(url, other)
        with pytest.raises(NoRoom, match=r"open_dataset\(url, stage=, budget=\)"):
            stage(first, StageOptions(to=place, budget=100_000, partial=True))


class TestFaults:
    @pytest.mark.parametrize("name", [".tar", "manifest.json", "plan.json"])
    def test_what_arrives_damaged_is_fetched_again(
        self, url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path, name: str
    ) -> None:
        lies = [1]

        def lie(key: str, offset: int, view: memoryview) -> None:
            if key.endswith(name) and lies:
                view[len(view) // 2] ^= lies.pop()

        objects.spoil = lie
        assert_same(staged(url, place), datasets[3])
        assert not lies

    def test_a_plan_that_stays_wrong_is_named(self, url: str, objects: FolderObjects, place: Path) -> None:
        flip(objects.path(url) / "plan.json", 10)
        with pytest.raises(SourceChanged, match=r"not the plan that the dataset was packed with.*packtrain verify"):
            stage(url, place)

    def test_a_file_that_stays_wrong_is_named(self, url: str, objects: FolderObjects, place: Path) -> None:
        shard = shard_of(objects, url)
        flip(shard, 1000)
        with pytest.raises(SourceChanged, match=f"{url}/{shard.name} is not what was packed: its crc32c") as caught:
            stage(url, place)
        assert caught.value.file == shard.name
        assert f"packtrain verify {url}`" in str(caught.value)
        flip(shard, 1000)
        assert_same(staged(url, place), objects.path(url))

    @pytest.mark.parametrize("how", ["truncated", "missing"])
    def test_an_object_that_is(self, url: str, objects: FolderObjects, place: Path, how: str) -> None:
        shard = shard_of(objects, url)
        os.truncate(shard, 700) if how == "truncated" else shard.unlink()
        with pytest.raises(SourceChanged, match="it has 700 bytes, but" if how == "truncated" else "it is missing"):
            stage(url, place)
        assert [entry.state for entry in entries(place)] == ["interrupted"]

    def test_a_dataset_that_is_replaced_meanwhile(
        self, url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path, tmp_path: Path
    ) -> None:
        """Nothing is mixed: either it is all of the old one, or an error."""
        done = threading.Event()

        def replace(member: str, key: str) -> None:
            if member == "read_into" and key.endswith(".tar") and not done.is_set():
                done.set()
                # Object by object, each at once: other threads are reading.
                for path in filter(Path.is_file, datasets[2].rglob("*")):
                    copy = shutil.copy(path, tmp_path)
                    os.replace(copy, objects.path(url) / path.relative_to(datasets[2]))

        objects.fault = replace
        with pytest.raises(SourceChanged):
            stage(url, place)
        assert_same(staged(url, place), datasets[2])


def test_nobody_continues_while_something_still_writes_for_a_killed_process(
    url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path
) -> None:
    """The process that fetches may outlive the one that asked by a moment, with the file open."""

    def fail(member: str, key: str) -> None:
        if member == "read_into" and key.endswith(".tar"):
            raise RemoteError("reset")

    objects.fault = fail
    with pytest.raises(RemoteError):
        stage(url, place)
    gc.collect()
    objects.fault = lambda member, key: None
    (unfinished,) = root_of(place).glob(".tmp/*/data/*-000001.tar")
    with unfinished.open("rb") as late:
        fcntl.flock(late, fcntl.LOCK_SH)
        objects.requests.clear()
        waiting = threading.Thread(target=staged, args=(url, place))
        waiting.start()
        waits = re.compile(rf"-> FLOCK .*:{os.fstat(late.fileno()).st_ino} ")
        wait_until(lambda: waits.search(Path("/proc/locks").read_text()), "the copy waits for the lock")
        assert objects.asked("read_into") == []
    waiting.join()
    (entry,) = entries(place)
    assert_same(entry.path, datasets[3])


class TestEviction:
    @pytest.mark.parametrize(
        "how", ["the manifest is gone", "a shard is gone", "a shard is shorter", "another dataset"]
    )
    def test_the_only_copy_stays(
        self, url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path, how: str
    ) -> None:
        path = staged(url, place)
        match how:
            case "the manifest is gone":
                (objects.path(url) / "manifest.json").unlink()
            case "a shard is gone":
                shard_of(objects, url).unlink()
            case "a shard is shorter":
                os.truncate(shard_of(objects, url), 100)
            case _:
                shutil.rmtree(objects.path(url))
                shutil.copytree(datasets[2], objects.path(url))
        with pytest.raises(NoRoom, match="may be the only copy"):
            stage(datasets[0], StageOptions(to=place, budget=budget_of(place, 1)))
        assert evict(place) == []
        with pytest.raises(StagingError, match="may be the only copy"):
            evict(place, [path.name])
        assert path.is_dir()

    def test_an_object_that_was_written_again_is_read(
        self, url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path
    ) -> None:
        path = staged(url, place)
        shard = shard_of(objects, url)
        shard.write_bytes(shard.read_bytes())
        with pytest.raises(NoRoom, match=f"{url}/{shard.name} was changed since it was copied"):
            stage(datasets[0], StageOptions(to=place, budget=budget_of(place, 1)))
        flip(shard, 7)
        assert evict(place) == []
        flip(shard, 7)
        assert [entry.path for entry in evict(place)] == [path]

    def test_a_store_that_does_not_answer_is_asked_once(
        self, url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path
    ) -> None:
        other = uploaded(objects, datasets[2], f"{BUCKET}/sets/dogs")
        kept = {staged(url, place), staged(other, place)}
        objects.requests.clear()

        def fail(member: str, key: str) -> None:
            raise RemoteError("timed out")

        objects.fault = fail
        with pytest.raises(NoRoom, match="cannot be looked at"):
            stage(datasets[0], StageOptions(to=place, budget=budget_of(place, 2)))
        assert len(objects.requests) == 1
        assert {entry.path for entry in entries(place)} == kept

    @pytest.mark.parametrize("where", ["store", "network file system"])
    def test_a_source_that_does_not_answer_stops_nobody_else(
        self,
        url: str,
        objects: FolderObjects,
        datasets: tuple[Path, ...],
        place: Path,
        monkeypatch: pytest.MonkeyPatch,
        where: str,
    ) -> None:
        staged(url if where == "store" else datasets[3], place)
        load = SourceDataset.load
        asked, answer = threading.Event(), threading.Event()

        def hang(*_: object) -> None:
            asked.set()
            assert answer.wait(60)

        def load_late(location: Any, *objects: Any, **options: Any) -> SourceDataset:
            if location == datasets[3]:
                hang()
            return load(location, *objects, **options)

        objects.fault = hang
        monkeypatch.setattr(SourceDataset, "load", load_late)
        budget = budget_of(place, 1)
        waiting = threading.Thread(target=stage, args=(datasets[0], StageOptions(to=place, budget=budget)))
        waiting.start()
        assert asked.wait(60)
        try:
            assert len(entries(place)) == 1
            other = staged(datasets[1], place)
            assert_same(other, datasets[1])
            assert evict(place, [other.name])
        finally:
            answer.set()
            waiting.join()
        assert [entry.source for entry in entries(place)] == [datasets[0]]

    def test_a_copy_that_is_there_is_used_though_its_origin_does_not_answer(
        self, url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path
    ) -> None:
        path = staged(url, place)
        objects.fault = lambda member, key: pytest.fail("it asks")
        assert staged(datasets[3], place) == path
        assert staged(path, place) == path


class TestRepair:
    def test_from_the_store(self, url: str, objects: FolderObjects, datasets: tuple[Path, ...], place: Path) -> None:
        path = staged(url, place)
        for name in ("eels-000001.tar", "manifest.json"):
            file = next(path.glob(name.replace("eels", "*")))
            file.chmod(0o600)
            flip(file, 20)
        objects.requests.clear()
        report = repair(place, path)
        assert len(report.files) == 2
        assert_same(path, datasets[3])
        assert len(objects.asked("read_into")) == 1


def test_a_note_holds_no_credentials_and_any_note_can_be_read(url: str, place: Path) -> None:
    path = staged(url, place)
    note = path / "staged.json"
    for text in ('"s3://key:secret@b/x"', '"hdfs://x"', '"s3://"', '"s3:\\u0000"', "7"):
        data = note.read_bytes()
        note.chmod(0o600)
        note.write_bytes(data.replace(f'"{url}"'.encode(), text.encode()))
        assert [entry.source for entry in entries(place)] == [None]
        note.write_bytes(data)
    assert [str(entry.source) for entry in entries(place)] == [url]
