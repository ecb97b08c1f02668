"""Laws of lists with named columns. The oracles are Python's csv and json, and pyarrow."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.packing import entries
from helpers.support import require_module
from hypothesis import given
from hypothesis import strategies as st

from packtrain import Columns, FieldColumn
from packtrain._core.installing import extra_command
from packtrain._core.options import LabelSpec
from packtrain._packer.listing import Cell, ListedSample, Listing
from packtrain._packer.lists.delimited import BadRecord, DelimitedRows, read_record
from packtrain._packer.lists.json_lines import JsonLines
from packtrain._packer.lists.reader import read_list
from packtrain._packer.lists.tables import Table
from packtrain.errors import ListError, MissingDependency, UsageError

CAPTION = FieldColumn("caption", "text", "caption", by_path=False)
BOXES = FieldColumn("boxes", "array", "boxes", by_path=False)
META = FieldColumn("meta", "json", "meta", by_path=False)
MASK = FieldColumn("mask", "mask", "seg", by_path=True)
ALL = Columns("path", "class", (MASK, CAPTION, META, BOXES))


def table(text: bytes, columns: Columns, labels: str = "int", *, form: type = DelimitedRows, **options: Any) -> Table:
    spec = LabelSpec.parse(labels) if columns.label is not None else LabelSpec("none")
    return Table(form(text, "list", columns.names), columns, spec, name="list", root=Path("/data"), **options)


def reasons(listing: Listing) -> dict[int, str]:
    return {reject.line: reject.reason for reject in listing.rejects}


def texts(listing: Listing) -> list[tuple[int, list[str | None]]]:
    """Number and cells of each entry, as texts."""
    return [
        (entry.line, [None if cell is None else cell.content.decode() for cell in entry.cells])
        for entry in entries(listing)
    ]


# Text in columns

CELLS = st.text(st.sampled_from("ab ,;\t\"'\n\r\u2028\x85é\0\U0001f600"), max_size=8)


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, list[str], list[tuple[int, list[str]]]]:
    """A text as the csv module writes it; the heads; and of each row its physical line behind the heads, and cells."""
    width = draw(st.integers(1, 4))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    quoting: Any = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    # Python 3.11 does not quote a CR if lines end in LF.
    cells = CELLS if quoting == csv.QUOTE_ALL else CELLS.map(lambda cell: cell.replace("\r", ""))
    file = io.StringIO(newline="")
    writer = csv.writer(
        file, delimiter=draw(st.sampled_from(",;\t")) if width > 1 else ",", lineterminator=end, quoting=quoting
    )
    # No head may be cut at another delimiter than this one.
    heads = [f"column {number}\nof {width}" if draw(st.booleans()) else f"c{number}" for number in range(width)]
    writer.writerow(heads)
    begin, rows = len(file.getvalue()), []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.integers(0, 3)) == 0:
            file.write(end)
        line = file.getvalue().count("\n", begin)
        rows.append((line, draw(st.lists(cells, min_size=width, max_size=width))))
        writer.writerow(rows[-1][1])
    text = file.getvalue()
    if draw(st.booleans()):
        text = text.removesuffix(end)
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode(), heads, rows


@given(written(), st.randoms())
def test_what_the_csv_module_writes_is_read_with_its_lines(
    given: tuple[bytes, list[str], list[tuple[int, list[str]]]], random: Any
) -> None:
    text, heads, rows = given
    order = random.sample(range(len(heads)), len(heads))
    fields = tuple(FieldColumn(f"f{number}", "text", heads[number], by_path=False) for number in order)
    assert texts(table(text, Columns(fields=fields))) == [
        (line, [cells[number] for number in order]) for line, cells in rows
    ]


@given(st.lists(st.sampled_from(["a", "b ", ",", '"', '""', "\n", "\r\n", ',"', '",'])).map("".join))
def test_records_are_those_of_the_csv_module(text: str) -> None:
    oracle = csv.reader(io.StringIO(text, newline=""), strict=True)
    place, data = 0, text.encode()
    while place < len(data):
        try:
            expected = next(oracle)
        except csv.Error:
            with pytest.raises(BadRecord):
                read_record(data, place, b",")
            return
        cells, place = read_record(data, place, b",")
        assert [cell.decode() for cell in cells] == (expected or [""])
    assert next(oracle, None) is None


BAD_ROWS = {
    b"x,y": "expected 3 cells, found 2: column 'note' is not there",
    b"x,1,y,z": "expected 3 cells, found 4: there are more behind column 'note'",
    b'x,1,"y"z': "column 'note': more text follows the closing quote; quotes in a cell are doubled",
    b"x,1,y\rz,1,2": "column 'note': a CR stands outside quotes",
    b"x,one,y": "column 'id': label 'one' is not an integer",
    b"x,,y": "column 'id': there is no label",
    b",1,y": "column 'path': there is no path of an image",
    b"a\0b,1,y": "column 'path': the path holds a NUL byte",
    b"x,1,\xff": "column 'note': the text is not encoded in UTF-8 (byte 0)",
}


@given(st.lists(st.one_of(st.none(), st.sampled_from(sorted(BAD_ROWS))), min_size=1), st.booleans())
def test_a_bad_row_is_a_reject_that_names_line_and_column_and_shifts_no_other(
    rows: list[bytes | None], crlf: bool
) -> None:
    """None stands for a good row, which spans two lines."""
    end = b"\r\n" if crlf else b"\n"
    text, line, good, bad = b"path,id,note" + end + b'g,5,"a"' + end, 1, [0], {}
    for row in rows:
        if row is None:
            good.append(line)
            text += b'g,5,"a\nb"' + end
            line += 2
        else:
            bad[line] = row
            text += row + end
            line += 1
    columns = Columns("path", "id", (FieldColumn("note", "text", "note", by_path=False),))
    listing = table(text, columns)
    assert [entry.line for entry in entries(listing)] == good
    assert listing.line_numbers(np.arange(len(good))).tolist() == good
    found = reasons(listing)
    assert found.keys() == bad.keys()
    assert listing.lines == len(good) + len(bad) == len(listing) + len(listing.rejects)
    for number, row in bad.items():
        assert BAD_ROWS[row] in found[number]


def test_a_forgotten_quote_loses_no_other_row() -> None:
    listing = table(b'path,caption\na,"x\nb,y\nc,"z"\nd,w\n', Columns("path", fields=(CAPTION,)))
    assert [(entry.line, entry.path) for entry in entries(listing)] == [(1, "b"), (2, "c"), (3, "d")]
    assert "column 'caption': more text follows the closing quote 2 line(s) below" in reasons(listing)[0]


def test_an_unclosed_quote_is_an_error_that_says_where_it_opens() -> None:
    message = r"list: the quote that opens in line 3, column 'caption', is never closed\. Close it"
    with pytest.raises(ListError, match=message):
        table(b'path,caption\na,"x\ny"\n\nb,"z\nc,x\n', Columns("path", fields=(CAPTION,)))
    with pytest.raises(ListError, match=r"the first line, which names the columns, cannot be read: .* never closed"):
        table(b'path,"caption\na,x\n', Columns("path"))


@pytest.mark.parametrize(
    ("head", "columns"),
    [
        (b"a;b,c\n1;2,3\n", ["b,c"]),
        (b"a;b,c\n1;2,3\n", ["a;b"]),
        (b"a,b;c;d\n1,2;3;4\n", ["c"]),
        (b"a\tb\n1\t2\n", ["a", "b"]),
        (b" a , b \n1,2\n", ["a", "b"]),
        (b"\r\n\na,b\n1,2\n", ["b"]),
    ],
)
def test_the_header_shows_the_delimiter(head: bytes, columns: list[str]) -> None:
    fields = tuple(FieldColumn(f"f{n}", "text", column, by_path=False) for n, column in enumerate(columns))
    assert len(table(head, Columns(fields=fields))) == 1


# JSON lines

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.one_of(st.none(), st.tuples(JSON, st.none() | st.text())), min_size=1), st.booleans())
def test_json_lines_are_read_as_json_reads_them(rows: list[tuple[Any, str | None] | None], ascii: bool) -> None:
    """None stands for a blank line."""
    fields = tuple(
        FieldColumn(name, kind, column, by_path=False, optional=True)
        for name, kind, column in (("meta", "json", "m"), ("caption", "text", "c"))
    )
    lines = ['{"m": 1, "c": "first"}']
    expected: list[tuple[int, Any, str | None]] = [(0, 1, "first")]
    for number, row in enumerate(rows, 1):
        if row is None:
            lines.append(" ")
            continue
        found = {key: value for key, value in zip("mc", row, strict=True) if value is not None}
        lines.append(json.dumps({**found, "other": 1}, ensure_ascii=ascii))
        expected.append((number, *row))
    listing = table("\r\n".join(lines).encode(), Columns(fields=fields), form=JsonLines)
    assert [
        (line, None if meta is None else json.loads(meta), caption) for line, (meta, caption) in texts(listing)
    ] == expected


JSON_ROWS: dict[bytes, str] = {
    b"{": "the line is not JSON",
    b"[1]": "expected an object, found a list",
    b'{"path": "\xff"}': "the line is not encoded in UTF-8",
    b"[" * 100_000: "the line is not JSON",
    b'{"path": 1}': "column 'path': expected a path, found a number",
    b'{"path": "x"}': "column 'seg': there is no mask; with --optional mask samples may be without it",
    b'{"path": null}': "column 'path': there is no path of an image",
    b'{"path": "x", "seg": ["y"]}': "column 'seg': expected a path, found a list",
    b'{"path": "x", "seg": "y", "caption": 5}': "column 'caption': expected a text, found a number",
    b'{"path": "x", "seg": "y", "caption": "\\ud800"}': "column 'caption': the text holds half of a surrogate pair",
    b'{"path": "\\ud800", "seg": "y"}': "column 'path': the path holds half of a surrogate pair",
    b'{"path": "x", "seg": "y", "caption": "", "meta": NaN}': "column 'meta': NaN and infinity are no JSON",
    b'{"path": "x", "seg": "y", "caption": "", "meta": 0, "boxes": {}}': "column 'boxes': expected a list of numbers",
    b'{"path": "x", "seg": "y", "caption": "", "meta": 0, "boxes": []}': "column 'class': there is no label",
    b'{"path": "x", "seg": "y", "caption": "", "meta": 0, "boxes": [], "class": "\\ud800"}': "column 'class': the text",
}


@pytest.mark.parametrize("row", JSON_ROWS)
def test_a_bad_json_line_is_a_reject_that_names_line_and_column(row: bytes) -> None:
    good = b'{"path": "g", "seg": "m", "caption": "", "meta": {"a": [1e2]}, "boxes": [[1, 2]], "class": 5}\n'
    listing = table(good + row + b"\n\n" + good, ALL, form=JsonLines)
    cells = (Cell(b"m", True), Cell(b"", False), Cell(b'{"a":[100.0]}', False), Cell(b"[[1,2]]", False))
    assert entries(listing) == [ListedSample(0, "g", 5, cells), ListedSample(3, "g", 5, cells)]
    assert listing.duplicates == 1
    assert list(reasons(listing)) == [1]
    assert JSON_ROWS[row] in reasons(listing)[1]


# What cells mean


MEANINGS: dict[str, tuple[FieldColumn, bytes, bytes | str | None]] = {
    "text": (CAPTION, b"a b", b"a b"),
    "empty text": (CAPTION, b"", b""),
    "json": (META, b'{"a": 1}', b'{"a": 1}'),
    "json null is a value": (META, b"null", b"null"),
    "no json": (META, b"", None),
    "not json": (META, b"{a}", "the text is not JSON"),
    "a path for an array": (
        *(BOXES, b"a.npy"),
        "the text is not JSON (Expecting value: line 1 column 1 (char 0)). "
        "For paths of files, write :path behind the column",
    ),
    "json of no number": (META, b"[NaN]", "the text is not JSON (NaN is no JSON: write null)"),
    "array": (BOXES, b"[[1, 2], [3, 4]]", b"[[1, 2], [3, 4]]"),
    "array of blanks": (BOXES, b"1 2.5  -3e4", b"[1,2.5,-3e4]"),
    "array with no number": (BOXES, b"[NaN, 1]", b"[NaN, 1]"),
    "one number": (BOXES, b"7", b"7"),
    "no array": (BOXES, b" ", None),
    "numpy's own spelling": (BOXES, b"[1. 2.]", "the text is not JSON"),
    "an object for an array": (BOXES, b'{"a": 1}', "expected a list of numbers, found an object"),
    "a path": (MASK, b"caf\xe9.png", b"caf\xe9.png"),
    "no path": (MASK, b"", None),
}


@pytest.mark.parametrize("case", MEANINGS)
def test_a_cell_is_a_value_a_path_missing_or_a_reject(case: str) -> None:
    field, cell, expected = MEANINGS[case]
    file = io.BytesIO()
    file.write(b"path," + field.column.encode() + b'\nx,"' + cell.replace(b'"', b'""') + b'"\n')
    columns = Columns("path", fields=(field,))
    if not isinstance(expected, bytes):
        reason = expected or f"there is no {field.name}; with --optional {field.name} samples may be without it"
        with pytest.raises(ListError, match="none of 1 rows can be used: line 0: column") as caught:
            table(file.getvalue(), columns)
        assert f"column {field.column!r}: {reason}" in str(caught.value)
    if not isinstance(expected, str):
        optional = FieldColumn(field.name, field.kind, field.column, field.by_path, optional=True)
        (entry,) = entries(table(file.getvalue(), Columns("path", fields=(optional,))))
        assert entry.cells == (None if expected is None else Cell(expected, field.by_path),)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("values", "labels", "expected", "classes", "rejected"),
    [
        ([True, False, True], "int", [1, 0, 1], ("false", "true"), None),
        ([True, False], "class", [1, 0], ("false", "true"), None),
        (
            [1.0, 2.0],
            "int",
            [],
            None,
            "label '1.0' is not an integer: write it without a point, or give --labels float",
        ),
        ([1.0, 2.5], "float", [1.0, 2.5], None, None),
        ([" 7 ", "-1"], "int", [7, -1], None, None),
        (["0.5", "1e3"], "float", [0.5, 1000.0], None, None),
        (["1 2", " 3  4 ", "[5, 6]"], "float*2", [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)], None, None),
        ([[1, 2, 3], [4, 5, 6]], "int*3", [(1, 2, 3), (4, 5, 6)], None, None),
        (["dog", "cat", "dog"], "int", [1, 0, 1], ("cat", "dog"), None),
        (["1 dog", "2 cats"], "int", [0, 1], ("1 dog", "2 cats"), None),
    ],
)
def test_a_label_means_what_its_text_means_in_every_form(
    tmp_path: Path, form: str, values: list[Any], labels: str, expected: list[Any], classes: Any, rejected: str | None
) -> None:
    path = tmp_path / f"a.{form}"
    if form == "csv":
        cells = [value if isinstance(value, str) else json.dumps(value) for value in values]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["x", "y"], *(["x", cell] for cell in cells)])
    elif form == "jsonl":
        path.write_text("".join(f"{json.dumps({'x': 'x', 'y': value})}\n" for value in values))
    else:
        path = parquet(tmp_path, {"x": ["x"] * len(values), "y": values})
    spec, by_name = LabelSpec("int") if labels == "class" else LabelSpec.parse(labels), labels == "class"
    if rejected is not None:
        with pytest.raises(ListError, match=re.escape(rejected)):
            read_list(path, spec, columns=Columns("x", "y"), by_name=by_name)
        return
    listing = read_list(path, spec, columns=Columns("x", "y"), by_name=by_name)
    assert ([entry.label for entry in entries(listing)], listing.classes) == (expected, classes)


TRUTH = "label 'true' is not an integer: write 1 for true and 0 for false, or give --labels class"


@pytest.mark.parametrize(
    ("form", "text", "options", "labels", "rejected"),
    [
        (JsonLines, '{"p":"x","y":3}\n{"p":"x","y":true}', {}, [3], {1: f"column 'y': {TRUTH}"}),
        (JsonLines, '{"p":"x","y":[1,0]}\n{"p":"x","y":[true,1]}', {"labels": "int*2"}, [(1, 0)], {1: TRUTH}),
        (DelimitedRows, "p,y\na,dog\nb,3\n", {}, [3], {0: "column 'y': label 'dog' is not an integer"}),
        (DelimitedRows, "p,y\na,dog\nb,3\n", {"by_name": True}, [1, 0], {}),
        (DelimitedRows, "p,y\na,cat\nb,cow\n", {"classes": ("dog", "cat")}, [1], {1: "'cow' is not among the 2 class"}),
        (JsonLines, '{"p": "a", "y": true}\n', {}, [1], {}),
        (JsonLines, '{"p": "a", "y": false}\n{"p": "b", "y": true}\n', {}, [0, 1], {}),
        (JsonLines, '{"p": "a", "y": false}\n', {}, [0], {}),
    ],
)
def test_labels_are_numbers_names_or_rejects(
    form: type, text: str, options: dict[str, Any], labels: list[Any], rejected: dict[int, str]
) -> None:
    listing = table(text.encode(), Columns("p", "y"), form=form, **options)
    assert [entry.label for entry in entries(listing)] == labels
    found = reasons(listing)
    assert found.keys() == rejected.keys() and all(rejected[line] in found[line] for line in found)
    assert listing.advice == ("Column 'y' looks like --labels class" if rejected else "")


@pytest.mark.parametrize(("cell", "labels"), [("0.5", "float"), ("1 2 3", "int*3"), ("[1, 0.5]", "float*2")])
def test_labels_of_another_type_get_advice(cell: str, labels: str) -> None:
    with pytest.raises(ListError, match="none of 1 rows can be used") as caught:
        table(f'path,y\nx,"{cell}"\n'.encode(), Columns("path", "y"))
    assert str(caught.value).endswith(f"Column 'y' looks like --labels {labels}")


def test_without_an_image_the_first_path_of_a_row_is_its_path() -> None:
    other = FieldColumn("view", "image", "view", by_path=True, optional=True)
    mask = FieldColumn("mask", "mask", "seg", by_path=True, optional=True)
    columns = Columns(fields=(CAPTION, other, mask))
    listing = table(b"caption,view,seg\nx,,m\ny,v,m\nz,,\n", columns)
    assert [entry.path for entry in entries(listing)] == ["m", "v", ""]


def test_entries_of_any_order() -> None:
    rows = [f'p{number},"{number}\n{number}"\n' for number in range(10)]
    listing = table(("path,caption\n" + "".join(rows)).encode(), Columns("path", fields=(CAPTION,)))
    found = listing.entries(np.array([7, 0, 7]))
    assert [(entry.line, entry.path, entry.cells[0]) for entry in found] == [
        (2 * number, f"p{number}", Cell(b"%d\n%d" % (number, number), False)) for number in (7, 0, 7)
    ]
    assert listing.source.resolve("p1") == "/data/p1"


# Files

REFUSED: list[tuple[str, bytes, Columns | None, str]] = [
    ("a.csv", b"path,caption\na,b\n", Columns("pth"), "a.csv has no column 'pth', but path, caption; did you mean"),
    ("a.csv", b"path,path\na,b\n", Columns("path"), "a.csv has 2 columns 'path': give each a name of its own"),
    ("a.jsonl", b'{"path": 1}\n', Columns("pth"), "a.jsonl has no column 'pth', but path"),
    ("a.json", b"{}", Columns("path"), "is one JSON document, but a list has an object on each line"),
    ("a.txt", b"a.jpg 0\nb.jpg 1\n", Columns("path"), "but a.jpg 0. Its first line must name the columns"),
    ("a.csv", b"a.jpg,cat\n", Columns("path"), "but a.jpg, cat. Its first line must name the columns"),
    ("", b"", Columns("path"), "is a folder, but columns are those of a list"),
    ("a.csv", b"", Columns("path"), "is empty"),
    ("a.jsonl", b"\xef\xbb\xbf \n", Columns("path"), "is empty"),
    ("a.csv", "path".encode("utf-16"), Columns("path"), "is encoded in UTF-16"),
    ("a.jsonl", "path".encode("utf-16"), Columns("path"), "is encoded in UTF-16"),
    ("a.csv", b"path,caption\n", Columns("path"), "the list has columns, but no rows"),
    ("a.jsonl", b"{'image': 'a.jpg'}\n", None, "line 0: the line is not JSON"),
    (
        "a.csv",
        b"a.jpg,cat,a.png\nb.jpg,dog,b.png\n",
        None,
        "Type: LC_ALL=C sed -E '1i path,label,mask' < {0}/a.csv > {0}/a.new.csv && packtrain pack {0}/a.new.csv OUT "
        "--image path --label label --mask mask",
    ),
]


@pytest.mark.parametrize(("name", "text", "columns", "message"), REFUSED)
def test_lists_without_what_is_asked_for_are_refused(
    tmp_path: Path, name: str, text: bytes, columns: Columns | None, message: str
) -> None:
    if name:
        (tmp_path / name).write_bytes(text)
    with pytest.raises((ListError, UsageError)) as caught:
        read_list(tmp_path / name, LabelSpec("none" if columns else "int"), columns=columns)
    assert message.format(tmp_path) in str(caught.value)


def test_a_list_through_a_pipe_may_be_json_lines() -> None:
    for text in (b"path,caption\na,b\n", b'{"path": "a", "caption": "b"}\n'):
        reading, writing = os.pipe()
        os.write(writing, text)
        os.close(writing)
        listing = read_list(Path(f"/dev/fd/{reading}"), LabelSpec("none"), columns=Columns("path", fields=(CAPTION,)))
        os.close(reading)
        assert (listing.name, listing.source.resolve("a")) == ("data", str(Path.cwd() / "a"))
        assert entries(listing) == [ListedSample(0, "a", None, (Cell(b"b", False),))]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "a b.csv",
            b'id,filename,split,class,Image Caption,seg,boxes,view\n1,a.jpg,train,dog,x,a.png,"[[1, 2]]",b.jpg\n',
            "--image filename --label class --text 'image_caption=Image Caption' --mask seg --array boxes "
            "--image-field view",
        ),
        (
            "a.jsonl",
            b'{"id": 3}\n{"series": "a.npy", "target": 0.5, "meta": "a.json", "notes": "a.txt", "more": {"a": 1}}\n',
            "--array series:path --label target --labels float --json-field meta:path --text notes:path "
            "--json-field more",
        ),
    ],
)
def test_a_list_with_columns_that_are_not_named_gets_the_line_to_type(
    name: str, text: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises((ListError, UsageError)) as caught:
        read_list(tmp_path / name, LabelSpec())
    source = f"'{tmp_path / name}'" if " " in name else tmp_path / name
    assert re.split(r"(?:for example|Type): ", str(caught.value))[-1] == f"packtrain pack {source} OUT {words}"


@pytest.mark.stress
def test_a_large_list_takes_its_text_and_a_few_bytes_per_row() -> None:
    rows = 100_000
    text = b"path,class,caption,more\n" + b"".join(
        b'images/%d.jpg,%d,"caption, number %d",x\n' % (number, number % 1000, number) for number in range(rows)
    )
    tracemalloc.start()
    try:
        listing = table(text, Columns("path", "class", (CAPTION,)))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listing) == rows
    # Place, line and label; while it is read, also a hash, and copies of these that grow and are sorted.
    assert held < 48 * rows
    assert peak < 128 * rows


# Parquet


def parquet(tmp_path: Path, columns: dict[str, Any], **options: Any) -> Path:
    require_module("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "a.parquet", **options)
    return tmp_path / "a.parquet"


def fields(*named: tuple[str, str]) -> tuple[FieldColumn, ...]:
    by_path = ("image", "mask", "bytes")
    return tuple(FieldColumn(name, kind, name, by_path=kind in by_path, optional=True) for name, kind in named)


def as_array(cell: Cell | None) -> Any:
    assert cell is not None
    assert not cell.by_path
    return np.load(io.BytesIO(cell.content), allow_pickle=False)


def test_parquet_columns_are_read_with_their_types(tmp_path: Path) -> None:
    require_module("pyarrow")
    import pyarrow as pa

    path = parquet(
        tmp_path,
        {
            "path": ["a.jpg", "é.jpg", "c.jpg"],
            "kind": pa.array(["dog", "cat", "dog"]).dictionary_encode(),
            "note": ["", None, "x\ny"],
            "blob": pa.array([b"\0\xff", None, b""]),
            "vector": pa.array([[1.5, 2.5], [], None], pa.list_(pa.float32())),
            "boxes": pa.array([[[1, 2]], [[3, 4], [5, 6]], None], pa.list_(pa.list_(pa.int16(), 2))),
            "weight": pa.array([1, 2, None], pa.uint8()),
            "meta": pa.array([{"a": 1}, {"a": None}, None]),
            "spelled": ['{"b": 1}', None, "[]"],
        },
        row_group_size=2,
    )
    kinds = [("note", "text"), ("blob", "bytes"), ("vector", "array"), ("boxes", "array"), ("weight", "array")]
    columns = Columns("path", "kind", fields(*kinds, ("meta", "json"), ("spelled", "json")))
    listing = read_list(path, LabelSpec(), columns=columns)
    assert listing.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (listing.classes, [entry.label for entry in entries(listing)]) == (("cat", "dog"), [1, 0, 1])
    assert [entry.path for entry in entries(listing)] == ["a.jpg", "é.jpg", "c.jpg"]
    first, second, third = (entry.cells for entry in entries(listing))
    assert (first[0], first[1]) == (Cell(b"", False), Cell(b"\0\xff", False))
    assert (second[0], second[1], second[6]) == (None, None, None)
    assert third[:3] == (Cell(b"x\ny", False), Cell(b"", False), None)
    assert (first[5], first[6]) == (Cell(b'{"a":1}', False), Cell(b'{"b": 1}', False))
    for cell, dtype, values in (
        (first[2], "<f4", [1.5, 2.5]),
        (second[2], "<f4", []),
        (first[3], "<i2", [[1, 2]]),
        (second[3], "<i2", [[3, 4], [5, 6]]),
        (second[4], "|u1", 2),
    ):
        array = as_array(cell)
        assert (array.dtype.str, array.tolist()) == (dtype, values)


def test_parquet_columns_of_another_type_are_told_at_once(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"image": [{"bytes": b"", "path": "x"}], "n": [1], "b": [b"x"]})
    for columns, message in (
        (Columns("image"), r"column 'image' holds struct<.*>, but paths \(strings\) are needed"),
        (Columns(fields=fields(("n", "text"))), "column 'n' holds int64, but strings or binary values are needed"),
        (Columns(fields=fields(("b", "json"))), "column 'b' holds binary, but"),
        (Columns("iamge"), r"a\.parquet has no column 'iamge', but image, n, b; did you mean 'image'"),
    ):
        with pytest.raises(UsageError, match=message):
            read_list(path, LabelSpec("none"), columns=columns)
    with pytest.raises(UsageError, match=r"say which columns .*a\.parquet to pack, for example: packtrain pack"):
        read_list(path, LabelSpec())


def test_bad_values_of_parquet_are_rejects(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        {
            "t": [b"x", b"\xff", b"x", b"x", b"x", b"x"],
            "n": [[[1.0]], [[1.0]], [[1.0], [2.0, 3.0]], [[None]], [None], []],
        },
    )
    listing = read_list(path, LabelSpec("none"), columns=Columns(fields=fields(("t", "text"), ("n", "array"))))
    assert [entry.line for entry in entries(listing)] == [0, 5]
    assert reasons(listing) == {
        1: "column 't': the text is not encoded in UTF-8 (byte 0)",
        2: "column 'n': the lists in a list are not of one length, or one is null",
        3: "column 'n': an item of the list is null",
        4: "column 'n': the lists in a list are not of one length, or one is null",
    }
    assert entries(listing)[1].cells[1] == Cell(b"[]", False), "the length of the inner lists is not known"


@pytest.mark.parametrize("keep", [0, 3, 50, -9])
def test_a_damaged_parquet_file_is_an_error(tmp_path: Path, keep: int) -> None:
    path = parquet(tmp_path, {"path": ["a"] * 1000})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ListError, match=r"a\.parquet"):
        read_list(path, LabelSpec("none"), columns=Columns("path"))


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=re.escape(f"`{extra_command('parquet')}`")):
        read_list(tmp_path / "a.parquet", LabelSpec("none"), columns=Columns("path"))


# JSON under any name


DOUBTS = (
    b'"other": 1, "other": 2',
    b'"other": {"b": 1, "b": 2}',
    b'"other": [{"c": 1e999}]',
    b'"other": ' + b"9" * 5000,
)


@pytest.mark.parametrize("doubt", DOUBTS)
def test_only_a_doubt_in_a_wanted_column_refuses_a_json_line(doubt: bytes) -> None:
    text = b'{"path": "a", "class": 1, ' + doubt + b"}\n" + b'{"path": "b", "class": 1, "other": 3}\n'
    assert [entry.path for entry in entries(table(text, Columns("path", "class"), form=JsonLines))] == ["a", "b"]
    other = FieldColumn("other", "json", "other", by_path=False)
    asked = table(text, Columns("path", "class", (other,)), form=JsonLines)
    assert [entry.path for entry in entries(asked)] == ["b"]
    assert re.search("twice|float64|4300 digits", reasons(asked)[0])
    assert "not JSON" not in reasons(asked)[0]


@pytest.mark.parametrize("name", ["l.json", "l.jsonl", "l.txt"])
def test_json_lines_may_have_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"image": "a.jpg", "label": 0}\n{"image": "b.jpg", "label": 1}\n')
    listing = read_list(tmp_path / name, LabelSpec(), columns=Columns("image", "label"))
    assert [entry.path for entry in entries(listing)] == ["a.jpg", "b.jpg"]
    assert listing.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    with pytest.raises(UsageError, match=rf"pack \S+{name} OUT --image image --label label$"):
        read_list(tmp_path / name, LabelSpec())
