"""Laws of completion notes: a note says what it was given, or it is not taken for a note."""

from __future__ import annotations

import ast
import errno
import io
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers.packing import image_list, plan_of, scratch, write_shards
from helpers.support import flip
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.manifest import FileInfo, ShardInfo
from packtrain._packer.columns import ShardColumns
from packtrain._packer.listing import Reject
from packtrain._packer.notes import (
    NoteFacts,
    ShardNote,
    note_path,
    read_facts,
    read_note,
    shard_is_present,
)
from packtrain._packer.output import Output
from packtrain._packer.plan import Plan
from packtrain.errors import UnreadableFile

PLAN = plan_of(image_list(4), 2)
DTYPES = {
    "line": "<i8",
    "offset": "<i8",
    "length": "<i8",
    "crc32c": "<u4",
    "width": "<i4",
    "height": "<i4",
    "orientation": "|u1",
}
"""As docs/format.md has them."""

rows = st.tuples(
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(1, 8),
)
paths = st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape"))


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    """A folder with both shards of PLAN and their notes."""
    write_shards(tmp_path, PLAN, image_list(4), refused=[1])
    return tmp_path


@given(rows=st.lists(rows, max_size=5), rejects=st.lists(st.builds(Reject, st.integers(0, 99), paths, st.text())))
def test_a_note_loads_as_it_was_saved(rows: list[tuple[int, ...]], rejects: list[Reject]) -> None:
    name = PLAN.shards[1].name
    info = ShardInfo(name, 5, crc32c(b"shard"), len(rows), (FileInfo("set-000001.idx", 0, 0),))
    labels = [row[0] - 7 for row in rows]
    texts = [f"{line}\udcff.jpg".encode("utf-8", "surrogateescape") for line, *_ in rows]
    lines, records = [line for line, *_ in rows], [(tuple(row),) for _, *row in rows]
    columns = ShardColumns.of(PLAN.schema, lines, labels, records, texts)
    with scratch() as folder:
        (folder / "parts").mkdir()
        (folder / name).write_bytes(b"shard")
        (folder / "set-000001.idx").write_bytes(b"")
        facts = NoteFacts(PLAN.sha256, info, tuple(rejects))
        ShardNote(facts, columns).save(folder)
        note = read_note(folder, PLAN, 1, Output(folder).holds)
        assert read_facts(folder, PLAN, 1, Output(folder).holds) == facts
    assert isinstance(note, ShardNote)
    assert note.facts == facts
    offsets, data = note.columns.texts["path"]
    assert [data[start:stop].tobytes() for start, stop in pairwise(offsets.tolist())] == texts
    assert list(zip(*(note.columns.arrays[column].tolist() for column in DTYPES), strict=True)) == rows
    assert note.columns.arrays["label"].tolist() == labels


def test_a_note_is_an_npz_file_and_its_crc32c(noted: Path) -> None:
    data = note_path(noted, PLAN.shards[0].name).read_bytes()
    assert int.from_bytes(data[-4:], "little") == crc32c(data[:-4])
    with np.load(io.BytesIO(data[:-4])) as content:
        assert set(content.files) == {*DTYPES, "label", "facts", "path_offsets", "path_bytes"}


