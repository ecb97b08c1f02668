"""Indexing that stops goes on, and parts make the same dataset as one run: scans are kept in notes until then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.faults.campaign import Campaign, Program, renewed
from helpers.faults.harness import Action, FaultServer
from helpers.shards import jpeg, write_shards, write_tar
from helpers.support import tree
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import index_shards, merge, pack_status, verify
from packtrain._core.manifest import Manifest
from packtrain._packer.foreign import indexer
from packtrain.errors import OutputConflict, PackError, TooManyRejects
from packtrain.reports import IndexProgress

INDEX = """
from packtrain._packer.foreign.indexer import index_shards
index_shards(args["shards"], args["out"], update=args["update"], part=args["part"])
"""
WARM_UP = f"""
import tempfile
with tempfile.TemporaryDirectory() as folder:
    exec({INDEX!r}, {{"args": {{**args, "out": folder + "/out"}}}})
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_shards(tmp_path_factory.mktemp("shards"), 4)


@pytest.fixture(scope="module")
def faults(fault_library: Path, shards: list[Path]) -> Iterator[FaultServer]:
    """Processes that have indexed once already and fork from there."""
    with FaultServer(fault_library, WARM_UP, arguments(shards, "")) as server:
        yield server


def arguments(shards: list[Path], out: Path | str, *, update: bool = False, part: str | None = None) -> dict[str, Any]:
    return {"shards": [str(shard) for shard in shards], "out": str(out), "update": update, "part": part}


def notes(out: Path) -> list[Path]:
    return sorted((out / "parts").glob("*.scan"))


def fresh(shards: list[Path], out: Path) -> dict[str, bytes]:
    """The files of an undisturbed run, which lie where they are compared with those of another."""
    index_shards(shards, out)
    found = tree(out)
    out.rename(out.with_name(f"fresh-{out.name}"))
    return found


@pytest.mark.complete
@pytest.mark.parametrize("update", [False, True])
def test_killed_anywhere_and_run_again_gives_the_same_bytes(
    faults: FaultServer, shards: list[Path], memory_path: Path, campaign: Campaign, update: bool
) -> None:
    folder = memory_path / "watched"
    out = folder / "out"

    def prepare(folder: Path) -> None:
        renewed(folder).mkdir()
        if update:
            index_shards(shards[:1], out)

    program = Program(faults, INDEX, arguments(shards, out, update=update), folder, prepare)
    calls = program.undisturbed()
    expected = tree(out)
    for _ in campaign(program, calls, Action.KILL, Action.TEAR):
        if (out / "manifest.json").exists():
            assert not verify(out).problems
        before = notes(out)
        report = index_shards(shards, out, update=update)
        assert report.resumed == (len(before) if report.indexed else 0)
        assert tree(out) == expected
        assert not notes(out)
        assert os.listdir(folder) == ["out"]


