"""`packtrain pack` of a dataset: what is not said stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.support import packed, require_module

from packtrain import open_dataset
from packtrain._core.manifest import Manifest
from packtrain._core.options import StoreOptions

from .conftest import Run


@pytest.fixture(scope="module")
def source(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grey and upright dataset in LMDB."""
    return packed(
        images,
        tmp_path_factory.mktemp("source") / "set",
        "lmdb",
        store=StoreOptions("raw", mode="L", orientation="apply"),
    )


def test_what_is_not_said_stays(run: Run, source: Path, tmp_path: Path) -> None:
    outcome = run("pack", source, tmp_path / "same", "--workers", 1)
    assert outcome.code == 0
    assert "12 records in 1 shard(s)" in outcome.out
    before, after = Manifest.load(source), Manifest.load(tmp_path / "same")
    assert (after.format, after.store, after.shards) == (before.format, before.store, before.shards)
    outcome = run("pack", source, tmp_path / "jpeg", "--workers", 1, "--store", "jpeg", "--json")
    assert outcome.json["records"] == 12
    assert Manifest.load(tmp_path / "jpeg").store == StoreOptions("jpeg", mode="L", orientation="apply")


def test_what_is_not_said_stays_as_a_version_has_it(run: Run, source: Path, images: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    assert run("pack", source, changed, "--workers", 1).code == 0
    assert run("append", changed, images, "--workers", 1).code == 0
    outcome = run("pack", changed, tmp_path / "jpeg", "--workers", 1, "--store", "jpeg", "--json")
    assert (outcome.code, outcome.json["records"]) == (0, 24)
    assert Manifest.load(tmp_path / "jpeg").store == StoreOptions("jpeg", mode="L", orientation="apply")


def test_options(run: Run, source: Path, tmp_path: Path) -> None:
    arguments = ["--format", "tar", "--store", "jpeg", "--resize", "short=20", "--quality", 70, "--mode", "RGB"]
    code = run("pack", source, tmp_path / "out", *arguments, "--shard-size", "4KiB", "--keep-order").code
    manifest = Manifest.load(tmp_path / "out")
    assert (code, manifest.format, len(manifest.shards) > 1) == (0, "tar", True)
    assert manifest.store == StoreOptions("jpeg", "short=20", 70, orientation="apply")


def test_where_packs_the_rows_it_chooses(run: Run, source: Path, tmp_path: Path) -> None:
    require_module("polars")
    command = ("pack", source, tmp_path / "some", "--workers", 1, "--where", "label = 1 and row > 2")
    assert run(*command).code == 0
    before, after = open_dataset(source), open_dataset(tmp_path / "some")
    rows = [row for row in range(3, 12) if before.label(row) == 1]
    assert [after.line(row) for row in range(len(after))] == [before.line(row) for row in rows]
    assert [after.filename(row) for row in range(len(after))] == [before.filename(row) for row in rows]
    assert [bytes(after.record(row)) for row in range(len(after))] == [bytes(before.record(row)) for row in rows]
    assert (after.store.manifest.lines, after.store.manifest.rejects) == (len(rows), 0)
    assert "already complete" in run(*command).out
    other = run(*command[:-1], "label = 2")
    assert (other.code, "was packed by another plan" in other.err) == (1, True)
    nothing = run("pack", source, tmp_path / "none", "--where", "label = 99")
    assert (nothing.code, "--where='label = 99': no row of" in nothing.err) == (2, True)
    report = run("info", source, "--where", "label = 1 and row > 2", "--json").json
    assert (report["rows"], report["label_counts"]) == (len(rows), {"1": len(rows)})
    assert report["fields"] == run("info", tmp_path / "some", "--json").json["fields"]
    assert "chosen       0 of 12 records" in run("info", source, "--where", "false").out
    wrong = run("info", source, "--where", "widht > 3")
    assert "--where='widht > 3': there is no column 'widht'; did you mean 'width'?" in wrong.err
