"""Laws of the index: plain .npy columns, checked block by block as the specification says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c
from helpers.packing import scratch
from helpers.support import flip, spoil, tree
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.index import ROW_COLUMNS, ROWS_PER_BLOCK, Index, IndexWriter, text_column
from packtrain._core.manifest import ColumnInfo
from packtrain._core.npy import npy_header
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import Field, Schema, image_field
from packtrain.errors import CorruptFile

SCHEMA = Schema(
    (
        image_field(StoreOptions()),
        Field("seg", "mask", encoding="png", dtype="|u1"),
        Field("boxes", "array", optional=True, dtype="<f4", shape=(None, 4)),
    ),
    LabelSpec("float", 3),
)
Arrays = dict[str, npt.NDArray[Any]]
SIZES = [1, 2, ROWS_PER_BLOCK - 1, ROWS_PER_BLOCK, ROWS_PER_BLOCK + 1, 3 * ROWS_PER_BLOCK + 7]


def contents(rows: int) -> tuple[Arrays, list[str]]:
    """Random columns and paths for so many rows."""
    random = np.random.default_rng(rows)
    columns: Arrays = {
        name: random.integers(0, 200, rows).astype(dtype) for name, dtype in (ROW_COLUMNS | SCHEMA.columns()).items()
    }
    columns["label"] = random.normal(size=(rows, 3)).astype("<f4")
    return columns, [f"päth {row} " + "x" * int(random.integers(0, 9)) for row in range(rows)]


def write(folder: Path, rows: int) -> tuple[ColumnInfo, ...]:
    columns, paths = contents(rows)
    folder.mkdir()
    writer = IndexWriter(folder, rows)
    for name, values in columns.items():
        writer.add(name, values)
    encoded = [path.encode() for path in paths]
    offsets = np.cumsum([0, *map(len, encoded)])
    writer.add_text("path", offsets.astype("<i8"), np.frombuffer(b"".join(encoded), np.uint8))
    return writer.finish()


@pytest.mark.parametrize("rows", SIZES)
def test_what_was_written_is_read_by_us_and_by_numpy(tmp_path: Path, rows: int) -> None:
    columns, paths = contents(rows)
    infos = write(tmp_path / "index", rows)
    index = Index(tmp_path / "index", infos, rows, SCHEMA.fields)
    for name, values in columns.items():
        found = index.field(name.split(".")[1])[name.split(".")[2]] if name.startswith("field.") else index[name]
        np.testing.assert_array_equal(found, values, strict=True)
        np.testing.assert_array_equal(np.load(tmp_path / "index" / f"{name}.npy"), values, strict=True)
        assert not found.flags.writeable
    assert [index.text("path", row) for row in range(rows)] == paths
    index.check_all()


@given(cuts=st.integers(0, 9), data=st.data())
def test_columns_that_come_in_pieces_are_the_same_files(cuts: int, data: st.DataObject) -> None:
    rows = data.draw(st.sampled_from(SIZES))
    columns, paths = contents(rows)
    offsets, texts = text_column((path.encode() for path in paths), rows)

    def pieces(values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        return np.split(values, sorted(data.draw(st.integers(0, len(values))) for _ in range(cuts)))

    with scratch() as folder:
        infos = write(folder / "whole", rows)
        (folder / "pieces").mkdir()
        writer = IndexWriter(folder / "pieces", rows)
        for name, values in columns.items():
            writer.add_pieces(name, values.dtype.str, values.shape[1:], pieces(values))
        writer.add_text_pieces("path", pieces(offsets), pieces(texts), len(texts))
        assert writer.finish() == infos
        assert tree(folder / "pieces") == tree(folder / "whole")


@pytest.mark.parametrize("lost", ["field.seg.offset", "field.boxes.blocks"])
def test_a_field_is_neither_opened_nor_checked_before_it_is_asked_for(tmp_path: Path, lost: str) -> None:
    infos = write(tmp_path / "index", 5)
    (tmp_path / "index" / f"{lost}.npy").unlink()
    index = Index(tmp_path / "index", infos, 5, SCHEMA.fields)
    index.check_all()
    field, other = lost.split(".")[1], {"seg", "boxes"} - {lost.split(".")[1]}
    index.field(*other).check_all()
    with pytest.raises(CorruptFile, match=f"{lost}.npy"):
        index.field(field)


def test_damage_to_the_columns_of_a_field_names_the_field(tmp_path: Path) -> None:
    infos = write(tmp_path / "index", 5)
    flip(tmp_path / "index" / "field.seg.width.npy", 128 + 4)
    index = Index(tmp_path / "index", infos, 5, SCHEMA.fields)
    index.check(0)
    with pytest.raises(CorruptFile, match="field seg"):
        index.field("seg").check(0)
    with pytest.raises(CorruptFile, match="field seg"):
        index.check_content()


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("prefix", ["", "field.seg.", "field.boxes."])
def test_the_checksums_of_blocks_are_those_of_the_specification(tmp_path: Path, rows: int, prefix: str) -> None:
    infos = write(tmp_path / "index", rows)
    arrays = {info.name: np.load(tmp_path / "index" / f"{info.name}.npy") for info in infos}
    others = tuple(f"field.{field.name}." for field in SCHEMA.others)
    arrays = {
        name: array
        for name, array in arrays.items()
        if (name.startswith(prefix) if prefix else not name.startswith(others))
    }
    blocks = arrays.pop(f"{prefix}blocks")
    assert (blocks.dtype, len(blocks)) == (np.uint32, -(-rows // ROWS_PER_BLOCK))
    for block, checksum in enumerate(blocks):
        start, stop = block * ROWS_PER_BLOCK, min(rows, (block + 1) * ROWS_PER_BLOCK)
        text = b""
        for name, array in arrays.items():
            if name == "path_offsets":
                text += array[start : stop + 1].tobytes()
            elif name == "path_bytes":
                text += array[arrays["path_offsets"][start] : arrays["path_offsets"][stop]].tobytes()
            else:
                text += array[start:stop].tobytes()
        assert crc32c(text) == checksum


def test_damage_is_found_where_it_is_used_and_nowhere_else(tmp_path: Path) -> None:
    rows = 3 * ROWS_PER_BLOCK
    infos = write(tmp_path / "index", rows)
    for info in infos:
        if "blocks" in info.name or info.name.startswith("field."):
            continue
        path = tmp_path / "index" / f"{info.name}.npy"
        sound = path.read_bytes()
        middle = (128 + len(sound)) // 2  # in the second of three blocks, whatever the column
        flip(path, middle)
        index = Index(tmp_path / "index", infos, rows, SCHEMA.fields)
        index.check(0)
        index.check(rows - 1)
        for use in (
            index.check,
            lambda row, index=index: index.text("path", row),
            lambda _, index=index: index.check_all(),
        ):
            with pytest.raises(CorruptFile, match="damaged in rows 1024 to 2047: checksum mismatch"):
                use(rows // 2)
        path.write_bytes(sound)
    Index(tmp_path / "index", infos, rows, SCHEMA.fields).check_all()


@pytest.mark.parametrize("column", ["line", "label", "blocks", "path_offsets", "path_bytes"])
@pytest.mark.parametrize("damage", ["missing", "short", "long", "another header"])
def test_a_column_of_another_form_is_refused_on_opening(tmp_path: Path, column: str, damage: str) -> None:
    infos = write(tmp_path / "index", 5)
    path = tmp_path / "index" / f"{column}.npy"
    flip(path, 60) if damage == "another header" else spoil(path, damage)
    with pytest.raises(CorruptFile, match=rf"{column}\.npy is (damaged|missing)") as caught:
        Index(tmp_path / "index", infos, 5)
    assert caught.value.file == f"index/{column}.npy"


def test_an_index_of_other_rows_is_refused(tmp_path: Path) -> None:
    infos = write(tmp_path / "index", 5)
    for rows in (4, 6, 5000):
        with pytest.raises(CorruptFile):
            Index(tmp_path / "index", infos, rows, SCHEMA.fields)


def rewritten(folder: Path, infos: tuple[ColumnInfo, ...], name: str, values: npt.NDArray[Any]) -> list[ColumnInfo]:
    """The index with another column of this name, whose size, header and sums are right."""
    columns = {info.name: np.load(folder / f"{info.name}.npy") for info in infos} | {name: values}
    writer = IndexWriter(folder, len(columns["line"]))
    for each, column in columns.items():
        if each not in ("blocks", "path_offsets", "path_bytes"):
            writer.add(each, column)
    writer.add_text("path", columns["path_offsets"], columns["path_bytes"])
    described = list(writer.finish())
    if name == "blocks":
        header = npy_header(values.dtype.str, values.shape)
        (folder / "blocks.npy").write_bytes(header + values.tobytes())
        sums = crc32c(values.tobytes(), crc32c(header))
        described[-1] = ColumnInfo(name, len(header) + values.nbytes, sums, values.dtype.str, values.shape)
    return described


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("blocks", np.full(1, np.nan, "<f4")),
        ("blocks", np.zeros((1, 1), "<u4")),
        ("line", np.zeros(5, "<f8")),
        ("line", np.zeros((5, 2), "<i8")),
        ("width", np.zeros(5, "<i8")),
        ("path_offsets", np.zeros(6, "<u4")),
        ("path_bytes", np.zeros(99, "<i2")),
        ("by_place", np.zeros(5, "<i4")),
    ],
)
def test_a_column_of_another_type_or_shape_is_refused_though_its_sums_are_right(
    tmp_path: Path, name: str, values: npt.NDArray[Any]
) -> None:
    infos = write(tmp_path / "index", 5)
    if name == "path_offsets":  # which the writer would not write
        (tmp_path / "index" / f"{name}.npy").write_bytes(npy_header("<u4", (6,)) + values.tobytes())
        described = [
            ColumnInfo(name, 128 + values.nbytes, 0, "<u4", (6,)) if info.name == name else info for info in infos
        ]
    else:
        described = rewritten(tmp_path / "index", infos, name, values)
    with pytest.raises(CorruptFile, match=name):
        Index(tmp_path / "index", described, 5, SCHEMA.fields)


@pytest.mark.parametrize("forged", [[0, 1, 2, 3, 5], [0, 1, 2, 3, -1], [0, 1, 2, 3, 3]])
def test_places_must_hold_each_row_once(tmp_path: Path, forged: list[int]) -> None:
    infos = write(tmp_path / "index", 5)
    index = Index(tmp_path / "index", rewritten(tmp_path / "index", infos, "by_place", np.array(forged)), 5)
    assert index.rows_at(np.arange(4)).tolist() == [0, 1, 2, 3]
    for use in (index.places, index.check_content):
        with pytest.raises(CorruptFile, match=r"by_place\.npy is damaged: it names a row (twice|outside)"):
            use()
    if forged[-1] != 3:
        with pytest.raises(CorruptFile, match="outside the 5 rows"):
            index.rows_at(np.array([4]))


@pytest.mark.parametrize("forged", [-1, 1 << 40])
def test_texts_lie_in_their_bytes(tmp_path: Path, forged: int) -> None:
    infos = write(tmp_path / "index", 5)
    offsets = np.load(tmp_path / "index" / "path_offsets.npy")
    offsets[2] = forged
    infos = tuple(rewritten(tmp_path / "index", infos, "by_place", np.arange(5)))
    index = Index(tmp_path / "index", rewritten(tmp_path / "index", infos, "path_offsets", offsets), 5)
    assert index.text("path", 0)
    for use in (lambda: index.text("path", 1), lambda: index.text("path", 2), index.check_content):
        with pytest.raises(CorruptFile, match=r"path_offsets\.npy is damaged"):
            use()
