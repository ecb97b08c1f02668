"""Numbers and strings lie in the index: what a list says comes out, in every way of reading, and no shard is read."""

from __future__ import annotations

import csv
import json
import math
import pickle
import re
import shlex
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from golden.by_hand import FIELDS, INDEXED, LIST, PACKED, ROWS
from golden.make import SOURCES
from helpers.support import encoded, flip, items, packed, picture, tree
from helpers.versions import same
from hypothesis import given
from hypothesis import strategies as st

from packtrain import (
    Columns,
    FieldColumn,
    Loader,
    PackOptions,
    StoreOptions,
    add_field,
    append,
    drop_rows,
    export,
    open_dataset,
    pack,
    verify,
)
from packtrain._cli.main import group
from packtrain._core.document import dump_document, load_document, read_document
from packtrain._core.manifest import Manifest
from packtrain._core.schema import Field
from packtrain._readers.dataset.image_dataset import samples_of
from packtrain._readers.dataset.indexed import check_values
from packtrain.errors import CorruptFile, ListError, UnsupportedVersion, UsageError

NAMES = tuple(f"{number}.jpg" for number in range(9))
DROPPED = 2
"""A row of the first segment."""
KINDS = {"count": "number", "score": "number", "sharp": "number", "source": "string"}
COLUMNS = [FieldColumn(name, kind, name, by_path=False, optional=True) for name, kind in KINDS.items()]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=8)
ROW = st.fixed_dictionaries(
    {
        "count": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "score": st.none() | st.floats(width=64),
        "sharp": st.none() | st.booleans(),
        "source": st.none() | TEXTS,
    }
)
SOME = [{"count": 1, "score": 0.5, "sharp": True, "source": "a"}]
"""The types are those of the values, and there must be some."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two segments, of the first of which a row was dropped."""
    folder = tmp_path_factory.mktemp("base")
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(encoded(picture(number, 16, 12)))
    for listing, names in (("first.txt", NAMES[:6]), ("second.txt", NAMES[6:])):
        (folder / listing).write_text("".join(f"{name} 0\n" for name in names))
    out = packed(folder / "first.txt", folder / "out", "tar")
    append(out, folder / "second.txt")
    drop_rows(out, [DROPPED])
    return out


@pytest.fixture
def out(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base, tmp_path / "out")


def listed(folder: Path, rows: list[dict[str, Any]], form: str = "jsonl") -> Path:
    """A list that says these rows of the first samples, in another order."""
    path = folder / f"list.{form}"
    found = [{"path": name, **row} for name, row in zip(NAMES, rows, strict=False)][::-1]
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    elif form == "csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, found[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(found), path)
    return path


@pytest.mark.complete
@given(st.sampled_from(["jsonl", "csv", "parquet"]), st.lists(ROW, min_size=1, max_size=len(NAMES) - 1))
def test_what_a_list_says_comes_out(base: Path, form: str, rows: list[dict[str, Any]]) -> None:
    rows = SOME + rows
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = shutil.copytree(base, folder / "out")
        before = tree(out)
        add_field(out, listed(folder, rows, form), COLUMNS)
        assert {**tree(out), **before} == tree(out), "a file was written again"
        if form == "csv":
            # An empty cell is an empty text, as that of a text is.
            rows = [{**row, "source": row["source"] or ""} for row in rows]
        rows += [dict.fromkeys(KINDS)] * (len(NAMES) - len(rows))
        expected = [row for number, row in enumerate(rows) if number != DROPPED]
        dataset = open_dataset(out, fields=list(KINDS))
        for row, values in enumerate(expected):
            assert all(same(getattr(dataset[row], name), value) for name, value in values.items()), (
                dataset[row],
                values,
            )
            assert all(same(dataset.value(row, name), value) for name, value in values.items())
        with Loader(dataset, len(expected), num_workers=0) as loader:
            (batch,) = loader
        for name, fill in (("count", 0), ("score", 0.0), ("sharp", False), ("source", "")):
            column = [row[name] for row in expected]
            assert getattr(batch.present, name).tolist() == [value is not None for value in column]
            made = getattr(batch, name)
            found = made if isinstance(made, list) else made.tolist()
            assert all(map(same, found, [fill if value is None else value for value in column]))
        assert not verify(out).problems
        # Nothing that follows needs a shard.
        for shard in out.rglob("*-0*.tar"):
            shard.unlink()
        opened = open_dataset(out)
        pytest.importorskip("polars")
        names = [name for number, name in enumerate(NAMES) if number != DROPPED]
        for condition, chosen in (
            # polars, as docs/querying.md says, has NaN above every number.
            ("score > 0.25", lambda row: row["score"] is not None and not row["score"] <= 0.25),
            ("sharp and source = 'a'", lambda row: bool(row["sharp"]) and row["source"] == "a"),
        ):
            some = opened.where(condition)
            found = [some.filename(row) for row in range(len(some))]
            assert found == [name for name, row in zip(names, expected, strict=True) if chosen(row)], condition


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["5", "true"], "line 1: column 'x': it holds true or false, and other rows a whole number"),
        (["1", "1e999"], "line 1: column 'x': 1e999 is beyond the numbers that float64 has"),
        (["1", ""], "line 1: column 'x': there is no x; with --optional x samples may be without it"),
    ],
)
def test_numbers_that_do_not_fit_are_named_by_their_line(
    base: Path, tmp_path: Path, values: list[str], message: str
) -> None:
    (tmp_path / "list.csv").write_text("path,x\n" + "".join(f"{n},{v}\n" for n, v in zip(NAMES, values, strict=False)))
    with pytest.raises(ListError, match=re.escape(message)):
        add_field(base, tmp_path / "list.csv", [FieldColumn("x", "number", "x", by_path=False)])


