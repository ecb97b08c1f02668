"""Laws of packing one shard: its note says what lies where, and a shard that cannot be right is not published."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.support import image_set, sources, tree

from packtrain import PackOptions, open_dataset, pack
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._packer.lists.reader import read_list
from packtrain._packer.markers import FAILED, PACKED
from packtrain._packer.notes import ListFacts, ShardNote, note_path, read_note
from packtrain._packer.output import Output
from packtrain._packer.planning import outline_plan, plan_shards
from packtrain._packer.shard import ShardProgress, ShardTask, pack_shard
from packtrain.errors import NoSpace, ShardFailed

COUNT = 8
BAD = 3


def task_in(folder: Path, listing: Path, options: PackOptions) -> ShardTask:
    """The task of packing the whole list as one shard."""
    images = read_list(listing, LabelSpec())
    plan = plan_shards(outline_plan(images, options), images)
    assert len(plan.shards) == 1
    (folder / "parts").mkdir(parents=True)
    listed = ListFacts(images.duplicates, tuple(images.rejects))
    return ShardTask(Output(folder), plan, 0, images.entries(plan.ordinals(0)), listed)


def pack_listed(listing: Path, task: ShardTask, report: Callable[[ShardProgress], None]) -> ShardProgress:
    return pack_shard(read_list(listing, LabelSpec()).source, task, report)


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images, one of which is not an image."""
    path = image_set(tmp_path_factory.mktemp("images"), COUNT)
    (path.parent / f"image {BAD}.jpg").write_bytes(b"<html>")
    return path


def left(folder: Path) -> dict[str, bytes]:
    """The files of a folder, without markers."""
    return {name: data for name, data in tree(folder).items() if not name.endswith((FAILED, PACKED))}


def nothing(_: ShardProgress) -> None:
    """Takes no note of reports."""


class TestNote:
    def test_a_line_that_cannot_be_packed_is_in_the_note_and_in_the_result(self, listing: Path, tmp_path: Path) -> None:
        task = task_in(tmp_path, listing, PackOptions(store=StoreOptions("verbatim")))
        done = pack_listed(listing, task, nothing)
        note = read_note(tmp_path, task.plan, 0, Output(tmp_path).holds)
        assert isinstance(note, ShardNote)
        assert done == ShardProgress(0, COUNT, note.rejects)
        assert [(item.line, item.path) for item in done.rejects] == [(BAD, f"image {BAD}.jpg")]


def test_packing_it_again_gives_the_same_bytes_and_leaves_nothing_behind(
    listing: Path, tmp_path: Path, format_name: str
) -> None:
    task = task_in(tmp_path, listing, PackOptions(format_name))
    pack_listed(listing, task, nothing)
    once = left(tmp_path)
    name = task.plan.shards[0].name
    assert set(once) == {name, f"parts/{name}.npz"} | ({"train-000000.idx"} if format_name == "tar" else set())
    (tmp_path / f".{name}.tmp-0123456789ab").write_bytes(b"what a killed packer leaves")
    pack_listed(listing, task, nothing)
    assert left(tmp_path) == once


