"""Laws of the merge: rows come in list order, each with what its shard's note says, or there is no manifest."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.packing import image_list, plan_of, scratch, with_lines, write_shards
from helpers.support import tree
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.index import Index
from packtrain._core.manifest import Manifest, ShardInfo
from packtrain._packer.columns import ShardColumns
from packtrain._packer.merge import merge_notes
from packtrain._packer.notes import (
    ListFacts,
    NoteFacts,
    ShardNote,
    make_parts,
    read_note,
)
from packtrain._packer.output import Output
from packtrain._packer.rejects import read_rejects
from packtrain.errors import PackError


def columns(folder: Path) -> dict[str, Any]:
    """The index as numpy reads it."""
    return {path.stem: np.load(path) for path in (folder / "index").glob("*.npy")}


@given(data=st.data(), count=st.integers(1, 40), per_shard=st.integers(1, 12), seed=st.none() | st.integers(0, 99))
@pytest.mark.parametrize("labels", ["int", "int*2", "none"])
def test_every_row_says_what_the_notes_say_of_its_line(
    data: st.DataObject, count: int, per_shard: int, seed: int, labels: str
) -> None:
    """Whether it has the list or not, and however few records it may hold at a time."""
    refused = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    at_once = data.draw(st.none() | st.integers(1, 50))
    images = image_list(count, labels=labels)
    plan = plan_of(images, per_shard, seed=seed)
    with scratch() as folder:
        stored = write_shards(folder, plan, images, refused)
        listing = data.draw(st.sampled_from([None, images]))
        manifest = merge_notes(Output(folder), plan, listing, at_once=at_once)
        assert Manifest.load(folder) == manifest
        Index.of(folder, manifest).check_content()
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
    merge_notes(Output(folder), plan_of(image_list(6), 2), image_list(6))
    assert not (folder / "parts").exists()
    assert not (folder / "index" / "old.npy").exists()


@pytest.mark.parametrize(
    "change",
    [lambda lines: lines * 0, lambda lines: lines[[0, 0]], lambda lines: lines + 1],
    ids=["none", "twice", "next"],
)
def test_a_shard_of_other_lines_than_planned_is_refused(folder: Path, change: Any) -> None:
    plan = plan_of(image_list(6), 2, seed=None)
    write_shards(folder, plan, image_list(6))
    note = read_note(folder, plan, 2, Output(folder).holds)
    assert isinstance(note, ShardNote)
    with_lines(note, change(note.columns.arrays["line"])).save(folder)
    before = tree(folder)
    with pytest.raises(PackError, match=rf"shard {plan.shards[2].name} in .* holds other lines than planned"):
        merge_notes(Output(folder), plan, image_list(6))
    assert tree(folder) == before


@pytest.mark.parametrize("at_once", [1, 4, None])
def test_lines_that_two_shards_have_changed_for_each_others_are_found_without_the_list(
    folder: Path, at_once: int | None
) -> None:
    plan, output = plan_of(image_list(6), 2, seed=None), Output(folder)
    write_shards(folder, plan, image_list(6))
    first, third = (read_note(folder, plan, number, output.holds) for number in (0, 2))
    assert isinstance(first, ShardNote)
    assert isinstance(third, ShardNote)
    for note, other in ((first, third), (third, first)):
        with_lines(note, other.columns.arrays["line"]).save(folder)
    before = tree(folder)
    with pytest.raises(PackError, match=rf"shard {plan.shards[0].name} in .* holds other lines than planned"):
        merge_notes(output, plan, at_once=at_once)
    assert tree(folder) == before


@pytest.mark.parametrize("at_once", [1, 4, None])
def test_shards_that_hold_the_same_line_are_named(folder: Path, at_once: int | None) -> None:
    plan, output = plan_of(image_list(6), 2, seed=None), Output(folder)
    write_shards(folder, plan, image_list(6), refused=[1])
    note = read_note(folder, plan, 2, output.holds)
    assert isinstance(note, ShardNote)
    with_lines(note, np.array([1, 5], "<i8")).save(folder)
    names = f"{plan.shards[0].name} and {plan.shards[2].name}"
    with pytest.raises(PackError, match=rf"shards {names} in .* hold the same line, 1\. Remove them"):
        merge_notes(output, plan, at_once=at_once)


def test_lines_in_another_order_of_places_are_as_planned(folder: Path) -> None:
    """LMDB, for one, orders records by its keys."""
    plan = plan_of(image_list(6), 2, seed=None)
    write_shards(folder, plan, image_list(6))
    note = read_note(folder, plan, 0, Output(folder).holds)
    assert isinstance(note, ShardNote)
    replace(note, columns=note.columns.rows(np.array([1, 0]))).save(folder)
    merge_notes(Output(folder), plan, image_list(6))
    assert columns(folder)["by_place"].tolist() == [1, 0, 2, 3, 4, 5]


@pytest.mark.complete
def test_memory_does_not_grow_with_the_records() -> None:
    """Of 80 notes of 2,000 records, with 120 bytes for each, few are in memory at a time."""
    size, plan = 2000, plan_of(image_list(160_000), 2000)
    paths = [b"n00000000/n00000000_00000000.JPEG"] * size
    columns = ShardColumns.of(plan.schema, [0] * size, [0] * size, [((0,) * 6,)] * size, paths)
    with scratch() as folder:
        make_parts(folder)
        for number, shard in enumerate(plan.shards):
            (folder / shard.name).write_bytes(b"")
            facts = NoteFacts(plan.sha256, ShardInfo(shard.name, 0, 0, size, ()), (), ListFacts(0, ()))
            facts = replace(facts, listed=None) if number else facts
            with_lines(ShardNote(facts, columns), plan.ordinals(number)).save(folder)
        tracemalloc.start()
        try:
            assert merge_notes(Output(folder), plan, at_once=4_000).records == 160_000
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # All columns take 19 MB.
    assert peak < 8 << 20
