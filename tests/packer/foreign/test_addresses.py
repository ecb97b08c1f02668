"""An index of shards in an object store is that of the same shards on a disk, and serves as well."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from helpers.local_objects import SPEC, STORE
from helpers.memory import memory_folder
from helpers.objects.fixtures import Started
from helpers.shards import Indexed, write_shards
from helpers.staging.remote import BUCKET, FolderObjects, installed
from helpers.streaming import end_fetchers
from helpers.support import flip, held, tree
from typing_extensions import override

from packtrain import (
    FieldColumn,
    StageOptions,
    add_field,
    append,
    compact,
    drop_rows,
    index_shards,
    merge_datasets,
    open_dataset,
    purge,
    relabel,
    split,
    stage,
    verify,
)
from packtrain._core.index import Index
from packtrain._core.manifest import Link, Manifest
from packtrain._packer import shard_check, verifier
from packtrain._readers.dataset.image_dataset import caches_of, is_remote
from packtrain._readers.dataset.summary import summarise
from packtrain._storage import sequential
from packtrain._storage.remote.objects import Head, ListedObject
from packtrain._storage.remote.urls import Url
from packtrain._storage.streams import cutting, opening
from packtrain.errors import NoRoom, NotThere, OutputConflict, PackError, RemoteError, UsageError
from packtrain.staging import entries

SETS = f"{BUCKET}/sets"


class WritableObjects(FolderObjects):
    """Buckets that can be listed and written to."""

    @override
    def head(self, url: Url) -> Head:
        found, stamp = super().head(url), self.path(url).stat()
        return found._replace(modified_ns=stamp.st_mtime_ns, etag=f'"{stamp.st_ino}"')

    @override
    def list(self, url: Url) -> Iterator[ListedObject]:
        for path in sorted(self.path(url).rglob("*")):
            if path.is_file():
                yield ListedObject(str(path.relative_to(self.path(url))), path.stat().st_size)

    @override
    def write(self, url: Url, data: bytes, *, new: bool = False) -> bool:
        self.fault("write", url.key)
        path = self.path(url)
        if new and path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return True

    @override
    def remove(self, url: Url) -> None:
        self.fault("remove", url.key)
        self.path(url).unlink(missing_ok=True)

    @override
    def upload(self, url: Url, path: Path) -> None:
        self.write(url, path.read_bytes())


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderObjects:
    installed(tmp_path / "store", monkeypatch)
    objects = WritableObjects(tmp_path / "store")
    for module in ("packtrain._storage.remote.client", shard_check.__name__, verifier.__name__):
        monkeypatch.setattr(f"{module}.ObjectStore", lambda **_: objects)
    # Several ranges in the smallest shard.
    monkeypatch.setattr(sequential, "_REQUEST", 700)
    return objects


@pytest.fixture
def shards(objects: FolderObjects) -> list[Path]:
    """Shards in the folder of a store, which is a folder of this machine as well."""
    return write_shards(objects.path(f"{SETS}/shards"), 3)


def without_addresses(folder: Path) -> Manifest:
    """A manifest without where its shards lie, and without what only a store says of them."""
    manifest = Manifest.load(folder)
    plain = [replace(each, link=replace(each.link, etag=None)) for each in manifest.shards if each.link is not None]
    assert all(each.link and Path(each.link.path).name == each.name for each in plain)
    return replace(manifest, base="", name="x", shards=tuple(plain))


@pytest.mark.parametrize("out", ["here", f"{SETS}/out", f"{BUCKET}/out"])
def test_the_index_is_that_of_the_same_shards_on_a_disk(
    objects: FolderObjects, shards: list[Path], tmp_path: Path, out: str
) -> None:
    target = tmp_path / out if out == "here" else objects.path(out)
    there = index_shards(f"{SETS}/shards/train-{{000000..000002}}.tar", tmp_path / out if out == "here" else out)
    here = index_shards(shards, tmp_path / "local")
    assert str(there.dataset) == str(target if out == "here" else out)
    assert replace(there, dataset=here.dataset) == here
    assert tree(target, "manifest.json") == tree(tmp_path / "local", "manifest.json")
    assert without_addresses(target) == without_addresses(tmp_path / "local")
    bases = {"here": f"{SETS}/shards", f"{SETS}/out": "../shards", f"{BUCKET}/out": "../sets/shards"}
    assert Manifest.load(target).base == bases[out]


@pytest.mark.parametrize("out", ["here", f"{SETS}/out"])
def test_it_is_verified_staged_and_read(objects: FolderObjects, shards: list[Path], tmp_path: Path, out: str) -> None:
    dataset = str(tmp_path / out) if out == "here" else out
    index_shards(f"{SETS}/shards", dataset)
    index_shards(shards, tmp_path / "local")
    report, local = verify(dataset, decode_images=True), verify(tmp_path / "local", decode_images=True)
    assert (str(report.dataset), replace(report, dataset=local.dataset)) == (dataset, local)
    (tmp_path / "place").mkdir()
    copy = stage(dataset, tmp_path / "place")
    assert Indexed(copy.path).samples() == Indexed(tmp_path / "local").samples()
    # The copy has the shards, and asks no store.
    asked = len(objects.requests)
    assert verify(copy.path).problems == ()
    assert open_dataset(copy.path)[3][1] == open_dataset(tmp_path / "local")[3][1]
    assert len(objects.requests) == asked


@pytest.mark.parametrize("partly", [False, True])
def test_no_copy_links_to_what_is_not_on_this_machine(
    objects: FolderObjects, shards: list[Path], tmp_path: Path, partly: bool
) -> None:
    index_shards(f"{SETS}/shards", tmp_path / "out")
    index_shards(shards, tmp_path / "local")
    (tmp_path / "place").mkdir()
    options = StageOptions(to=tmp_path / "place", budget=150 << 10, partial=partly)
    with pytest.raises(NoRoom, match="in a store are never partial"):
        stage(tmp_path / "out", options)
    if partly:
        assert 0 < stage(tmp_path / "local", options).local_shards < 3


def test_lists_and_folders(objects: FolderObjects, shards: list[Path], tmp_path: Path) -> None:
    folder, names = f"{SETS}/shards", ["train-000001.tar", "train-000002.tar", "train-000000.tar"]
    Path(objects.path(folder), "list.txt").write_text(f"train-{{000001..000002}}.tar\n\n{folder}/{shards[0].name}\n")
    (tmp_path / "list.txt").write_text("".join(f"{folder}/{name}\n" for name in names))
    for source in (f"@{folder}/list.txt", f"@{tmp_path}/list.txt", Path(f"@{folder}/list.txt")):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        index_shards(source, out)
        assert [shard.name for shard in Manifest.load(out).shards] == names
    with pytest.raises(UsageError, match=rf"has its shards in {folder}: .* stage="):
        open_dataset(out)


@pytest.mark.parametrize(
    ("given", "out", "error", "why"),
    [
        (["shards", "shards/train-000000.tar"], "here", PackError, "is there twice"),
        (["none.tar"], "here", PackError, rf"^{SETS}/none.tar is not there"),
        (
            ["shards/train-000000.tar", "a{1,2}.tar"],
            "here",
            PackError,
            "2 of 3 shards cannot.*(\n.* is not there.*){2}",
        ),
        (["empty"], "here", PackError, "holds nothing that is called"),
        (["cut.tar"], "here", PackError, rf"^{SETS}/cut.tar is cut off"),
        (["shards/train-000000.tar", "{local}"], "here", UsageError, "on this machine and"),
        (["shards/train-000000.tar", "s3://other/train-000001.tar"], "here", UsageError, "two buckets"),
        (["{local}"], f"{SETS}/out", UsageError, "upload them first"),
        (["shards"], "https://host/out", UsageError, "cannot be written to"),
        ([], f"{SETS}/out", UsageError, "cannot be updated"),
        (["shards"], SETS, OutputConflict, "is not empty"),
        (["shards/train-000000.tar"], f"{SETS}/made", OutputConflict, "is not empty"),
    ],
)
def test_what_does_not_fit_is_refused(
    objects: FolderObjects,
    shards: list[Path],
    tmp_path: Path,
    given: list[str],
    out: str,
    error: type[Exception],
    why: str,
) -> None:
    for path in (f"{SETS}/empty/readme.txt", "s3://other/train-000001.tar", f"{SETS}/cut.tar"):
        objects.path(path).parent.mkdir(exist_ok=True)
        objects.path(path).write_bytes(shards[1].read_bytes()[: 3000 if "cut" in path else None])
    if "made" in out:
        index_shards(f"{SETS}/shards", out)
    sources = [each if "://" in each else str(shards[1]) if each == "{local}" else f"{SETS}/{each}" for each in given]
    with pytest.raises(error, match=why):
        index_shards(sources, tmp_path / out if out == "here" else out, update=not given)
    assert not (tmp_path / "here" / "manifest.json").exists()


def test_the_same_index_again_is_complete_unless_a_shard_has_changed(
    objects: FolderObjects, shards: list[Path]
) -> None:
    index_shards(f"{SETS}/shards", f"{SETS}/out")
    assert index_shards(f"{SETS}/shards", f"{SETS}/out").complete_before
    with pytest.raises(OutputConflict, match=f"{SETS}/out was indexed by another plan .label: cls there, none asked"):
        index_shards(f"{SETS}/shards", f"{SETS}/out", label="none")
    os.utime(shards[1], ns=(0, 0))
    with pytest.raises(PackError, match=f"{SETS}/shards/train-000001.tar has changed since it was indexed"):
        index_shards(f"{SETS}/shards", f"{SETS}/out")


@pytest.mark.parametrize("stopped", range(1, 24, 5))
def test_an_upload_that_is_stopped_never_looks_complete_and_is_done_again(
    objects: FolderObjects, shards: list[Path], tmp_path: Path, stopped: int
) -> None:
    left = [stopped]

    def stop(member: str, key: str) -> None:
        left[0] -= member == "write"
        if not left[0]:
            raise RemoteError("stopped")

    objects.fault = stop
    with pytest.raises(RemoteError, match="stopped"):
        index_shards(f"{SETS}/shards", f"{SETS}/out")
    assert not objects.path(f"{SETS}/out/manifest.json").exists()
    objects.fault = lambda member, key: None
    index_shards(f"{SETS}/shards", f"{SETS}/out")
    index_shards(shards, tmp_path / "local")
    assert tree(objects.path(f"{SETS}/out"), "manifest.json") == tree(tmp_path / "local", "manifest.json")


@pytest.mark.parametrize("how", ["grown", "cut", "replaced", "gone"])
def test_a_shard_that_changes_while_it_is_read_is_an_error(
    objects: FolderObjects, shards: list[Path], tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequential, "_REQUESTS", 1)
    reads = [0]

    def change(key: str, offset: int, view: memoryview) -> None:
        reads[0] += key.endswith(shards[1].name) and offset > 0
        if reads[0] != 3:  # The first of these is the look at its end.
            return
        reads[0] += 1
        data = shards[1].read_bytes()
        shards[1].unlink()
        content = {"grown": data + bytes(512), "cut": data[: len(data) // 2], "replaced": data}
        if how in content:
            shards[1].write_bytes(content[how])
            os.utime(shards[1], ns=(0, 0))

    objects.spoil = change
    with pytest.raises((PackError, NotThere), match=f"{shards[1].name} (was changed while it was read|is not there)"):
        index_shards(f"{SETS}/shards", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_updates(objects: FolderObjects, shards: list[Path], tmp_path: Path) -> None:
    out, folder = tmp_path / "out", f"{SETS}/shards"
    index_shards(f"{folder}/train-{{000000..000001}}.tar", out)
    assert index_shards((), out, update=True).compared == 0
    # The same bytes once more: another time, and another tag.
    os.utime(shards[0], ns=(0, 0))
    report = index_shards(folder, out, update=True)
    assert (report.indexed, report.compared, report.shards) == (1, 1, 3)
    index_shards(shards, tmp_path / "local")
    assert tree(out, "manifest.json") == tree(tmp_path / "local", "manifest.json")
    objects.path(folder).rename(objects.path(f"{BUCKET}/moved"))
    with pytest.raises(PackError, match=rf"not there.* `--base DIR`, where DIR is the new place of {folder}$"):
        index_shards((), out, update=True)
    index_shards((), out, update=True, base=f"{BUCKET}/moved")
    assert verify(out).problems == ()
    assert json.loads((out / "manifest.json").read_text())["base"] == f"{BUCKET}/moved"
    flip(objects.path(f"{BUCKET}/moved/{shards[0].name}"), 600)
    with pytest.raises(PackError, match="has changed since it was indexed"):
        index_shards((), out, update=True)


@pytest.mark.complete
@pytest.mark.parametrize(
    "name",
    ["moto", *(pytest.param(each, marks=pytest.mark.stress) for each in ("nginx", "azurite", "fake_gcs", "xml_gcs"))],
)
def test_a_real_store(started_server: Started, tmp_path: Path, name: str) -> None:
    shards, server = write_shards(tmp_path / "shards", 2), started_server(name)
    with server.in_environment():
        folder = Url.parse(server.fresh()) / "a b%20c"
        for shard in shards:
            server.put(f"{server.key(str(folder.parent))}/{folder.name}/{shard.name}", shard.read_bytes())
        index_shards(f"{folder}/train-{{000000..000001}}.tar", tmp_path / "out", num_workers=2)
        index_shards(shards, tmp_path / "local")
        assert tree(tmp_path / "out", "manifest.json") == tree(tmp_path / "local", "manifest.json")
        assert without_addresses(tmp_path / "out").fields == without_addresses(tmp_path / "local").fields
        assert verify(tmp_path / "out").problems == ()
        with memory_folder(tmp_path) as place:
            cached = open_dataset(tmp_path / "out", stage=place, budget="50MiB")
            assert [cached[row][1] for row in range(len(cached))] == list(range(8))
            if server.writable:
                index_shards(folder, folder / "out")
                assert verify(folder / "out").problems == ()


def test_no_more_is_asked_for_than_ends_and_content(objects: FolderObjects, shards: list[Path], tmp_path: Path) -> None:
    index_shards(f"{SETS}/shards", tmp_path / "out")
    for shard in shards:
        ranges = -(-shard.stat().st_size // 700)
        assert objects.asked("read_into").count(f"sets/shards/{shard.name}") == ranges + 2
    link = Manifest.load(tmp_path / "out").shards[0].link
    assert link == Link(shards[0].name, shards[0].stat().st_mtime_ns, f'"{shards[0].stat().st_ino}"')


CHANGES: dict[str, Callable[[Path], object]] = {
    "drop-rows": lambda dataset: drop_rows(dataset, [1, 6]),
    "drop-rows --where": lambda dataset: drop_rows(dataset, where="label > 9 or width = 21"),
    "relabel": lambda dataset: relabel(dataset, listed(dataset, "label", [(2, 7), (5, 0)])),
    "split": lambda dataset: split(dataset, val="25%"),
    "add-field": lambda dataset: add_field(
        dataset,
        listed(dataset, "note", [(2, "a"), (3, "b")]),
        [FieldColumn("note", "text", "note", False, optional=True)],
    ),
}


def listed(dataset: Path, column: str, values: Sequence[tuple[int, object]]) -> Path:
    """Writes a list that has values for some rows of an index."""
    index = Index.of(dataset, Manifest.load(dataset))
    path = dataset.with_suffix(".csv")
    path.write_text(f"path,{column}\n" + "".join(f"{index.text('path', row)},{value}\n" for row, value in values))
    return path


@pytest.fixture
def place(objects: FolderObjects, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for caches, in which a few records make a chunk."""
    monkeypatch.setenv(STORE, str(objects.folder))
    monkeypatch.setattr(cutting, "ENOUGH", 1_500)
    monkeypatch.setattr(cutting, "MOST", 2_048)
    monkeypatch.setattr(opening, "MOST", 2_048)
    for function in (opening.open_stream, opening.open_version):
        monkeypatch.setattr(opening, function.__name__, partial(function, fetch_with=SPEC))
    yield memory_path
    end_fetchers(memory_path)