def test_reports_count_the_lines_one_by_one(listing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtrain._packer.shard._REPORT_SECONDS", -1)
    reports: list[ShardProgress] = []
    task = task_in(tmp_path, listing, PackOptions(store=StoreOptions("verbatim"), seed=None))
    pack_listed(listing, task, reports.append)
    assert [report.lines for report in reports] == list(range(COUNT + 1))
    assert [len(report.rejects) for report in reports] == [0, *(int(line >= BAD) for line in range(COUNT))]


def test_an_environment_with_other_libraries_is_refused_before_anything_is_written(
    listing: Path, tmp_path: Path
) -> None:
    task = task_in(tmp_path, listing, PackOptions(store=StoreOptions("jpeg")))
    other = replace(task, plan=replace(task.plan, encoder="Pillow 1.0"))
    with pytest.raises(ShardFailed, match=r"made with Pillow 1\.0, but this environment has .*transcoder"):
        pack_listed(listing, other, nothing)
    assert left(tmp_path) == {}


def test_a_writer_that_fails_leaves_no_file(
    listing: Path, tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    task = task_in(tmp_path, listing, PackOptions(format_name, StoreOptions("verbatim")))
    monkeypatch.setattr("packtrain._packer.shard.fsync_file", fail)
    with pytest.raises(ShardFailed, match=r"cannot write to .*Input/output error"):
        pack_listed(listing, task, nothing)
    assert left(tmp_path) == {}


def test_the_free_space_in_a_message_is_that_of_the_moment_when_it_was_short(
    listing: Path, tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that of later, when what was written has been removed."""

    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    there: list[bool] = []

    def free_space(path: Path) -> str:
        there.append(any(path.glob(".*.tmp-*")))
        return "5 MiB"

    task = task_in(tmp_path, listing, PackOptions(format_name, StoreOptions("verbatim")))
    monkeypatch.setattr("packtrain._packer.shard.fsync_file", fail)
    monkeypatch.setattr("packtrain._core.files._free_space", free_space)
    with pytest.raises(NoSpace, match=r"no space left for .* 5 MiB free"):
        pack_listed(listing, task, nothing)
    assert there == [True]
    assert left(tmp_path) == {}


class TestUnreadable:
    """A file that cannot be read says nothing of what is in it."""

    @pytest.fixture
    def listing(self, tmp_path: Path) -> Path:
        return image_set(tmp_path / "images", 3)

    def assert_fails_and_can_be_mended(self, listing: Path, out: Path, mend: Callable[[], object]) -> None:
        options = PackOptions(store=StoreOptions("verbatim"), seed=None)
        with pytest.raises(ShardFailed, match=r"cannot read .*image 1\.jpg \(line 1\).* run the same command again"):
            pack(listing, out, options, max_rejects="100%")
        assert not (out / "manifest.json").exists()
        assert not list(out.glob("*.tar")), "a shard was published that lacks a line"
        mend()
        assert pack(listing, out, options).rejects == 0
        assert [bytes(open_dataset(out).record(row)) for row in range(3)] == [
            source.data for source in sources(listing)
        ]

    def test_an_input_error_fails_the_shard(self, listing: Path, tmp_path: Path) -> None:
        path = listing.parent / "image 1.jpg"
        data = path.read_bytes()
        path.unlink()
        path.symlink_to("/proc/self/mem")  # a regular file; reading its first byte is EIO

        def mend() -> None:
            path.unlink()
            path.write_bytes(data)

        self.assert_fails_and_can_be_mended(listing, tmp_path / "out", mend)

    @pytest.mark.parametrize(
        "number", [errno.EACCES, errno.ESTALE, errno.EMFILE, errno.ENOMEM], ids=errno.errorcode.get
    )
    def test_an_error_on_opening_fails_the_shard(
        self, listing: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.open

        def failing(path: str, *arguments: Any, **options: Any) -> int:
            if str(path).endswith("image 1.jpg"):
                raise OSError(number, os.strerror(number), path)
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, "open", failing)
        self.assert_fails_and_can_be_mended(listing, tmp_path / "out", monkeypatch.undo)


def test_refused_lines_are_not_packed_again_into_a_dataset_that_was_merged_meanwhile(
    listing: Path, tmp_path: Path
) -> None:
    """And nobody is told that they were."""
    task = task_in(tmp_path, listing, PackOptions(store=StoreOptions("verbatim")))
    pack_listed(listing, task, nothing)
    (tmp_path / "manifest.json").touch()
    before = left(tmp_path)
    note_path(tmp_path, task.name).unlink()
    assert pack_listed(listing, replace(task, role="cluster"), nothing).lines == COUNT
    with pytest.raises(ShardFailed, match="was merged while refused lines were packed again"):
        pack_listed(listing, replace(task, role="cluster", retry_rejects=True), nothing)
    assert left(tmp_path) == {name: data for name, data in before.items() if not name.endswith(".npz")}
