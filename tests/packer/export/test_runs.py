"""Runs of an export: what continues, what is refused, and what is said of damage."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.datasets import make_dataset
from helpers.reading import streamed_in
from helpers.shards import write_shards
from helpers.streaming import URL
from helpers.support import flip, tree

from packtrain import export, index_shards, open_dataset
from packtrain.errors import CorruptRecord, MissingDependency, OutputConflict, UsageError
from packtrain.reports import ExportProgress, ExportReport

FORMS = pytest.mark.parametrize("to", ["folder", "webdataset", "parquet"])


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "made")


def exported(dataset: Path, out: Path, to: str, **options: Any) -> ExportReport:
    return export(dataset, out, to=to, **{"shard_size": 15_000, **options})


@FORMS
def test_a_run_continues_after_damage_with_what_is_finished(dataset: Path, tmp_path: Path, to: str) -> None:
    expected = exported(dataset, tmp_path / "whole", to)
    assert expected.parts > 2
    out, sound = tmp_path / "out", (dataset / "t-000000.tar").read_bytes()
    flip(dataset / "t-000000.tar", -3000)
    with pytest.raises(CorruptRecord, match=r"field other of row 5 \(.* is damaged") as raised:
        exported(dataset, out, to)
    assert raised.value.row == 5
    assert not [name for name in tree(out) if ".tmp-" in name]
    (dataset / "t-000000.tar").write_bytes(sound)
    seen: list[ExportProgress] = []
    report = exported(dataset, out, to, on_progress=seen.append)
    assert 0 < report.resumed < report.parts
    assert (seen[-1].done, seen[-1].total) == (6, 6)
    assert 0 < seen[0].resumed < seen[0].done
    assert tree(out) == tree(tmp_path / "whole")
    seen.clear()
    again = exported(dataset, out, to, on_progress=seen.append)
    assert (again.complete_before, again.resumed, seen) == (True, report.parts, [])


@FORMS
def test_a_lost_file_is_written_again(dataset: Path, tmp_path: Path, to: str) -> None:
    exported(dataset, tmp_path / "out", to)
    expected = tree(tmp_path / "out")
    lost = {"folder": "list.jsonl"}.get(to) or max(name for name in expected if not name.startswith("."))
    (tmp_path / "out" / lost).unlink()
    exported(dataset, tmp_path / "out", to)
    assert tree(tmp_path / "out") == expected


OTHERWISE: dict[str, Callable[[Path, Path], object]] = {
    "holds an export to parquet, and not to folder": lambda dataset, out: exported(dataset, out, "folder"),
    "with `shard_size` 15000 bytes, and not 16000": lambda dataset, out: exported(
        dataset, out, "parquet", shard_size=16000
    ),
    "of another dataset, or of other rows": lambda dataset, out: exported(
        dataset, out, "parquet", rows=[5, 4, 3, 2, 1, 0]
    ),
}


@pytest.mark.parametrize("message", OTHERWISE)
def test_another_export_is_refused(dataset: Path, tmp_path: Path, message: str) -> None:
    exported(dataset, tmp_path / "out", "parquet")
    before = tree(tmp_path / "out")
    with pytest.raises(OutputConflict, match=message):
        OTHERWISE[message](dataset, tmp_path / "out")
    assert tree(tmp_path / "out") == before


def test_other_content_under_the_same_rows_is_refused(dataset: Path, tmp_path: Path) -> None:
    exported(dataset, tmp_path / "out", "parquet")
    shutil.rmtree(dataset)
    make_dataset(dataset, "hdf5")
    with pytest.raises(OutputConflict, match="of another dataset"):
        exported(dataset, tmp_path / "out", "parquet")


def test_what_lies_there_already_is_left_alone(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(OutputConflict, match=r"out is not empty \(notes.txt\)"):
        exported(dataset, tmp_path / "out", "folder")
    for out in (dataset, dataset / "inside"):
        with pytest.raises(UsageError, match="is the dataset that is to be read, or inside it"):
            exported(dataset, out, "folder")
    with pytest.raises(UsageError, match=r"s3://bucket/x is an address.* name one, and copy it"):
        export(dataset, "s3://bucket/x", to="folder")
    with pytest.raises(UsageError, match="there is no row to export"):
        exported(dataset, tmp_path / "new", "folder", rows=[])
    with pytest.raises(UsageError, match="to='zip': expected one of folder, webdataset, parquet"):
        exported(dataset, tmp_path / "new", "zip")
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_by_a_link(dataset: Path, tmp_path: Path) -> None:
    """Not even if somebody else has begun the same export there."""
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    exported(dataset, out, "folder")
    theirs.mkdir()
    (out / "list.jsonl").unlink()
    (place := out / ".parts").symlink_to(theirs)
    with pytest.raises(OutputConflict, match=rf"{place} is a link, which leads out of {out}: remove it"):
        exported(dataset, out, "folder")
    assert not list(theirs.iterdir())


def test_parquet_without_pyarrow_names_the_extra(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install .*\[parquet\]"):
        exported(dataset, tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()


def test_tars_of_others_are_exported(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", 2)
    index_shards(tmp_path / "shards", tmp_path / "indexed")
    report = export(tmp_path / "indexed", tmp_path / "out", to="webdataset")
    index_shards(tmp_path / "out", tmp_path / "again")
    one, two = open_dataset(tmp_path / "indexed"), open_dataset(tmp_path / "again")
    assert report.rows == len(one) == len(two)
    for row in range(len(one)):
        assert one.record(row) == two.record(row)
        assert one.label(row) == two.label(row)


@pytest.mark.complete
def test_a_dataset_in_an_object_store_takes_a_folder_for_its_cache(
    tmp_path: Path, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamed_in(memory_path, monkeypatch) as stream:
        with pytest.raises(UsageError, match=f"{URL} is in an object store: name a folder .* with `stage`"):
            export(str(URL), tmp_path / "out", to="folder")
        export(stream.open(), tmp_path / "out", to="folder")
        export(stream.local(), tmp_path / "local", to="folder")
    assert tree(tmp_path / "out") == tree(tmp_path / "local")
