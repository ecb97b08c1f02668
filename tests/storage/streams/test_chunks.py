"""Laws of the table of chunks: every record lies in the file of exactly one chunk, where the table says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from helpers.datasets import NO_IMAGE, SCHEMA, make_dataset
from helpers.packing import scratch
from helpers.streaming import write_plain
from helpers.support import packed, shard_bytes
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Columns, FieldColumn, PackOptions, pack
from packtrain._core.errors import CorruptFile
from packtrain._core.index import Index
from packtrain._core.manifest import Manifest
from packtrain._core.schema import Schema
from packtrain._storage.streams.chunks import ChunkTable
from packtrain._storage.streams.fetching import ranges

SIZES = st.lists(st.lists(st.sampled_from([0, 1, 7, 511, 512, 513, 2000, 5000, 40_000]), max_size=12), max_size=5)


pytestmark = pytest.mark.usefixtures("small_chunks")


def table_of(folder: Path) -> tuple[ChunkTable, Manifest, Index]:
    """The table of a dataset, made, saved and loaded."""
    manifest = Manifest.load(folder)
    index = Index.of(folder, manifest)
    made = ChunkTable.of(manifest, index)
    made.save(folder)
    loaded = ChunkTable.load(folder, manifest)
    for name in vars(loaded).keys() & ChunkTable.__dataclass_fields__.keys():
        assert np.array_equal(getattr(made, name), getattr(loaded, name)), name
    return loaded, manifest, index


def assert_laws(folder: Path) -> ChunkTable:
    """Every record of the dataset is in its chunk, whose file is made of extents of its shard."""
    table, manifest, index = table_of(folder)
    shards = [(folder / shard.name).read_bytes() for shard in manifest.shards]
    seen = set[tuple[int, str]]()
    for chunk in range(len(table)):
        data, extents = shards[int(table.shard[chunk])], table.extents(chunk)
        file = b"".join(data[extent.start : extent.stop] for extent in extents)
        assert len(file) == table.bytes[chunk]
        places = range(int(table.bounds[chunk]), int(table.bounds[chunk + 1]))
        rows = {int(row) for row in index["by_place"][list(places)]}
        for piece in table.records(chunk, manifest, index):
            assert piece.row in rows
            columns = index.field(piece.field)
            offset, size = int(columns["offset"][piece.row]), int(columns["length"][piece.row])
            assert file[piece.position : piece.position + size] == data[offset : offset + size]
            assert crc32c(file[piece.position : piece.position + size]) == piece.crc32c == columns["crc32c"][piece.row]
            assert table.find(int(table.shard[chunk]), offset, size) == (chunk, piece.position)
            assert (piece.row, piece.field) not in seen
            seen.add((piece.row, piece.field))
        read = bytearray(len(file))
        for part in ranges(extents):
            assert part[-1].stop - part[0].start <= 16 << 20
            for start, stop, position in part:
                assert part[0].start <= start <= stop <= part[-1].stop
                read[position : position + stop - start] = data[start:stop]
        assert read == file
    lengths = {field.name: index.field(field.name)["length"] for field in manifest.fields}
    assert seen == {(row, name) for name, each in lengths.items() for row in np.flatnonzero(each > 0).tolist()}
    return table


@pytest.mark.parametrize("schema", [SCHEMA, NO_IMAGE], ids=["image", "no image"])
def test_every_field_of_every_format_is_in_its_chunk(format_name: str, schema: Schema, tmp_path: Path) -> None:
    assert len(assert_laws(make_dataset(tmp_path / "set", format_name, schema, rows=28))) > 1


def test_packed_shards_have_chunks_of_their_own(format_name: str, images: Path, tmp_path: Path) -> None:
    folder = packed(images, tmp_path / "set", format_name, shard_size=shard_bytes(images, 5))
    table = assert_laws(folder)
    shards = Manifest.load(folder).shards
    assert len(shards) > 1 and sorted(set(table.shard.tolist())) == list(range(len(shards)))


def test_values_in_the_index_are_in_no_chunk(
    format_name: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = images.read_text().splitlines()
    (tmp_path / "list.csv").write_text("path,x,s\n" + "".join(f"{line.rsplit(' ', 1)[0]},1,text\n" for line in lines))
    values = FieldColumn("x", "number", "x", by_path=False), FieldColumn("s", "string", "s", by_path=False)
    tables = []
    for fields in ((), values):
        out = tmp_path / f"{len(fields)} fields"
        options = PackOptions(format_name, columns=Columns("path", None, fields), root=images.parent, shard_size=4096)
        pack(tmp_path / "list.csv", out, options)
        manifest = Manifest.load(out)
        index = Index.of(out, manifest)
        with monkeypatch.context() as patch:
            # What is left empty is never all zeros.
            patch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype))
            tables.append(ChunkTable.of(manifest, index))
    for name in ChunkTable.__dataclass_fields__.keys() & vars(tables[0]).keys():
        assert np.array_equal(*(getattr(table, name) for table in tables)), name


@given(shards=SIZES.filter(any), gap=st.sampled_from([0, 1, 512, 20_000]), seed=st.integers(0, 9), order=st.booleans())
def test_records_of_any_size(shards: list[list[int]], gap: int, seed: int, order: bool) -> None:
    """Records that are empty or larger than a chunk, and shards without a record, too."""
    with scratch() as folder:
        write_plain(folder / "set", shards, gap=gap, seed=seed, order=order)
        table = assert_laws(folder / "set")
        sizes = [size for shard in shards for size in shard]
        for chunk in range(len(table)):
            inside = sizes[table.bounds[chunk] : table.bounds[chunk + 1]]
            # What is stored with the records counts: chunks of tiny ones are not larger.
            assert table.bytes[chunk] <= 16_000 or len([size for size in inside if size]) == 1
            assert inside


def test_bytes_that_are_in_no_chunk_are_refused(tmp_path: Path) -> None:
    write_plain(tmp_path / "set", [[1000] * 30, [], [500]])
    table, _, _ = table_of(tmp_path / "set")
    for shard, offset, size in [(0, 0, 10), (0, 10**9, 1), (0, 512, 10**6), (3, 0, 1), (-1, 600, 1), (1, 0, 1)]:
        with pytest.raises(CorruptFile, match="no chunk"):
            table.find(shard, offset, size)
    assert table.find(0, 512, 0) == (0, 0)


EXTENTS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=6), max_size=4)
"""For each shard, the gap before each extent and its length."""
WILD = st.sampled_from([-(1 << 63), -1, 1 << 40, (1 << 63) - 1])


def table_with(shards: list[list[tuple[int, int]]]) -> ChunkTable:
    """A table of shards of which every chunk has two extents, but the last of an odd number."""
    firsts = np.cumsum([0, *((len(extents) + 1) // 2 for extents in shards)])
    rows = []
    for extents, first in zip(shards, firsts.tolist(), strict=False):
        end = length = 0
        for number, (gap, size) in enumerate(extents):
            # The second extent of a chunk lies in its file behind the first one.
            rows.append((end + gap, end + gap + size, first + number // 2, length if number % 2 else 0))
            end, length = end + gap + size, size
    start, stop, chunk, position = np.array(rows, np.int64).reshape(-1, 4).T
    return ChunkTable(
        bounds=np.arange(firsts[-1] + 1),
        shard=np.repeat(np.arange(len(shards)), np.diff(firsts)),
        bytes=np.bincount(chunk, stop - start, int(firsts[-1])).astype(np.int64),
        firsts=np.cumsum([0, *map(len, shards)]),
        start=start,
        stop=stop,
        chunk=chunk,
        position=position,
    )


@given(shards=EXTENTS, data=st.data())
def test_many_records_are_found_as_one_by_one(shards: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    """Whatever the index says of them: between extents, behind a shard, in the shard that follows, or in none."""
    table = table_with(shards)
    wanted = st.tuples(st.integers(0, len(shards)), st.integers(-2, 40) | WILD)
    records = data.draw(st.lists(wanted, max_size=8))
    numbers = np.array([number for number, _ in records], np.uint32)
    offsets = np.array([offset for _, offset in records], np.int64)
    try:
        expected = [table.find(*record, 0) for record in records]
    except CorruptFile as error:
        with pytest.raises(CorruptFile, match=f"^{re.escape(str(error))}$"):
            table.find_all(numbers, offsets)
    else:
        chunks, positions = table.find_all(numbers, offsets)
        assert list(zip(chunks.tolist(), positions.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("field.blob.offset", 3, -5, "outside"),
        ("field.blob.offset", 3, 1 << 40, "outside"),
        ("field.blob.length", 29, 1 << 40, "outside"),
        ("field.blob.offset", 3, (1 << 63) - 10, "outside"),
        ("field.blob.length", 29, (1 << 63) - 1, "outside"),
        ("field.blob.offset", 3, 520, "share bytes"),
        ("shard", 3, 1, "not all in"),
    ],
)
def test_an_index_that_names_other_bytes_is_refused(
    column: str, row: int, value: int, message: str, tmp_path: Path
) -> None:
    manifest = write_plain(tmp_path / "set", [[1000] * 30, [500]])
    index = Index.of(tmp_path / "set", manifest)
    columns = index.field("blob") if column.startswith("field") else index
    name = column.rpartition(".")[2]
    changed = columns[name].copy()
    changed[row] = value
    columns._arrays[name] = changed
    index.unchecked[:] = bytes(len(index.unchecked))
    index.field("blob").unchecked[:] = bytes(len(index.field("blob").unchecked))
    with pytest.raises(CorruptFile, match=message):
        ChunkTable.of(manifest, index)


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    manifest = write_plain(tmp_path / "set", [[1000] * 30])
    table_of(tmp_path / "set")
    path = tmp_path / "set" / "table-start.npy"
    data = path.read_bytes()
    for wrong in (data[:-1], data[:-8], b"\0" + data[1:], b""):
        path.write_bytes(wrong)
        with pytest.raises(CorruptFile, match="table-"):
            ChunkTable.load(tmp_path / "set", manifest)
    path.unlink()
    with pytest.raises(CorruptFile, match="missing"):
        ChunkTable.load(tmp_path / "set", manifest)
