"""`dataset.where`: the rows are those that plain Python finds, whatever the dataset is made of."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.growing import TinyCache
from helpers.support import encoded, flip, packed, picture, require_module
from hypothesis import given
from hypothesis import strategies as st

from packtrain import ImageDataset, PackedDataset, concat, open_dataset
from packtrain._core.options import LabelSpec
from packtrain._packer.options import Columns, FieldColumn, PackOptions
from packtrain._packer.pack import pack
from packtrain._readers.dataset.expression import DEEPEST, MOST_CHARACTERS, MOST_OPERATORS
from packtrain.errors import CorruptFile, MissingDependency, UsageError

require_module("polars")

Row = dict[str, Any]
Value = tuple[str, Callable[[Row], Any]]
"""An expression, and what it is for a row; None stands for null."""
NAMES = ("cat", "dog", "it's", "Ünïcode")
SOME = 24


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> tuple[PackedDataset, list[Row]]:
    """A dataset of images, classes, and optional masks and captions; and its rows as they were made."""
    folder = tmp_path_factory.mktemp("animals")
    (folder / "classes.txt").write_text("\n".join(NAMES))
    listed, rows = [], []
    for number in range(SOME):
        width, height = 40 + 3 * number, 60 - 2 * (number % 20)
        data = encoded(picture(number, width, height))
        path = f"{'AB'[number % 2]}_{number}%.jpg"
        (folder / path).write_bytes(data)
        label = number % len(NAMES)
        cells = {"image": path, "label": NAMES[label]}
        row: Row = {
            "row": number,
            "line": number,
            "path": path,
            "width": width,
            "height": height,
            "bytes": len(data),
            "orientation": 1,
            "label": NAMES[label],
            "label_id": label,
        }
        if number % 3:
            picture(number, width, height, "L").save(folder / f"{number}.png")
            cells["mask"] = f"{number}.png"
        if number % 5:
            cells["caption"] = "né" * number
        row |= {"mask.width": width if number % 3 else None, "caption.bytes": 3 * number if number % 5 else None}
        row |= {"mask": True if number % 3 else None, "caption": True if number % 5 else None}
        listed.append(json.dumps(cells))
        rows.append(row)
    (folder / "train.jsonl").write_text("\n".join(listed))
    fields = (
        FieldColumn("mask", "mask", "mask", True, optional=True),
        FieldColumn("caption", "text", "caption", False, optional=True),
    )
    columns = Columns("image", "label", fields)
    options = PackOptions(store="verbatim", labels="class", classes=folder / "classes.txt", columns=columns)  # type: ignore[arg-type]
    pack(folder / "train.jsonl", folder / "out", options)
    return open_dataset(folder / "out"), rows


def lifted(function: Callable[..., Any], *operands: Callable[[Row], Any]) -> Callable[[Row], Any]:
    """The function of some values; null if one of them is."""

    def of(row: Row) -> Any:
        values = [operand(row) for operand in operands]
        return None if None in values else function(*values)

    return of


def column(name: str) -> Value:
    return name, lambda row: row[name]


def literal(value: int | str) -> Value:
    text = str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
    return text, lambda row: value


def matches(text: str, pattern: str) -> bool:
    expected = "".join({"%": ".*", "_": "."}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expected, text, re.DOTALL) is not None


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
    "=": lambda one, other: one == other,
    "==": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "!=": lambda one, other: one != other,
}


def binary(functions: dict[str, Callable[[Any, Any], Any]]) -> Callable[[tuple[Value, str, Value]], Value]:
    def joined(parts: tuple[Value, str, Value]) -> Value:
        (one, left), sign, (other, right) = parts
        return f"({one} {sign} {other})", lifted(functions[sign], left, right)

    return joined


def negated(value: Value) -> Value:
    return f"NOT ({value[0]})", lifted(lambda truth: not truth, value[1])


def both(parts: tuple[Value, Value]) -> Value:
    (one, left), (other, right) = parts

    def of(row: Row) -> bool | None:
        values = (left(row), right(row))
        return False if False in values else None if None in values else True

    return f"({one} and {other})", of


def either(parts: tuple[Value, Value]) -> Value:
    (one, left), (other, right) = parts

    def of(row: Row) -> bool | None:
        values = (left(row), right(row))
        return True if True in values else None if None in values else False

    return f"({one} Or {other})", of


def chosen(parts: tuple[Value, Value, Value]) -> Value:
    (condition, decides), (one, first), (other, second) = parts
    text = f"case when {condition} then {one} else {other} end"
    return text, lambda row: first(row) if decides(row) else second(row)


def absolute(value: Value) -> Value:
    return f"abs({value[0]})", lifted(abs, value[1])


def length(value: Value) -> Value:
    return f"length({value[0]})", lifted(len, value[1])


def lowered(value: Value) -> Value:
    return f"lower({value[0]})", lifted(str.lower, value[1])


def between(parts: tuple[Value, Value, Value, bool]) -> Value:
    (text, value), (least, low), (most, high), inverted = parts
    said = f"({text} {'not ' * inverted}between {least} and {most})"
    # Kleene's and: a null bound decides nothing if the other one does.
    inside = both((("", lifted(lambda a, b: a >= b, value, low)), ("", lifted(lambda a, b: a <= b, value, high))))[1]
    return said, lifted(lambda truth: truth != inverted, inside)


def contained(parts: tuple[Value, Sequence[Value], bool]) -> Value:
    (text, value), members, inverted = parts
    among = ", ".join(member for member, _ in members)
    return (
        f"({text} {'not ' * inverted}in ({among}))",
        lambda row: None if value(row) is None else (value(row) in [of(row) for _, of in members]) != inverted,
    )


def missing(parts: tuple[str, bool]) -> Value:
    name, inverted = parts
    return f"{name} is {'not ' * inverted}null", lambda row: (row[name] is None) != inverted


def like(parts: tuple[Value, str, bool]) -> Value:
    (text, value), pattern, inverted = parts
    quoted = literal(pattern)[0]
    said = f"({text} {'not ' * inverted}like {quoted})"
    return said, lifted(lambda found: matches(found, pattern) != inverted, value)


NUMBERS = ("row", "line", "width", "height", "bytes", "orientation", "label_id", "mask.width", "caption.bytes")
whole_literals = st.integers(0, 120).map(literal)
numbers = st.recursive(
    st.sampled_from(NUMBERS).map(column) | whole_literals,
    lambda inner: (
        st.tuples(inner, st.sampled_from(list(ARITHMETIC)), inner).map(binary(ARITHMETIC)) | inner.map(absolute)
    ),
    max_leaves=4,
)
words = st.sampled_from([*NAMES, "A_0%.jpg", "B_1%.jpg", "", "a\nb", 'say "no"', "a\\", "\\'"]).map(literal)
texts = st.sampled_from(["path", "label"]).map(column) | words
texts = texts | texts.map(lowered)
patterns = st.sampled_from(["%", "A%", "%.jpg", "_og", "%1%", "cat", "it's", ""])
conditions = st.recursive(
    st.tuples(numbers | texts.map(length), st.sampled_from(list(COMPARISONS)), numbers).map(binary(COMPARISONS))
    | st.tuples(texts, st.sampled_from(list(COMPARISONS)), texts).map(binary(COMPARISONS))
    | st.tuples(numbers, numbers, numbers, st.booleans()).map(between)
    | st.tuples(
        st.sampled_from(NUMBERS).map(column), st.lists(whole_literals, min_size=1, max_size=4), st.booleans()
    ).map(contained)
    | st.tuples(
        st.sampled_from(["path", "label"]).map(column), st.lists(words, min_size=1, max_size=4), st.booleans()
    ).map(contained)
    | st.tuples(
        st.sampled_from(["mask", "caption", "mask.width", "caption.bytes", "path", "image"]), st.booleans()
    ).map(missing)
    | st.tuples(st.sampled_from(["path", "label"]).map(column), patterns, st.booleans()).map(like),
    lambda inner: (
        inner.map(negated)
        | st.tuples(inner, inner).map(both)
        | st.tuples(inner, inner).map(either)
        | st.tuples(inner, inner, inner).map(chosen)
    ),
    max_leaves=6,
)


def lines(dataset: ImageDataset) -> list[int]:
    return [dataset.line(row) for row in range(len(dataset))]


@given(conditions)
def test_the_rows_are_those_that_plain_python_finds(animals: tuple[PackedDataset, list[Row]], condition: Value) -> None:
    """Of a dataset, and of subsets and concatenations of it."""
    dataset, rows = animals
    text, holds = condition
    chosen = [5, 3, 3, 20, 0, -1]
    parts = [dataset, dataset.subset(chosen), dataset.subset([]), concat([dataset.subset([7]), dataset])]
    expected = [*rows, *(rows[row] for row in chosen), rows[7], *rows]
    numbered = [{"image": True, **row, "row": number} for number, row in enumerate(expected)]
    found = concat(parts).where(text)
    assert lines(found) == [row["line"] for row in numbered if holds(row)]
    again = found.where(text.replace("row", "line")).where("row is not null")
    assert lines(again) == lines(found.where(text.replace("row", "line")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", range(SOME)),
        ("1 = 1", range(SOME)),
        ("null = null", []),
        # Halves, infinity and NaN, which is larger than all else and equals itself.
        ("row / 2 = 1.5", [3]),
        ("1 / row > 1000", [0]),
        ("row / row > 1e300", [0]),
        ("0.5 / row > 1e300", [0]),
        ("row % 0.0 = 0 / 0", range(SOME)),
        ("row in (0.5, 1.0, 2., 3) or row = .4e1", [1, 2, 3, 4]),
        ("row * 0.1 = 0.3", []),
        ("row * 0.1 = 0.30000000000000004", [3]),
        ("row * 0.12345678901234567890123456789012345678 > 0 and row < 2", [1]),
        ("row / row = 0 / 0", [0]),
        ("not (row / row = 1)", [0]),
        # The sign of a remainder is that of its first number; there is no remainder of a division by zero.
        ("(row - 3) % 5 = -3", [0]),
        ("row % 0 is null", range(SOME)),
        # Numbers have 64 bits, and signs: no product of sides is too large, no length minus something wraps.
        ("width * 100000000 > 10000000000", range(21, SOME)),
        ("length(label) - 5 < 0", [row for row in range(SOME) if row % 4 != 3]),
        ("orientation - 2 = -1 and row < 2", [0, 1]),
        ("Upper(label) = 'CAT' and row < 5", [0, 4]),
        ("ends_with(path, '3%.jpg')", [3, 13, 23]),
        ("starts_with(path, 'A') and row < 3", [0, 2]),
        ("regexp_like(path, '_1[0-2]%')", [10, 11, 12]),
        ("path ilike 'a~_2%' and row = 2", []),
        ("path ilike 'a_2%' and row < 9", [2]),
        ("row in (3, null)", [3]),
        ("row not in (3, null)", []),
        ("(caption is null) = true", range(0, SOME, 5)),
        ('"row" = 3', [3]),
        ("case label when 'cat' then row < 5 else row > 22 end", [0, 4, 23]),
        ("case when row = 3 then true end", [3]),
        ("floor(row / 10) = 1 and ceil(row / 10) = 2 and round(row / 10) = 2 and row < 17", [15, 16]),
        ("path = 'a\0b'", []),
        ("row in (" + ", ".join(map(str, range(0, 900, 3))) + ")", range(0, SOME, 3)),
    ],
)
def test_what_an_expression_means(animals: tuple[PackedDataset, list[Row]], text: str, expected: Sequence[int]) -> None:
    assert lines(animals[0].where(text)) == list(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("widht > 1", "there is no column 'widht'; did you mean 'width'?"),
        ("nothing > 1", "there is no column 'nothing': take one of row, line, path, label,"),
        ("WIDTH > 1", "there is no column 'WIDTH'"),
        ('label = "cat"', r"there is no column 'cat' \(a text stands in '...'\)"),
        ("lowr(label) = 'cat'", "there is no function 'lowr'; did you mean 'lower'?"),
        ("max(width) > 1", "there is no function 'max': take one of abs,"),
        ("width", "its value is of type Int64, not true or false: compare it"),
        ("null", "its value is of type Null"),
        ("label = 'cat", "the closing ' is missing"),
        ("", "it is empty: type a condition"),
        ("caption = 'a cat'", "the content of caption is not in the index: ask only `caption is null`"),
        ("caption is not true", "ask only `caption is null` or `caption is not null`"),
        ("mask", "ask only `mask is null`"),
        ("width > 1; drop", "cannot read '; drop' at character 10"),
        ("width > (1", "never closed"),
        ("width > 1)", r"a \) has no \("),
        ("label = 3", "cannot compare string with numeric type"),
        ("width > > 1", "unable to parse"),
        ("abs(*) > 1", "`\\*` stands where a value should"),
        ("path = '\udcff'", "bytes that are not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_named(animals: tuple[PackedDataset, list[Row]], text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        animals[0].where(text)
    assert str(caught.value).startswith("where=")


HOSTILE = [
    "width > 1" + " and width > 1" * 100_000,
    "row = 1" + " or row = 1" * (MOST_CHARACTERS // 11 - 1),
    "(" * 100_000 + "width" + ")" * 100_000 + " > 1",
    "(" * 2000 + "width > 1" + ")" * 2000,
    "not " * 1000 + "width > 1",
    "- " * 2000 + "width > 1",
    "abs(" * 500 + "width" + ")" * 500 + " > 1",
    "case when width > 1 then " * 100 + "1" + " else 0 end" * 100 + " = 1",
    "width" + "+1" * 2000 + " > 1",
    "width in (1)" + " in (true)" * 400,
    "read_csv('/etc/passwd') is null",
    "(select width from read_parquet('/etc/passwd')) > 1",
    "width in (select width from self)",
    "exists (select 1)",
    "sum(width) over (order by row) > 1",
    "count(*) > 1",
    "count(distinct width) > 1",
    "cast(path as int) = 1",
    "path::int = 1",
    "row = 1 /* comment */",
    "row = 1 -- comment",
    "'a' 'b' = 'ab'",
    "label = E'\\n'",
    "columns('.*') > 1",
    '"^.*$" > 1',
    "* > 1",
    "row = $1",
    "row = ?",
    "row[0] = 1",
    "self.width > 1",
    "date '2020-01-01' > 1",
    "interval '1 day' is null",
    "width > '\0",
    "\0",
    "'" * 4095,
    '"' * 4095,
    "regexp_like(path, '" + "(a{1000}){1000}" * 20 + "')",
    "regexp_like(path, '" + "(" * 1000 + ")" * 1000 + "')",
    "round(width, 99999999999999999999) > 1",
    "between(1, 2)",
    "case",
    "in",
    "like(1)",
    "is null",
]
"""None of them is a filter."""
AT_THE_LIMITS = [
    "width > 1" + " and width > 1" * (MOST_OPERATORS // 2 - 1),
    "width" + "+1" * (MOST_OPERATORS - 1) + " > 1",
    "width = 1" + " in (true, false)" * (MOST_OPERATORS - 1),
    "width is null" + " is null" * (MOST_OPERATORS - 1),
    "(" * DEEPEST + "width > 1" + ")" * DEEPEST,
    "abs(" * DEEPEST + "width" + ")" * DEEPEST + " > 1",
    "- " * (MOST_OPERATORS - 1) + "width > 1",
    "not " * (MOST_OPERATORS - 1) + "width > 1",
    "case when width > 1 then " * 40 + "true" + " else false end" * 40,
]
"""As large as they may be; polars may refuse them, too."""
_CHILD = """
import json, sys, threading
from packtrain import open_dataset
from packtrain.errors import UsageError
dataset, refused = open_dataset(sys.argv[1]), []
def ask():
    for text in json.load(sys.stdin):
        try:
            refused.append(len(dataset.where(text)))
        except UsageError as error:
            refused.append(str(error)[:100])
