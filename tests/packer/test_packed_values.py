"""Laws of numbers and strings that are packed; test_changing has those of changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.support import items, tree
from helpers.versions import same

from packtrain import Columns, FieldColumn, PackOptions, RandomRecords, merge, open_dataset, pack, verify
from packtrain._cli.main import group
from packtrain._core.manifest import Manifest
from packtrain.errors import ListError, UsageError


def field(name: str, kind: str, *, optional: bool = False, dtype: str | None = None) -> FieldColumn:
    return FieldColumn(name, kind, name, by_path=False, optional=optional, dtype=dtype)


def texts(folder: Path, numbers: list[str]) -> Path:
    """A list of texts beside these cells of numbers."""
    (folder / "list.csv").write_text("t,x\n" + "".join(f"text,{number}\n" for number in numbers))
    return folder / "list.csv"


def with_texts(*fields: FieldColumn) -> PackOptions:
    """Options of samples with a text, so that something lies in the shards."""
    return PackOptions(columns=Columns(fields=(field("t", "text"), *fields)))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (["1", "2.5"], [1.0, 2.5]),
        (["007", "+5"], [7, 5]),
        ([" TRUE", "False"], [True, False]),
        (["-9223372036854775808", "9007199254740993"], [-(1 << 63), (1 << 53) + 1]),
        (["nan", "", "-Infinity"], [float("nan"), None, float("-inf")]),
    ],
)
def test_all_rows_of_a_list_decide_what_numbers_are(tmp_path: Path, numbers: list[str], expected: list[Any]) -> None:
    # Far more than are looked at to find out what an array is.
    listing = texts(tmp_path, [numbers[0]] * 999 + numbers)
    report = pack(listing, tmp_path / "out", with_texts(field("x", "number", optional=True)))
    assert report.rejects == 0
    dataset = open_dataset(tmp_path / "out", fields=["x"])
    assert all(same(dataset[999 + row].x, value) for row, value in enumerate(expected))
    assert type(dataset[0].x) is type(expected[0])


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (["5", "true"], "line 1: column 'x': it holds true or false, and other rows a whole number"),
        (["true", "", "0.5"], "line 2: column 'x': it holds a fraction, and other rows true or false"),
        (["", ""], "column 'x': no row has a number, so its type is unknown: say what it is, as in --dtype x=int64"),
    ],
)
def test_a_list_whose_numbers_have_no_type_is_refused_before_anything_is_written(
    tmp_path: Path, numbers: list[str], message: str
) -> None:
    with pytest.raises(ListError, match=message):
        pack(texts(tmp_path, numbers), tmp_path / "out", with_texts(field("x", "number", optional=True)))
    assert not tree(tmp_path / "out")


@pytest.mark.parametrize(
    ("numbers", "dtype", "reason"),
    [
        (["1.5", "1"], "int64", "number x: it holds a fraction, and the field is int64"),
        (["true", "1"], "int64", "number x: it holds true or false, and the field is int64"),
        (["9007199254740993", "0.5"], None, "number x: float64 would round 9007199254740993: write it as a fraction"),
        (["9223372036854775808", "1"], None, "9223372036854775808 is beyond the whole numbers of 64 bits"),
        (["many", "1"], None, "expected a number, or true or false, found a text"),
        (["", "1"], None, "there is no x; with --optional x samples may be without it"),
    ],
)
def test_a_number_that_does_not_fit_is_a_reject(
    tmp_path: Path, numbers: list[str], dtype: str | None, reason: str
) -> None:
    pack(texts(tmp_path, numbers), tmp_path / "out", with_texts(field("x", "number", dtype=dtype)), max_rejects=1)
    (reject,) = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(reject)["line"] == 0
    assert reason in json.loads(reject)["reason"]
    assert open_dataset(tmp_path / "out", fields=["x"])[0] == (float(numbers[1]),)


@pytest.mark.parametrize("stream", [False, True])
def test_values_from_python_are_numbers_only_if_a_column_says_so(tmp_path: Path, stream: bool) -> None:
    made = [
        {"t": "text", "a": number, "b": np.float32(number / 2), "c": np.array(number > 1), "s": f"<{number}>"}
        for number in range(4)
    ]
    samples: Any = iter(made) if stream else made
    numbers = [field(name, "number", optional=name == "a") for name in "abc"]
    pack(samples, tmp_path / "out", with_texts(*numbers, field("s", "string")))
    dataset = open_dataset(tmp_path / "out", fields=["a", "b", "c", "s"])
    assert [tuple(dataset[row]) for row in range(4)] == [(n, n / 2, n > 1, f"<{n}>") for n in range(4)]
    assert not verify(tmp_path / "out").problems
    # As ever: without columns, a number is an array without a size.
    pack(made, tmp_path / "arrays")
    kinds = {each.name: (each.kind, each.dtype) for each in Manifest.load(tmp_path / "arrays").schema.fields}
    assert kinds == {
        "t": ("text", None),
        "a": ("array", "<i8"),
        "b": ("array", "<f4"),
        "c": ("array", "|b1"),
        "s": ("text", None),
    }
    assert json.loads((tmp_path / "arrays" / "manifest.json").read_bytes())["version"] == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("5", "number x: it is an object of type str, not a number"),
        (np.array([1]), r"number x: it is int64 \[1\], not a single number"),
        (1.5, "number x: it holds a fraction, and the field is int64"),
        (1 << 63, "number x: 9223372036854775808 is beyond the whole numbers of 64 bits"),
        (np.uint64(1 << 63), "number x: 9223372036854775808 is beyond the whole numbers of 64 bits"),
        (1j, "number x: it is an object of type complex, not a number"),
    ],
)
def test_a_value_from_python_that_does_not_fit_is_a_reject(tmp_path: Path, value: Any, reason: str) -> None:
    options = with_texts(field("x", "number", dtype="int64"), field("s", "string"))
    samples = [{"t": "", "x": x, "s": s} for x, s in ((1, "a"), (value, "b"), (2, 3), (3, "c"), (4, "é" * 40_000))]
    pack(samples, tmp_path / "out", options, max_rejects=3)
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert re.match(reason, reasons[0])
    assert reasons[1:] == [
        "string s: it is an object of type int, not a str",
        "string s: the text has 80,000 bytes, and a string at most 65,535: take a text",
    ]
    assert [sample[0] for sample in items(open_dataset(tmp_path / "out", fields=["x"]))] == [1, 3]


def test_parts_and_lost_shards_give_the_same_bytes(tmp_path: Path) -> None:
    lines = [
        {"t": "x" * 900, "x": number / 2 if number % 5 else None, "s": f"<{number}>" * number} for number in range(12)
    ]
    listing = tmp_path / "list.jsonl"
    listing.write_text("".join(json.dumps(each) + "\n" for each in lines))
    columns = Columns(fields=(field("t", "text"), field("x", "number", optional=True), field("s", "string")))
    options = PackOptions(columns=columns, shard_size=4000)
    pack(listing, tmp_path / "whole", options)
    expected = tree(tmp_path / "whole")
    assert len(list((tmp_path / "whole").glob("*.tar"))) > 2
    for part in ("2/2", "1/2"):
        pack(listing, tmp_path / "parts", options, part=part)
    merge(tmp_path / "parts")
    assert tree(tmp_path / "parts") == expected
    # The notes of the others are made again of the index.
    (tmp_path / "whole" / "list-000001.tar").unlink()
    pack(listing, tmp_path / "whole", options)
    assert tree(tmp_path / "whole") == expected


def test_a_growing_cache_is_filled_with_the_other_fields(tmp_path: Path) -> None:
    pack(texts(tmp_path, ["1", "2"]), tmp_path / "out", with_texts(field("x", "number")))
    with pytest.raises(UsageError, match=r"the number x lies in the index, .* as in fields=\('t',\)"):
        RandomRecords(tmp_path / "out", fields=("t", "x")).sample_schema()
    assert RandomRecords(tmp_path / "out").sample_schema().names == ("t",)


def test_the_commands_pack_append_and_export_them(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("t,rating,from\none,4,laion\ntwo,,coco\n")
    (tmp_path / "more.csv").write_text("t,rating,from\nthree,5.5,laion\n")
    out, again = str(tmp_path / "out"), str(tmp_path / "again")
    columns = ["--text", "t", "--number", "score=rating", "--string", "source=from", "--optional", "score"]

    def run(*words: str) -> str:
        done = CliRunner().invoke(group, list(words), standalone_mode=False)
        assert done.exception is None, done.output
        return done.output

    run("pack", str(tmp_path / "list.csv"), out, *columns, "--dtype", "score=float64", "--workers", "1")
    run("append", out, str(tmp_path / "more.csv"), "--workers", "1")
    run("pack", out, again, "--workers", "1")
    for folder in (out, again):
        dataset = open_dataset(folder, fields=["t", "score", "source"])
        assert [tuple(dataset[row]) for row in range(3)] == [
            ("one", 4.0, "laion"),
            ("two", None, "coco"),
            ("three", 5.5, "laion"),
        ]
        shown = run("info", folder)
        assert "number, f8" in shown and "4.0 to 5.5" in shown
