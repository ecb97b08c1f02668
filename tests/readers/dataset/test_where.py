"""`dataset.where`: the rows are those that plain Python finds, whatever the dataset is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from helpers.support import encoded, picture, require_module
from hypothesis import given
from hypothesis import strategies as st

from packtrain import ImageDataset, PackedDataset, open_dataset
from packtrain._packer.options import Columns, FieldColumn, PackOptions
from packtrain._packer.pack import pack

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
    dataset, rows = animals
    text, holds = condition
    assert lines(dataset.where(text)) == [row["line"] for row in rows if holds({"image": True, **row})]
