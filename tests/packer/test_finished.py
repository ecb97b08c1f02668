"""Laws of reopening: what is sound is noted as it was before the merge, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.packing import image_list, plan_of, scratch, write_shards
from helpers.support import flip, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain._core.manifest import ShardInfo
from packtrain._packer.finished import reopen
from packtrain._packer.listing import Reject
from packtrain._packer.merge import merge_notes
from packtrain._packer.notes import ShardNote, read_note
from packtrain._packer.output import Output
from packtrain.errors import CorruptFile

IMAGES = image_list(20)
PLAN = plan_of(IMAGES, 4)


Facts = tuple[ShardInfo, list[Reject], dict[str, list[int]]]


def noted(folder: Path) -> dict[int, Facts]:
    """The notes in `folder`, by the number of their shard."""
    notes = {number: read_note(folder, PLAN, number, Output(folder).holds) for number in range(len(PLAN.shards))}
    return {
        number: (
            note.info,
            sorted(note.rejects, key=lambda item: item.line),
            {name: values.tolist() for name, values in note.columns.arrays.items()},
        )
        for number, note in notes.items()
        if isinstance(note, ShardNote)
    }


def finished(folder: Path, refused: set[int]) -> dict[int, Facts]:
    """Merges a dataset in `folder`. Returns what its notes said."""
    write_shards(folder, PLAN, IMAGES, refused)
    before = noted(folder)
    merge_notes(Output(folder), PLAN, IMAGES)
    return before


def rejecting(refused: set[int]) -> set[int]:
    """The shards that were to hold these lines."""
    return {n for n in range(len(PLAN.shards)) if refused & set(IMAGES.line_numbers(PLAN.ordinals(n)).tolist())}


@pytest.mark.complete
@settings(max_examples=25)
@given(
    refused=st.sets(st.integers(0, 19), max_size=8),
    lost=st.sets(st.integers(0, len(PLAN.shards) - 1)),
    retry=st.booleans(),
)
def test_the_notes_of_sound_shards_come_back(refused: set[int], lost: set[int], retry: bool) -> None:
    with scratch() as folder:
        before = finished(folder, refused)
        complete = tree(folder)
        for number in lost:
            (folder / PLAN.shards[number].name).unlink()
        again = lost | (rejecting(refused) if retry else set())
        reopened = reopen(Output(folder), PLAN, IMAGES, retry)
        if again:
            assert reopened
            assert not (folder / "manifest.json").exists()
            assert noted(folder) == {number: facts for number, facts in before.items() if number not in again}
            write_shards(folder, PLAN, IMAGES, refused)
            merge_notes(Output(folder), PLAN, IMAGES)
        else:
            assert not reopened
            assert not (folder / "parts").exists()
        assert tree(folder) == complete


def test_another_plan_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    finished(tmp_path, set())
    before = tree(tmp_path)
    with pytest.raises(CorruptFile, match="manifest and plan do not belong together"):
        reopen(Output(tmp_path), replace(PLAN, shard_bytes=1), IMAGES, False)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["manifest.json", "rejects.jsonl", "index/offset.npy", "index/path_bytes.npy"])
def test_damage_is_found_before_anything_is_written(tmp_path: Path, name: str) -> None:
    finished(tmp_path, {3})
    (tmp_path / PLAN.shards[0].name).unlink()
    flip(tmp_path / name, -2)
    before = tree(tmp_path)
    with pytest.raises(CorruptFile):
        reopen(Output(tmp_path), PLAN, IMAGES, False)
    assert tree(tmp_path) == before
    assert not (tmp_path / "parts").exists()


def test_a_dataset_without_its_index_is_not_complete(tmp_path: Path) -> None:
    finished(tmp_path, set())
    path = tmp_path / "index" / "length.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFile, match=f"^{path} is missing, or has another size .* remove {tmp_path}/manif"):
        reopen(Output(tmp_path), PLAN, IMAGES, False)
    path.write_bytes(whole)
    assert not reopen(Output(tmp_path), PLAN, IMAGES, False)


def test_a_lost_sidecar_costs_its_shard(tmp_path: Path) -> None:
    finished(tmp_path, set())
    (tmp_path / PLAN.shards[1].name).with_suffix(".idx").unlink()
    assert reopen(Output(tmp_path), PLAN, IMAGES, False)
    assert f"{PLAN.shards[1].name}.npz" not in tree(tmp_path / "parts")