@pytest.mark.parametrize(
    ("texts", "dtype", "expected"),
    [
        (["1", "2.5"], None, [1.0, 2.5]),
        (["1", "2"], "float64", [1.0, 2.0]),
        (["", ""], "int64", [None, None]),
    ],
)
def test_the_type_is_that_of_all_numbers_or_the_one_that_is_said(
    out: Path, tmp_path: Path, texts: list[str], dtype: str | None, expected: list[Any]
) -> None:
    (tmp_path / "list.csv").write_text("path,x\n" + "".join(f"{n},{v}\n" for n, v in zip(NAMES, texts, strict=False)))
    add_field(out, tmp_path / "list.csv", [FieldColumn("x", "number", "x", by_path=False, optional=True, dtype=dtype)])
    dataset = open_dataset(out)
    assert all(same(dataset.value(row, "x"), value) for row, value in enumerate(expected))


def test_a_type_that_is_said_is_kept_or_refused(base: Path, tmp_path: Path) -> None:
    listing = listed(tmp_path, [{"x": 1}, {"x": 2.5}])
    with pytest.raises(ListError, match=r"line 0: column 'x': it holds a fraction, and the field is int64"):
        add_field(base, listing, [FieldColumn("x", "number", "x", by_path=False, optional=True, dtype="int64")])
    with pytest.raises(UsageError, match="int64, float64 or bool"):
        FieldColumn("x", "number", "x", by_path=False, dtype="float32")
    with pytest.raises(UsageError, match="values, not paths"):
        FieldColumn("x", "string", "x", by_path=True)


def test_a_string_has_at_most_so_many_bytes(out: Path, tmp_path: Path) -> None:
    column = FieldColumn("x", "string", "x", by_path=False, optional=True)
    with pytest.raises(ListError, match=r"line 0: .* 65,536 bytes, and a string at most 65,535: take --text"):
        add_field(out, listed(tmp_path, [{"x": "é" * 32768}]), [column])
    add_field(out, listed(tmp_path, [{"x": "é" * 32767 + "x"}]), [column])
    assert open_dataset(out).value(0, "x") == "é" * 32767 + "x"


def test_they_are_added_beside_fields_with_records_and_replaced(out: Path, tmp_path: Path) -> None:
    said = [{"n": number, "t": f"text {number}", "s": f"s{number}"} for number in range(len(NAMES))]
    columns = [
        FieldColumn("n", "number", "n", by_path=False),
        FieldColumn("t", "text", "t", by_path=False),
        FieldColumn("s", "string", "s", by_path=False),
    ]
    add_field(out, listed(tmp_path, said), columns)
    dataset = open_dataset(out, fields=["n", "t", "s"])
    assert [tuple(sample) for sample in items(dataset)] == [
        (each["n"], each["t"], each["s"]) for number, each in enumerate(said) if number != DROPPED
    ]
    add_field(out, listed(tmp_path, [{"n": 0.5}] * len(NAMES)), columns[:1], replace_existing=True)
    dataset = open_dataset(out, fields=["n", "s"])
    assert tuple(dataset[0]) == (0.5, "s0")
    assert not verify(out).problems


def test_the_same_list_with_other_keys_says_something_else(out: Path, tmp_path: Path) -> None:
    rows = [{"path": NAMES[n], "other": NAMES[1 - n], "n": n, "t": str(n)} for n in (0, 1)]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = [
        FieldColumn("n", "number", "n", by_path=False, optional=True),
        FieldColumn("t", "text", "t", by_path=False, optional=True),
    ]
    for key, expected in (("path", 0), ("other", 1)):
        add_field(out, tmp_path / "list.jsonl", columns, key=key, replace_existing=True)
        dataset = open_dataset(out, fields=["n", "t"])
        assert tuple(dataset[0]) == (expected, str(expected))