def test_a_merge_names_what_is_missing_and_gives_the_bytes_of_one_run(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    expected = fresh(shards, out)
    report = index_shards(shards, out, part="2/3")
    assert (report.shards, report.indexed, report.records, report.missing) == (1, 1, 4, 3)
    status = pack_status(out)
    assert (status.done, status.missing, status.array) == (1, tuple(str(shards[n]) for n in (0, 2, 3)), "1,3-4")
    with pytest.raises(PackError, match=rf"3 of 4 shards have not been read.*{shards[0]} and 2 more"):
        merge(out)
    # Parts of another number cover the rest.
    index_shards(shards, out, part="1/2")
    assert index_shards(shards, out, part="2/2").resumed == 1
    assert not pack_status(out).complete and not merge(out).complete_before
    assert pack_status(out).complete and merge(out).complete_before
    assert tree(out) == expected
    assert index_shards(shards, out, part="1/2").complete_before


def test_all_parts_have_one_list_and_a_run_without_parts_replaces_it(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    index_shards(shards, out, part="1/2")
    for other in ({"shards": shards[:3]}, {"shards": shards, "label": "none"}):
        with pytest.raises(OutputConflict, match="is being indexed with other shards or other options"):
            index_shards(**{"out": out, "part": "1/2", **other})  # type: ignore[arg-type]
    report = index_shards(shards[1:], out)
    assert (report.shards, report.resumed) == (3, 1)


def test_a_part_that_begins_again_behind_a_merge_changes_nothing(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    expected = fresh(shards, out)
    index_shards(shards, out, part="1/1")
    merge(out)
    with monkeypatch.context() as patch:
        # As if the merge came after it had looked.
        patch.setattr(indexer, "_manifest_at", lambda *_: None)
        patch.setattr(indexer, "_require_free", lambda *_: None)
        index_shards(shards, out, part="1/1")
        with pytest.raises(OutputConflict, match="changed by somebody else"):
            index_shards(shards, out)
        with pytest.raises(OutputConflict, match="changed by somebody else"):
            merge(out)
    assert merge(out).complete_before
    assert tree(out) == expected
    assert not (out / "parts").exists()
    with pytest.raises(OutputConflict, match="is not empty"):
        index_shards(shards[1:], out, part="1/1")


def test_a_part_of_an_update(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    index_shards(shards[:1], out)
    index_shards(shards, out, update=True)
    expected = tree(out, "manifest.json")
    other = tmp_path / "other" / "out"
    index_shards(shards[:1], other)
    for number in (1, 2):
        index_shards(shards, other, update=True, part=f"{number}/2")
        assert Manifest.load(other).records == 4
        assert not verify(other).problems
    merge(other)
    assert tree(other, "manifest.json") == expected


def test_a_shard_that_changes_while_others_are_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, out = write_shards(tmp_path / "shards", 3), tmp_path / "out"
    changes = iter([jpeg(77)])

    def change(progress: IndexProgress) -> None:
        if progress.done > shards[0].stat().st_size and (data := next(changes, None)):
            write_tar(shards[0], [("new.jpg", data), ("new.cls", b"5")])

    report = index_shards(shards, out, on_progress=change)
    found = tree(out)
    assert report.records == 9
    out.rename(tmp_path / "old")
    index_shards(shards, out)
    assert tree(out) == found


def test_a_shard_that_changes_all_the_time_is_refused_by_name(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 2)

    def change(progress: IndexProgress) -> None:
        if progress.done == progress.total:
            os.utime(shards[0], ns=(0, shards[0].stat().st_mtime_ns + 1))

    with pytest.raises(PackError, match=rf"{shards[0]} was changed"):
        index_shards(shards, tmp_path / "out", on_progress=change)


def test_a_shard_that_changes_before_the_merge_is_refused_by_name(tmp_path: Path) -> None:
    shards, out = write_shards(tmp_path / "shards", 2), tmp_path / "out"
    index_shards(shards, out, part="1/1")
    os.utime(shards[1], ns=(0, 0))
    with pytest.raises(PackError, match=rf"1 of 2 shards .* have changed since: {shards[1]}"):
        merge(out)
    shards[1].rename(tmp_path / "gone")
    with pytest.raises(PackError, match=rf"{shards[1]} cannot be read"):
        merge(out)


@pytest.fixture(scope="module")
def with_notes(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    out = tmp_path_factory.mktemp("notes") / "out"
    expected = fresh(shards, out)
    index_shards(shards, out, part="1/1")
    return out, expected


@pytest.mark.complete
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_damaged_note_is_not_used(
    with_notes: tuple[Path, dict[str, bytes]], shards: list[Path], data: st.DataObject
) -> None:
    out, expected = with_notes
    note = data.draw(st.sampled_from(notes(out)))
    content = bytearray(note.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    note.write_bytes(content)
    assert index_shards(shards, out).resumed >= 3
    assert tree(out) == expected
    out.rename(out.with_name(f"{len(list(out.parent.iterdir()))}"))
    index_shards(shards, out, part="1/1")


def test_a_run_that_is_alone_excludes_parts(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def another(progress: IndexProgress) -> None:
        with pytest.raises(OutputConflict, match="another packer is working"):
            index_shards(shards, out, part="1/2")

    index_shards(shards, out, on_progress=another)


@pytest.mark.complete
def test_a_note_serves_what_it_was_made_for_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, out = write_tar(tmp_path / "a.tar", [("1.jpg", jpeg()), ("2.jpg", b"x")]), tmp_path / "out"
    with pytest.raises(TooManyRejects):
        index_shards(shard, out, max_rejects=0)
    with monkeypatch.context() as patch:
        patch.setattr("packtrain._packer.foreign.scan._SCANNER", 0)
        assert index_shards(shard, tmp_path / "out", part="1/1").resumed == 0
    report = index_shards(shard, out, max_rejects=1)
    assert (report.resumed, report.rejects) == (1, 1)
