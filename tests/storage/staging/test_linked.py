"""Datasets whose shards lie elsewhere are staged like any others: the copy is whole."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.staging.laws import SHARDS, digests, packed_pictures
from helpers.staging.unused import room_for
from helpers.support import flip

from packtrain import StageOptions, stage
from packtrain._core.manifest import Link, Manifest
from packtrain.errors import SourceChanged
from packtrain.staging import repair


def linked(dataset: Path, folder: Path, base: str) -> Path:
    """The same dataset in another folder, with links to the shards where they are."""
    manifest = Manifest.load(dataset)
    folder.mkdir(parents=True)
    for name in ("plan.json", "rejects.jsonl"):
        shutil.copy(dataset / name, folder / name)
    shutil.copytree(dataset / "index", folder / "index")
    shards = tuple(
        replace(shard, sidecars=(), link=Link(shard.name, os.stat(dataset / shard.name).st_mtime_ns))
        for shard in manifest.shards
    )
    (folder / "manifest.json").write_bytes(replace(manifest, shards=shards, base=base).dump())
    return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    packed_pictures(tmp_path / "foreign", 1)
    return linked(tmp_path / "foreign", tmp_path / "indexed", "../foreign")


def shards(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in digests(folder).items() if name.endswith(".tar")}


def test_the_copy_holds_the_shards_themselves(dataset: Path, place: Path, tmp_path: Path) -> None:
    staged = stage(dataset, place)
    assert (staged.shards, staged.local_shards) == (SHARDS, SHARDS)
    assert shards(staged.path) == shards(tmp_path / "foreign")
    assert not any(path.is_symlink() for path in staged.path.iterdir())
    assert stage(dataset, place).copied == 0


def test_what_does_not_fit_is_a_link_to_the_shard_itself(dataset: Path, place: Path, tmp_path: Path) -> None:
    budget = room_for(dataset, place, 1)
    staged = stage(dataset, StageOptions(to=place, budget=budget, partial=True))
    # A copy of that copy links to the shards, too, not to something that may be evicted.
    (tmp_path / "faster").mkdir()
    again = stage(staged.path, StageOptions(to=tmp_path / "faster", budget=budget, partial=True))
    for folder in (staged.path, again.path):
        links = [path for path in folder.iterdir() if path.is_symlink()]
        assert links and all(path.resolve() == tmp_path / "foreign" / path.name for path in links)
        assert shards(folder) == shards(tmp_path / "foreign")


def test_a_shard_that_changed_is_not_staged(dataset: Path, place: Path, tmp_path: Path) -> None:
    name = Manifest.load(dataset).shards[1].name
    flip(tmp_path / "foreign" / name, 700)
    with pytest.raises(SourceChanged, match=f"foreign/{name}"):
        stage(dataset, place)


def test_a_lost_or_damaged_copy_is_repaired_from_the_shard(dataset: Path, place: Path, tmp_path: Path) -> None:
    staged = stage(dataset, place)
    lost, damaged = (shard.name for shard in Manifest.load(dataset).shards[:2])
    (staged.path / lost).unlink()
    (staged.path / damaged).chmod(0o600)
    flip(staged.path / damaged, 700)
    assert set(repair(place, staged.path).files) == {lost, damaged}
    assert shards(staged.path) == shards(tmp_path / "foreign")