@pytest.mark.complete
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_index_serves_what_that_of_the_same_shards_on_a_disk_does(
    objects: FolderObjects, shards: list[Path], tmp_path: Path, place: Path, change: str
) -> None:
    out, local = tmp_path / "out", tmp_path / "local"
    index_shards(f"{SETS}/shards", out)
    index_shards(shards, local)
    before = open_dataset(out, stage=place, budget="50MiB")
    for dataset in (out, local):
        CHANGES[change](dataset)
    found = verify(out, decode_images=True)
    assert found.problems == () and replace(found, dataset=local) == verify(local, decode_images=True)
    there, here = summarise(out), summarise(local)
    assert replace(there, dataset=local, manifest=here.manifest) == here
    assert there.manifest.classes == here.manifest.classes
    read, cached = open_dataset(local), open_dataset(out, stage=place, budget="50MiB")
    assert held(cached) == held(read)
    assert cached.targets.tolist() == read.targets.tolist()
    assert is_remote(cached)
    assert [cache.entry for cache in caches_of(cached)] == [cache.entry for cache in caches_of(before)], "it is shared"
    assert held(pickle.loads(pickle.dumps(cached))) == held(read)
    for budget in (None, "50MiB"):
        with pytest.raises(UsageError, match=rf"out has its shards in {SETS}/shards: .* stage="):
            open_dataset(out, budget=budget)
    with pytest.raises(UsageError, match="local is on this machine, and only"):
        open_dataset(local, stage=place, budget="50MiB")
    assert {entry.source for entry in entries(place)} >= {out, Url.parse(f"{SETS}/shards")}
    stage(out, place).lease.close()
    for budget in (None, "50MiB"):
        copied = open_dataset(out, stage=place, budget=budget)
        assert is_remote(copied) and not caches_of(copied) and held(copied) == held(read)


@pytest.mark.parametrize("changed", [False, True])
def test_what_would_copy_records_of_an_index_is_refused_before_anything_is_written(
    objects: FolderObjects, shards: list[Path], tmp_path: Path, changed: bool
) -> None:
    out, more = tmp_path / "out", tmp_path / "more.txt"
    index_shards(f"{SETS}/shards", out)
    more.write_text("1.jpg 1\n")
    if changed:
        drop_rows(out, [0])
    before = tree(tmp_path)
    how = r"`packtrain stage .*out --to DIR`\), and pack the copy"
    with pytest.raises(UsageError, match=how):
        purge(out, [1])
    with pytest.raises(UsageError, match=how):
        merge_datasets([out, out], tmp_path / "merged")
    with pytest.raises(UsageError, match="index all shards" if changed else "`packtrain index --update` adds"):
        append(out, more)
    assert not compact(out).joined
    assert tree(tmp_path) == before