def test_a_note_is_read_without_the_parser_of_python(noted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads read notes; before Python 3.11.9 they get a SystemError now and then if they use that parser at once."""
    with monkeypatch.context() as patch:
        patch.delattr(ast, "parse")
        note = read_note(noted, PLAN, 0, Output(noted).holds)
    assert isinstance(note, ShardNote)


def test_a_note_counts_only_for_its_own_plan_and_shard(noted: Path) -> None:
    other: Plan = replace(PLAN, shard_bytes=1)
    assert isinstance(read_note(noted, other, 0, Output(noted).holds), str)
    shutil.copy(note_path(noted, PLAN.shards[0].name), note_path(noted, PLAN.shards[1].name))
    assert isinstance(read_note(noted, PLAN, 1, Output(noted).holds), str)


@pytest.mark.parametrize("dtype", ["<i4", "<f8", None])
@pytest.mark.parametrize("name", [*DTYPES, "label"])
def test_a_note_whose_columns_are_not_those_of_the_plan_does_not_count(
    noted: Path, name: str, dtype: str | None
) -> None:
    note = read_note(noted, PLAN, 0, Output(noted).holds)
    assert isinstance(note, ShardNote)
    arrays = dict(note.columns.arrays)
    found = arrays.pop(name)
    if dtype is not None:
        arrays[name] = found.astype("<u8" if found.dtype.str == dtype else dtype)
    replace(note, columns=replace(note.columns, arrays=arrays)).save(noted)
    assert read_note(noted, PLAN, 0, Output(noted).holds) == "has a damaged note"


@pytest.mark.parametrize("change", ["length", "type of the offsets", "type of the texts"])
def test_a_note_whose_columns_do_not_fit_together_does_not_count(noted: Path, change: str) -> None:
    note = read_note(noted, PLAN, 0, Output(noted).holds)
    assert isinstance(note, ShardNote)
    arrays, (offsets, texts) = dict(note.columns.arrays), note.columns.texts["path"]
    match change:
        case "length":
            arrays["line"] = arrays["line"][:-1]
        case "type of the offsets":
            offsets = offsets.astype("<i4")
        case _:
            texts = texts.astype("<u2")
    replace(note, columns=ShardColumns(arrays, {"path": (offsets, texts)})).save(noted)
    assert read_note(noted, PLAN, 0, Output(noted).holds) == "has a damaged note"


@pytest.mark.parametrize("suffix", [".tar", ".idx"])
@pytest.mark.parametrize("size", [None, 0, 49, 51])
def test_a_note_counts_only_while_its_files_have_their_sizes(noted: Path, suffix: str, size: int | None) -> None:
    note = read_note(noted, PLAN, 0, Output(noted).holds)
    assert isinstance(note, ShardNote)
    assert shard_is_present(noted, note.info)
    path = (noted / PLAN.shards[0].name).with_suffix(suffix)
    path.unlink()
    if size is not None:
        path.write_bytes(bytes(size))
    assert not shard_is_present(noted, note.info)
    assert isinstance(read_note(noted, PLAN, 0, Output(noted).holds), str)


def test_no_flipped_byte_and_no_cut_leaves_a_note(memory_path: Path) -> None:
    write_shards(memory_path, PLAN, image_list(4))
    path = note_path(memory_path, PLAN.shards[0].name)
    sound = path.read_bytes()
    for offset in range(0, len(sound), 7):
        flip(path, offset)
        assert isinstance(read_note(memory_path, PLAN, 0, Output(memory_path).holds), str), offset
        path.write_bytes(sound[:offset])
        assert isinstance(read_note(memory_path, PLAN, 0, Output(memory_path).holds), str), offset
        path.write_bytes(sound)
    assert isinstance(read_note(memory_path, PLAN, 0, Output(memory_path).holds), ShardNote)


@pytest.mark.parametrize("read", [read_note, read_facts])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_note_that_cannot_be_read_is_not_taken_for_a_damaged_one(
    noted: Path, monkeypatch: pytest.MonkeyPatch, read: Any, number: int
) -> None:
    """Its shard would be packed again, on every machine that cannot read it."""
    path = note_path(noted, PLAN.shards[0].name)

    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("packtrain._core.opening.open_regular", refuse)
    monkeypatch.setattr("packtrain._packer.notes.open_regular", refuse)
    with pytest.raises(UnreadableFile, match=f"the note {path} cannot be read: {os.strerror(number)}: ."):
        read(noted, PLAN, 0, Output(noted).holds)


@pytest.mark.parametrize("read", [read_note, read_facts])
def test_a_shard_that_cannot_be_looked_at_is_not_taken_for_a_missing_one(
    noted: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    info = read_facts(noted, PLAN, 0, Output(noted).holds).info  # type: ignore[union-attr]
    stat = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if Path(path).name == info.name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr("os.stat", refuse)
    with pytest.raises(PermissionError):
        shard_is_present(noted, info)
    with pytest.raises(PermissionError):
        read(noted, PLAN, 0, Output(noted).holds)
