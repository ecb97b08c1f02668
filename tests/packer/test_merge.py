"""Laws of the merge: rows come in list order, each with what its shard's note says, or there is no manifest."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers.packing import image_list, plan_of, scratch, write_shards
from helpers.support import flip, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain._core.manifest import Manifest
from packtrain._core.options import LabelSpec
from packtrain._packer.listing import Reject
from packtrain._packer.lists.image_list import ImageList
from packtrain._packer.merge import merge, read_rejects
from packtrain._packer.notes import load_note, note_path
from packtrain.errors import CorruptFile, PackError


def columns(folder: Path) -> dict[str, Any]:
    """The index as numpy reads it."""
    return {path.stem: np.load(path) for path in (folder / "index").glob("*.npy")}


@settings(max_examples=25)
@given(data=st.data(), count=st.integers(1, 40), per_shard=st.integers(1, 12), seed=st.none() | st.integers(0, 99))
@pytest.mark.parametrize("labels", ["int", "int*2", "none"])
def test_every_row_says_what_the_notes_say_of_its_line(
    data: st.DataObject, count: int, per_shard: int, seed: int, labels: str
) -> None:
    refused = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    images = image_list(count, labels=labels)
    plan = plan_of(images, per_shard, seed=seed)
    with scratch() as folder:
        stored = write_shards(folder, plan, images, refused)
        manifest = merge(folder, plan, images)
        assert Manifest.load(folder) == manifest
        index, rejects = columns(folder), read_rejects(folder, manifest)

    lines = sorted(stored)
    assert lines == [line for line in range(count) if line not in refused]
    assert index["line"].tolist() == lines
    assert index["shard"].tolist() == [stored[line].shard for line in lines]
    for name in ("offset", "length", "crc32c", "width", "height", "orientation"):
        assert index[name].tolist() == [stored[line].values[name] for line in lines], name
    assert index["by_place"].tolist() == [lines.index(line) for line in stored], "in the order of places"
    texts = index["path_bytes"].tobytes()
    paths = [texts[start:stop].decode() for start, stop in pairwise(index["path_offsets"].tolist())]
    assert paths == [f"folder/{line}.jpg" for line in lines]
    if labels == "none":
        assert "label" not in index
    else:
        assert index["label"].tolist() == [7 * line if labels == "int" else [7 * line, -line] for line in lines]
    assert (manifest.records, manifest.rejects, manifest.lines) == (len(lines), len(refused), count)
    assert [item.line for item in rejects] == sorted(refused)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three shards of two lines each, and their notes."""
    write_shards(tmp_path, plan_of(image_list(6), 2), image_list(6))
    return tmp_path


def test_a_finished_dataset_has_no_notes_and_no_column_of_an_earlier_merge(folder: Path) -> None:
    (folder / "index").mkdir()
    (folder / "index" / "old.npy").write_bytes(b"")
    merge(folder, plan_of(image_list(6), 2), image_list(6))
    assert not (folder / "parts").exists()
    assert not (folder / "index" / "old.npy").exists()


def test_a_missing_shard_is_named_and_there_is_no_manifest(folder: Path) -> None:
    plan = plan_of(image_list(6), 2)
    (folder / plan.shards[1].name).unlink()
    with pytest.raises(PackError, match=rf"shard {plan.shards[1].name} is missing from .*\. Run the same pack command"):
        merge(folder, plan, image_list(6))
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    "change",
    [lambda lines: lines * 0, lambda lines: lines[[0, 0]], lambda lines: lines + 1],
    ids=["none", "twice", "next"],
)
def test_a_shard_of_other_lines_than_planned_is_refused(folder: Path, change: Any) -> None:
    plan = plan_of(image_list(6), 2, seed=None)
    write_shards(folder, plan, image_list(6))
    note = load_note(folder, plan, 2)
    assert note is not None
    replace(note, columns={**note.columns, "line": change(note.columns["line"])}).save(folder)
    before = tree(folder)
    with pytest.raises(PackError, match=rf"shard {plan.shards[2].name} in .* holds other lines than planned"):
        merge(folder, plan, image_list(6))
    assert tree(folder) == before


def test_lines_in_another_order_of_places_are_as_planned(folder: Path) -> None:
    """LMDB, for one, orders records by its keys."""
    plan = plan_of(image_list(6), 2, seed=None)
    write_shards(folder, plan, image_list(6))
    note = load_note(folder, plan, 0)
    assert note is not None
    replace(note, columns={name: values[::-1] for name, values in note.columns.items()}).save(folder)
    merge(folder, plan, image_list(6))
    assert columns(folder)["by_place"].tolist() == [1, 0, 2, 3, 4, 5]


def test_a_list_of_which_every_line_is_refused_is_no_dataset(tmp_path: Path) -> None:
    plan = plan_of(image_list(4), 3)
    write_shards(tmp_path, plan, image_list(4), refused=range(4))
    with pytest.raises(PackError, match="no line of 4 could be packed; the first: line 0: empty file"):
        merge(tmp_path, plan, image_list(4))
    assert not (tmp_path / "manifest.json").exists()


def test_rejects_of_the_list_and_of_the_shards_come_in_line_order(tmp_path: Path) -> None:
    text = b"a 0\nno-label\nb 0\ncaf\xe9 x\n\nc 0\n"
    images = ImageList(text, LabelSpec(), name="set", root=tmp_path)
    plan = plan_of(images, 1)
    write_shards(tmp_path, plan, images, refused=[2, 5])
    manifest = merge(tmp_path, plan, images)
    found = read_rejects(tmp_path, manifest)
    assert [(item.line, item.path) for item in found] == [(1, "no-label"), (2, "b"), (3, "caf\udce9 x"), (5, "c")]
    data = (tmp_path / "rejects.jsonl").read_bytes()
    assert [Reject(**json.loads(line)) for line in data.splitlines()] == found
    assert (manifest.rejects_file.bytes, manifest.rejects_file.crc32c) == (len(data), crc32c(data))
    assert (manifest.lines, manifest.records, manifest.rejects) == (5, 1, 4)


def test_damaged_or_missing_rejects_are_not_read(tmp_path: Path) -> None:
    plan = plan_of(image_list(4), 3)
    write_shards(tmp_path, plan, image_list(4), refused=[2])
    manifest = merge(tmp_path, plan, image_list(4))
    flip(tmp_path / "rejects.jsonl", 5)
    with pytest.raises(CorruptFile, match=r"rejects\.jsonl is damaged"):
        read_rejects(tmp_path, manifest)
    (tmp_path / "rejects.jsonl").unlink()
    with pytest.raises(CorruptFile, match=r"rejects\.jsonl is missing"):
        read_rejects(tmp_path, manifest)


def test_the_notes_outlive_a_merge_that_fails(folder: Path) -> None:
    plan = plan_of(image_list(6), 2)
    note_path(folder, plan.shards[2].name).unlink()
    before = tree(folder)
    with pytest.raises(PackError):
        merge(folder, plan, image_list(6))
    assert tree(folder) == before