def test_columns_are_mapped_and_travel_as_a_path(out: Path, tmp_path: Path) -> None:
    add_field(out, listed(tmp_path, SOME * len(NAMES)), COLUMNS)
    dataset = open_dataset(out, fields=list(KINDS))
    assert len(pickle.dumps(dataset)) < 8000
    samples = samples_of(dataset)
    assert samples is not None
    for store in samples.stores:
        for name in KINDS:
            values: Any = store.field(name)
            column = values.columns["value_bytes" if name == "source" else "value"]
            assert np.shares_memory(values._texts if name == "source" else np.asarray(values._values), column)
            assert not column.flags.owndata
    with pytest.raises(UsageError, match=r"score lies in the index and has no record: dataset\.value\(0, 'score'\)"):
        dataset.record(0, "score")
    with Loader(dataset, 4, num_workers=2) as loader:
        assert [count for batch in loader for count in batch.count.tolist()] == [1] * (len(NAMES) - 1)


@pytest.mark.complete
def test_a_changed_byte_of_a_column_is_never_taken_for_a_value(out: Path, tmp_path: Path) -> None:
    add_field(out, listed(tmp_path, SOME * len(NAMES)), COLUMNS)
    for path in sorted(out.glob("layers/*/index/field.*.npy")):
        flip(path, -1)
        name = path.name.split(".")[1]
        opened = open_dataset(out)
        with pytest.raises(CorruptFile):
            [opened.value(row, name) for row in range(len(opened))]
        assert any(str(path.relative_to(out)) in problem.file for problem in verify(out).problems)
        flip(path, -1)
    assert not verify(out).problems


@pytest.mark.parametrize(
    ("field", "columns"),
    [
        (
            Field("x", "number", True, dtype="<i8"),
            {"valid": np.array([1, 2], np.uint8), "value": np.array([0, 0], np.int64)},
        ),
        (Field("x", "number", dtype="<i8"), {"valid": np.array([1, 0], np.uint8), "value": np.array([0, 0], np.int64)}),
        (
            Field("x", "number", True, dtype="<f8"),
            {"valid": np.array([1, 0], np.uint8), "value": np.array([0, -0.0], np.float64)},
        ),
        (
            Field("x", "number", True, dtype="|b1"),
            {"valid": np.array([1, 0], np.uint8), "value": np.array([2, 0], np.uint8).view("?")},
        ),
        (Field("x", "string", True), {"valid": np.array([1, 0], np.uint8), "ends": [0, 1, 2], "texts": b"ab"}),
        (Field("x", "string", True), {"valid": np.array([1, 1], np.uint8), "ends": [0, 1, 2], "texts": b"\xc3\xa9"}),
        (Field("x", "string", True), {"valid": np.array([1, 1], np.uint8), "ends": [0, 0, 1], "texts": b"\xff"}),
        (
            Field("x", "string", True),
            {"valid": np.array([1, 1], np.uint8), "ends": [0, 0, 65536], "texts": b"x" * 65536},
        ),
    ],
)
def test_columns_that_were_never_sound_are_named(field: Field, columns: dict[str, Any]) -> None:
    if field.kind == "string":
        columns |= {
            "value_offsets": np.array(columns["ends"], np.int64),
            "value_bytes": np.frombuffer(columns["texts"], "u1"),
        }
    with pytest.raises(ValueError, match="field x"):
        check_values(field, columns)  # type: ignore[arg-type]  # read by name alone


def test_what_was_written_by_hand_is_read_and_written_the_same(tmp_path: Path) -> None:
    dataset = open_dataset(INDEXED, fields=list(FIELDS))
    for row, values in enumerate(ROWS):
        assert all(same(getattr(dataset[row], name), value) for name, value in values.items())
    assert not verify(INDEXED).problems
    assert len(open_dataset(INDEXED, version=1, fields=["image"])) == len(ROWS)
    # A layer is a dataset, too.
    (layer,) = (INDEXED / "layers").iterdir()
    assert open_dataset(layer, fields=["source"])[0].source == "laion"
    out = shutil.copytree(INDEXED.parent.parent / "v1" / "tar-verbatim", tmp_path / "out")
    names = [open_dataset(out).filename(row) for row in range(len(ROWS))]
    lines = [json.dumps({"path": name, **row}) + "\n" for name, row in zip(names, ROWS, strict=True)]
    (tmp_path / "by-hand.jsonl").write_text("".join(lines))
    kinds = {name: "string" if dtype is None else "number" for name, dtype in FIELDS.items()}
    add_field(
        out,
        tmp_path / "by-hand.jsonl",
        [FieldColumn(name, kind, name, by_path=False, optional=True) for name, kind in kinds.items()],
    )
    (written,) = (out / "layers").iterdir()
    assert tree(written / "index") == tree(layer / "index")


