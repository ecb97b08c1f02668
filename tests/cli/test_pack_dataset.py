"""`packtrain pack` of a dataset: what is not said stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.support import packed

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


def test_options(run: Run, source: Path, tmp_path: Path) -> None:
    arguments = ["--format", "tar", "--store", "jpeg", "--resize", "short=20", "--quality", 70, "--mode", "RGB"]
    code = run("pack", source, tmp_path / "out", *arguments, "--shard-size", "4KiB", "--keep-order").code
    manifest = Manifest.load(tmp_path / "out")
    assert (code, manifest.format, len(manifest.shards) > 1) == (0, "tar", True)
    assert manifest.store == StoreOptions("jpeg", "short=20", 70, orientation="apply")