threading.stack_size(512 << 10)
thread = threading.Thread(target=ask)
thread.start()
thread.join()
print(json.dumps(refused))
"""


@pytest.mark.complete
def test_no_expression_ends_the_process(animals: tuple[PackedDataset, list[Row]]) -> None:
    command = [sys.executable, "-c", _CHILD, str(animals[0].store.path)]
    ended = subprocess.run(command, input=json.dumps(HOSTILE + AT_THE_LIMITS), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert len(found) == len(HOSTILE) + len(AT_THE_LIMITS)
    assert [text[:60] for text, said in zip(HOSTILE, found, strict=False) if not isinstance(said, str)] == []


def test_damage_of_the_index_is_found_before_it_is_used(images: Path, tmp_path: Path) -> None:
    out = packed(images, tmp_path / "out", "tar")
    flip(out / "index" / "width.npy", -3)
    dataset = open_dataset(out)
    with pytest.raises(CorruptFile, match="checksum mismatch"):
        dataset.where("width > 1")
    assert len(open_dataset(out).where("true")) == len(dataset)


def test_paths_of_other_bytes_have_a_replacement_character(tmp_path: Path) -> None:
    names = [b"\xff.jpg", "é.jpg".encode(), b"a\xc3.jpg", b"\xc3\xa9\xe2.jpg"]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(encoded(picture(1)))
    (tmp_path / "list.txt").write_bytes(b"".join(name + b" 0\n" for name in names))
    dataset = open_dataset(packed(tmp_path / "list.txt", tmp_path / "out", "tar"))
    expected = [name.decode(errors="replace") for name in names]
    for row, path in enumerate(expected):
        assert lines(dataset.where(f"path = '{path}'")) == [row]
        assert lines(dataset.subset([3, 1, row]).where(f"path = '{path}' and row = 2")) == [row]
    assert lines(dataset.where("length(path) = 5")) == [0, 1]


def test_labels_without_names_are_numbers(images: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed(images, tmp_path / "out", "tar"))
    assert lines(dataset.where("label = 1 and label_id = 1")) == np.flatnonzero(dataset.targets == 1).tolist()
    (images.parent / "pairs.txt").write_text("image 0.jpg 1 2\nimage 1.jpg 3 4\n")
    pairs = open_dataset(packed(images.parent / "pairs.txt", tmp_path / "pairs", "tar", labels=LabelSpec("int", 2)))
    with pytest.raises(UsageError, match=r"a label is 2 numbers.*take dataset.subset\(dataset.targets\[:, 0\] == 1\)"):
        pairs.where("label = 1")
    (images.parent / "bare.txt").write_text("image 0.jpg\n")
    bare = open_dataset(packed(images.parent / "bare.txt", tmp_path / "bare", "tar", labels=LabelSpec("none")))
    with pytest.raises(UsageError, match="there is no column 'label'"):
        bare.where("label = 1")


def test_a_growing_cache_has_it_too(memory_path: Path) -> None:
    cache = TinyCache(memory_path / "cache")
    cache.grow(3, 4, 2)
    dataset = cache.dataset()
    labels = [number % 7 for number in range(9)]
    assert lines(dataset.where("label = 1 or line = 2")) == [1, 2, 8]
    shuffled = dataset.subset([8, 0, 4, 3, 8])
    assert lines(shuffled.where("label in (1, 4) and name.bytes = 8 and x is not null")) == [8, 4, 8]
    assert [dataset.label(row) for row in range(9)] == labels
    assert len(dataset.subset([]).where("label = 1")) == 0
    with pytest.raises(UsageError, match="there is no column 'path'"):
        dataset.where("path = 'a'")


def test_a_forked_process_is_told_not_to(animals: tuple[PackedDataset, list[Row]]) -> None:
    animals[0].where("row = 1")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def ask() -> None:
        try:
            animals[0].where("row = 1")
        except UsageError as error:
            theirs.send(str(error))

    process = context.Process(target=ask)
    process.start()
    assert ours.poll(60)
    assert "polars' threads do not survive" in ours.recv()
    process.join()


def test_without_polars_it_says_what_to_install(
    animals: tuple[PackedDataset, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingDependency, match=r"`where` needs polars.*\[query\]"):
        animals[0].where("row = 1")