def test_what_is_packed_is_what_was_written_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(PACKED, fields=list(FIELDS))
    for row, values in enumerate(ROWS):
        assert all(same(getattr(dataset[row], name), value) for name, value in values.items())
    assert not verify(PACKED).problems
    monkeypatch.setattr(metadata, "version", lambda _: "0.1.0")
    kinds = {name: "string" if dtype is None else "number" for name, dtype in FIELDS.items()}
    fields = [FieldColumn(name, kind, name, by_path=False, optional=True) for name, kind in kinds.items()]
    options = PackOptions(
        store=StoreOptions("verbatim"),
        columns=Columns("path", "label", tuple(fields)),
        classes=SOURCES / "classes.txt",
        root=SOURCES,
        shard_size=1200,
    )
    pack(LIST, tmp_path / "out", options, max_rejects=1)
    assert tree(tmp_path / "out") == tree(PACKED)


def test_earlier_readers_refuse_such_a_dataset_by_number(tmp_path: Path) -> None:
    (layer,) = (INDEXED / "layers").iterdir()
    for name in ("manifest.json", "plan.json"):
        with pytest.raises(UnsupportedVersion, match="version 3"):
            read_document((layer / name).read_bytes(), layer / name, newest=2)
    # Nor do we take one that says that it is older.
    body = load_document(layer / "manifest.json", newest=3)
    (tmp_path / "manifest.json").write_bytes(dump_document({**body, "version": 2}))
    with pytest.raises(CorruptFile, match="in a document of version 2"):
        Manifest.load(tmp_path)


# webdataset leaves it to the garbage collector to close its files.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_they_are_exported(out: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"count": 5, "score": math.nan, "sharp": True, "source": "lai,on"},
        {"count": None, "score": None, "sharp": None, "source": None},
        *[{"count": -1, "score": 0.5, "sharp": False, "source": ""}] * 7,
    ]
    add_field(out, listed(tmp_path, rows), COLUMNS)
    expected = [row for number, row in enumerate(rows) if number != DROPPED]
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    export(out, tmp_path / "tables", to="parquet")
    (path,) = (tmp_path / "tables").glob("*.parquet")
    table = pyarrow.parquet.read_table(path).select(list(KINDS))
    assert [str(dtype) for dtype in table.schema.types] == ["int64", "double", "bool", "string"]
    found = table.to_pylist()
    assert all(same(one[name], other[name]) for one, other in zip(found, expected, strict=True) for name in KINDS)

    report = export(out, tmp_path / "files", to="folder")
    said = [json.loads(line) for line in (tmp_path / "files" / "list.jsonl").read_text().splitlines()]
    assert all(same(one[name], other[name]) for one, other in zip(said, expected, strict=True) for name in KINDS)
    arguments = shlex.split(report.again)[1:]
    arguments[arguments.index("OUT")] = str(tmp_path / "again")
    done = CliRunner().invoke(group, [*arguments, "--workers", "1"], standalone_mode=False)
    assert done.exception is None, done.output
    again = open_dataset(tmp_path / "again")
    for row, values in enumerate(expected):
        assert all(same(again.value(row, name), value) for name, value in values.items())

    import webdataset

    export(out, tmp_path / "tars", to="webdataset")
    (tar,) = (tmp_path / "tars").glob("*.tar")
    first, second, *_ = webdataset.WebDataset(str(tar), shardshuffle=False).decode("pil")
    assert (first["count.json"], first["sharp.json"], first["source.txt"]) == (5, True, "lai,on")
    assert not any("count" in key or "source" in key for key in second)


def test_they_cannot_be_all_that_is_packed(tmp_path: Path) -> None:
    (layer,) = (INDEXED / "layers").iterdir()
    listing = listed(tmp_path, SOME)
    for source, options in (
        (layer, PackOptions()),
        (listing, PackOptions(columns=Columns(fields=tuple(COLUMNS)))),
        (iter(SOME), PackOptions(columns=Columns(fields=tuple(COLUMNS)))),
    ):
        with pytest.raises(UsageError, match="a dataset needs a field whose records lie in shards as well"):
            pack(source, tmp_path / "out", options)
        assert not tree(tmp_path / "out")


def test_the_command_adds_them(out: Path, tmp_path: Path) -> None:
    listing = listed(tmp_path, [{"rating": 4, "from": "laion"}] * len(NAMES), "csv")
    words = ["add-field", str(out), str(listing), "--number", "score=rating", "--string", "from_=from"]
    done = CliRunner().invoke(group, [*words, "--dtype", "score=float64"], standalone_mode=False)
    assert done.exception is None, done.output
    assert tuple(open_dataset(out, fields=["score", "from_"])[0]) == (4.0, "laion")
    shown = CliRunner().invoke(group, ["info", str(out)], standalone_mode=False).output
    assert "number, f8" in shown and "4.0 to 4.0" in shown
