"""`packtrain index --update` for old shards: copied, touched, moved, changed or missing."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.shards import Indexed, write_shards
from helpers.support import spoil, tree

from packtrain import open_dataset, stage, verify
from packtrain._core.errors import CorruptFile, OutputConflict, PackError
from packtrain._core.manifest import Manifest
from packtrain._packer.foreign.indexer import IndexProgress, index_shards


def other_time(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))


@pytest.mark.complete
def test_only_shards_with_another_time_are_read_and_nothing_but_their_times_changes(tmp_path: Path) -> None:
    shards, out = write_shards(tmp_path / "shards", 4), tmp_path / "out"
    index_shards(shards, out)
    before, manifest, seen = tree(out, "manifest.json"), Manifest.load(out), list[IndexProgress]()
    other_time(shards[0])
    other_time(shards[2])
    # No time says so: an update does not see it, as it does not read the shard.
    spoil(shards[3], "flipped, with its old times")
    report = index_shards((), out, update=True, num_workers=2, on_progress=seen.append)
    assert (report.indexed, report.compared, report.shards) == (0, 2, 4)
    size = shards[0].stat().st_size + shards[2].stat().st_size
    assert seen[-1] == IndexProgress(size, size, 0)
    assert tree(out, "manifest.json") == before
    now = Manifest.load(out)
    assert now.identity == manifest.identity
    assert [shard.link and shard.link.modified_ns for shard in now.shards] == [
        shard.stat().st_mtime_ns for shard in shards
    ]
    assert open_dataset(out)[0][1] == 0
    stamp = (out / "manifest.json").stat().st_ino
    assert index_shards((), out, update=True).compared == 0
    assert (out / "manifest.json").stat().st_ino == stamp


def test_a_copy_of_shards_and_dataset_is_taken(tmp_path: Path) -> None:
    place, copy = tmp_path / "place", tmp_path / "copy"
    shards = write_shards(place / "shards", 3)
    index_shards(shards[:2], place / "out")
    for shard in shards:
        other_time(shard)
    shutil.copytree(place, copy, copy_function=shutil.copy)
    report = index_shards(copy / "shards" / shards[2].name, copy / "out", update=True)
    assert (report.compared, report.indexed, report.shards) == (2, 1, 3)
    shutil.rmtree(place)
    assert not verify(copy / "out").problems
    assert len(open_dataset(copy / "out")) == 12


def other_size(path: Path) -> None:
    """Cuts a file off, and leaves its time as it is."""
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    os.truncate(path, 512)
    os.utime(path, ns=times)


@pytest.mark.parametrize("change", [other_time, other_size])
def test_other_bytes_are_refused_and_leave_the_dataset_alone(tmp_path: Path, change: Any) -> None:
    shards, out = write_shards(tmp_path / "shards", 3), tmp_path / "out"
    index_shards(shards[:2], out)
    manifest = (out / "manifest.json").read_bytes()
    other_time(shards[0])
    spoil(shards[1], "flipped, with its old times")
    change(shards[1])
    for given in ([], shards):
        with pytest.raises(PackError, match=r"000001.tar has changed since it was indexed\. Index all shards again"):
            index_shards(given, out, update=True)
    assert (out / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("to", ["beside/deep", "elsewhere"])
@pytest.mark.parametrize("keep_times", [True, False])
def test_shards_can_be_moved(tmp_path: Path, to: str, keep_times: bool) -> None:
    old, new, out = tmp_path / "here" / "old", tmp_path / "here" / to, tmp_path / "here" / "sets" / "out"
    shards = [*write_shards(old / "a", 2), *write_shards(old / "b", 1)]
    index_shards(shards, out)
    samples = Indexed(out).samples()
    new.parent.mkdir(exist_ok=True)
    old.rename(new)
    with pytest.raises(
        CorruptFile, match=rf"if the shards were moved, run `packtrain index --update --base DIR {out}`"
    ):
        open_dataset(out)[0]
    if not keep_times:
        other_time(new / "a" / shards[1].name)
    with pytest.raises(
        PackError, match=rf"000000.tar cannot be read: .* add `--base DIR`, where DIR is the new place of {old}$"
    ):
        index_shards((), out, update=True)
    report = index_shards((), out, update=True, base=new)
    assert report.compared == (not keep_times)
    assert Indexed(out).samples() == samples
    assert Manifest.load(out).base == str(new)
    assert not verify(out).problems


def test_moved_shards_are_relative_where_they_lie_together(tmp_path: Path) -> None:
    shards, out = write_shards(tmp_path / "far" / "shards", 2), tmp_path / "near" / "out"
    index_shards(shards, out)
    assert Manifest.load(out).base == str(tmp_path / "far" / "shards")
    (tmp_path / "far" / "shards").rename(tmp_path / "near" / "shards")
    extra = write_shards(tmp_path / "near" / "more", 1)
    extra[0].rename(extra[0].with_name("extra.tar"))
    given = [tmp_path / "near" / "shards", tmp_path / "near" / "more"]
    report = index_shards(given, out, update=True, base=tmp_path / "near" / "shards")
    assert (report.indexed, report.compared, report.records) == (1, 0, 12)
    assert Manifest.load(out).base == ".."
    (tmp_path / "near").rename(tmp_path / "nearer")
    assert not verify(tmp_path / "nearer" / "out").problems


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards, out = write_shards(tmp_path / "shards", 3), tmp_path / "out"
    index_shards(shards, out)
    manifest = (out / "manifest.json").read_bytes()
    (tmp_path / "shards").rename(tmp_path / "moved")
    (tmp_path / "moved" / shards[1].name).unlink()
    with pytest.raises(PackError, match=rf"{tmp_path}/moved/train-000001.tar cannot be read"):
        index_shards((), out, update=True, base=tmp_path / "moved")
    assert (out / "manifest.json").read_bytes() == manifest


def test_what_an_update_would_lose_is_refused(tmp_path: Path, memory_path: Path) -> None:
    """It replaces the folder of the dataset with all that is in it."""
    shards, out = write_shards(tmp_path / "shards", 2), tmp_path / "out"
    index_shards(shards[:1], out)
    staged = stage(out, memory_path)
    with pytest.raises(OutputConflict, match="update the one that was staged"):
        index_shards(shards, staged.path, update=True)
    inside = out / "inside.tar"
    shutil.copy2(shards[1], inside)
    (tmp_path / "link.tar").symlink_to(inside)
    for given, why in (
        (inside, r"inside.tar lies in the dataset's own folder"),
        (tmp_path / "link.tar", r"link.tar lies in the dataset's own folder"),
        (shards, r"inside.tar, which is no part of the dataset"),
    ):
        with pytest.raises(OutputConflict, match=why):
            index_shards(given, out, update=True)
    assert inside.is_file() and Manifest.load(out).records == 4 and (staged.path / shards[0].name).is_file()


def test_what_readers_and_verify_say_can_be_typed(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 1)
    out = index_shards(shards, tmp_path / "my out").dataset
    other_time(shards[0])
    command = f"`packtrain index --update {shlex.quote(str(out))}`"
    with pytest.raises(CorruptFile) as caught:
        open_dataset(out)[0]
    (problem,) = verify(out).problems
    assert command in str(caught.value) and command in problem.message
    index_shards((), out, update=True)
    assert not verify(out).problems
