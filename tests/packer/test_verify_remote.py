"""`verify` and `info` of a dataset in an object store find what they find on a disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.staging.remote import BUCKET, FolderObjects, installed
from helpers.support import flip, image_set, packed, shard_bytes
from helpers.versions import changed_dataset

from packtrain import append, drop_version, index_shards, split, verify
from packtrain._core.manifest import Manifest
from packtrain._packer import shard_check, verifier
from packtrain._readers.dataset import summary
from packtrain._readers.dataset.summary import summarise
from packtrain._storage.remote.urls import Url
from packtrain._storage.staging.version_documents import VersionDocuments
from packtrain.errors import CorruptFile, NotADataset, RemoteError
from packtrain.reports import Problem, VerifyProgress

FORMATS = ("tar", "hdf5", "lmdb")
SHARDS = (".tar", ".h5", ".mdb")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which is empty again at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> FolderObjects:
    objects = installed(tmp_path / "store", monkeypatch)
    for module in (shard_check, verifier, summary):
        monkeypatch.setattr(module, "ObjectStore", lambda **_: objects)
    return objects


@pytest.fixture(params=FORMATS)
def dataset(request: pytest.FixtureRequest, objects: FolderObjects, tmp_path: Path) -> Path:
    """A dataset of three shards, in the folder that the store has it in."""
    listing = image_set(tmp_path / "images", 12)
    return packed(listing, objects.path(f"{BUCKET}/a set"), request.param, shard_size=shard_bytes(listing, 4) + 1)


@pytest.fixture
def shards(dataset: Path) -> list[Path]:
    return sorted(path for path in dataset.iterdir() if path.suffix in SHARDS)


URL = f"{BUCKET}/a set"


def local(problems: tuple[Problem, ...], dataset: Path) -> list[Problem]:
    """Problems of a folder, as they should be told of the store."""
    return [replace(problem, message=problem.message.replace(str(dataset), URL)) for problem in problems]


@pytest.mark.complete
@pytest.mark.parametrize("decode", [False, True])
def test_a_sound_dataset(dataset: Path, objects: FolderObjects, temporary: Path, decode: bool) -> None:
    seen: list[VerifyProgress] = []
    most = [0]

    def measure(member: str, key: str) -> None:
        shards = [path for path in temporary.rglob("*") if path.suffix in SHARDS]
        most[0] = max(most[0], len(shards))

    objects.fault = measure
    report = verify(URL, decode_images=decode, on_progress=seen.append)
    assert (report.dataset, report.problems) == (Url.parse(URL), ())
    assert replace(report, dataset=dataset) == verify(dataset, decode_images=decode)
    assert (seen[0], seen[-1]) == (VerifyProgress(0, 12, 0), VerifyProgress(12, 12, 0))
    assert report.shards > 1
    assert most[0] == 1, "one shard at a time"


def test_each_kind_of_damage_is_found_as_on_a_disk(dataset: Path, shards: list[Path]) -> None:
    for name in ("plan.json", "rejects.jsonl"):
        (dataset / name).chmod(0o600)
        (dataset / name).write_bytes(b"other\n")
    for tenth in range(1, 10):
        flip(shards[0], shards[0].stat().st_size * tenth // 10)
    os.truncate(shards[1], shards[1].stat().st_size // 2)
    expected = local(verify(dataset).problems, dataset)
    assert len(expected) > 3
    assert any(problem.row is not None for problem in expected)
    assert list(verify(URL).problems) == expected


def test_a_damaged_index_leaves_the_files_to_be_compared(dataset: Path, shards: list[Path]) -> None:
    flip(dataset / "index" / "label.npy", -1)
    flip(shards[-1], 100)
    assert list(verify(URL).problems) == local(verify(dataset).problems, dataset)


def test_a_shard_that_is_not_there(dataset: Path, shards: list[Path]) -> None:
    shards[0].unlink()
    (problem,) = verify(URL).problems
    assert problem.file == shards[0].name
    assert f"{URL}/{shards[0].name} is not there; its " in problem.message
    assert not problem.unreadable


def test_a_shard_that_cannot_be_read_says_nothing_about_its_content(
    dataset: Path, shards: list[Path], objects: FolderObjects
) -> None:

    def fail(member: str, key: str) -> None:
        if key.endswith(shards[1].name):
            raise RemoteError("503 Slow Down")

    objects.fault = fail
    (problem,) = verify(URL).problems
    assert problem == Problem(shards[1].name, "503 Slow Down", unreadable=True)


def test_what_goes_wrong_on_the_way_is_no_damage(dataset: Path, objects: FolderObjects) -> None:
    lies = [1]

    def lie(key: str, offset: int, view: memoryview) -> None:
        if key.endswith(SHARDS) and lies:
            view[len(view) // 2] ^= lies.pop()

    objects.spoil = lie
    assert verify(URL).problems == ()
    assert not lies


def test_a_run_that_was_stopped_goes_on(dataset: Path, objects: FolderObjects, tmp_path: Path) -> None:
    def stop(state: VerifyProgress) -> None:
        if state.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(URL, journal=tmp_path / "journal", on_progress=stop)
    objects.requests.clear()
    whole = verify(URL, journal=tmp_path / "journal")
    assert whole.records == 12
    assert len([key for key in objects.asked("head") if key.endswith(SHARDS)]) == whole.shards - 1


def test_no_dataset(objects: FolderObjects) -> None:
    for function in (verify, summarise):
        with pytest.raises(NotADataset, match=f"no dataset at {BUCKET}/nothing"):
            function(f"{BUCKET}/nothing")


def test_info(dataset: Path, objects: FolderObjects) -> None:
    found = summarise(URL)
    assert str(found.dataset) == URL
    assert replace(found, dataset=dataset) == summarise(dataset)
    assert not any("train-" in key for _, key in objects.requests), "no shard is read"


def test_info_names_the_store_and_not_the_copy(dataset: Path, objects: FolderObjects) -> None:
    (dataset / "index" / "line.npy").unlink()
    with pytest.raises(CorruptFile, match=f"^{URL}/index/line.npy is missing") as caught:
        summarise(URL)
    assert caught.value.file == "index/line.npy"


def test_a_damaged_manifest_is_a_problem(dataset: Path) -> None:
    flip(dataset / "manifest.json", 30)
    (problem,) = verify(URL).problems
    assert problem.file == "manifest.json"
    assert problem.message.startswith(f"{URL}/manifest.json is damaged")
    shutil.rmtree(dataset)


def test_shards_that_lie_elsewhere_in_the_store(objects: FolderObjects, tmp_path: Path) -> None:
    listing = image_set(tmp_path / "images", 6)
    tars = packed(listing, objects.path(f"{BUCKET}/tars"), "tar", shard_size=shard_bytes(listing, 3) + 1)
    index_shards([tars], out := objects.path(f"{BUCKET}/sets/indexed"))
    (out / "manifest.json").write_bytes(replace(Manifest.load(out), base="../../tars").dump())
    url = f"{BUCKET}/sets/indexed"
    report = verify(url)
    assert (report.records, report.linked, report.problems) == (6, True, ())
    shard = sorted(tars.glob("*.tar"))[1]
    flip(shard, 1000)
    assert {problem.file for problem in verify(url).problems} == {shard.name}


class TestVersions:
    """Of a dataset that was changed, everything is found that is found in a folder."""

    @pytest.fixture
    def changed(self, objects: FolderObjects, tmp_path: Path) -> Path:
        """A dataset of six versions, of which one was dropped, in the folder that the store has it in."""
        out = changed_dataset(image_set(tmp_path / "images", 12), tmp_path)
        split(out, val="25%")
        append(out, image_set(tmp_path / "more", 3))
        drop_version(out, [2])
        objects.lists = True
        objects.path(BUCKET).mkdir(parents=True)
        return out.rename(objects.path(URL))

    @pytest.mark.complete
    def test_a_sound_dataset(self, changed: Path, objects: FolderObjects) -> None:
        left = changed / "segments" / "0123456789abcdef"
        left.mkdir()
        (left / "train-000000.tar").write_bytes(b"of a run that was stopped")
        here = verify(changed)
        assert here.orphans == ("segments/0123456789abcdef",)
        report = verify(URL)
        assert (here.problems, here.changed, here.records) == ((), True, 12 + 3 + 12)
        assert replace(report, dataset=changed) == here
        fetched = [key for key in objects.asked("read_into") if key.endswith(SHARDS)]
        assert len(fetched) == len(set(fetched)) == here.shards, "each shard is fetched once"
        assert replace(summarise(URL), dataset=changed) == summarise(changed)
        assert summarise(URL, "label = 1").rows == summarise(changed, "label = 1").rows

    @pytest.mark.complete
    @pytest.mark.parametrize(
        "name",
        ["*.tar", "segments/*/*.tar", "layers/*/*.tar", "base.json", "versions/00000003.json", "dropped/*", "sides/*"],
    )
    @pytest.mark.parametrize("how", ["flipped", "missing"])
    def test_what_is_wrong_is_named(self, changed: Path, name: str, how: str) -> None:
        path = sorted(changed.glob(name))[0]
        path.chmod(0o600)
        flip(path, path.stat().st_size // 2) if how == "flipped" else path.unlink()
        report, here = verify(URL), verify(changed)
        assert report.problems
        found = {problem.file for problem in report.problems}
        assert found == {problem.file for problem in here.problems}
        # Of a version that is missing, the next one tells.
        assert str(path.relative_to(changed)).replace("3.json", "4.json" if how == "missing" else "3.json") in found
        assert not any("/packtrain-" in problem.message for problem in report.problems)

    def test_its_log(self, changed: Path) -> None:
        there, here = ([*VersionDocuments(place).history()] for place in (Url.parse(URL), changed))
        assert there == here
        assert [(each.version.number, each.dropped) for each in here] == [(n, n == 2) for n in (6, 5, 4, 3, 2, 1)]
