"""Numbers and strings that were packed, appended or added are one: any changes in a row, beside a list of the rows."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers.support import FORMATS, encoded, picture, tree
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from packtrain import (
    Columns,
    FieldColumn,
    PackOptions,
    add_field,
    append,
    compact,
    drop_rows,
    open_dataset,
    pack,
    purge,
    verify,
)

KINDS = {"count": "int64", "score": "float64", "sharp": "bool", "source": None}
FIELDS = tuple(
    FieldColumn(name, "number" if dtype else "string", name, by_path=False, optional=True, dtype=dtype)
    for name, dtype in KINDS.items()
)
COLUMNS = Columns("path", "label", FIELDS)
ROW = st.fixed_dictionaries(
    {
        "count": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "score": st.none() | st.floats(width=64),
        "sharp": st.none() | st.booleans(),
        "source": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    }
)
NOTHING = dict.fromkeys(KINDS)


def same(one: Any, other: Any) -> bool:
    """True for the same value of the same type; NaN equals NaN."""
    return type(one) is type(other) and (one == other or (one != one and other != other))


def values(out: Path) -> list[dict[str, Any]]:
    """What a dataset has, row by row."""
    dataset = open_dataset(out)
    names = [name for name in KINDS if name in dataset.schema.names]
    return [NOTHING | {name: dataset.value(row, name) for name in names} for row in range(len(dataset))]


class Samples:
    """Images with values of their own, and lists of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def listed(self, rows: list[dict[str, Any]]) -> tuple[Path, list[dict[str, Any]]]:
        """A list of new samples with these values, and what a dataset of it has to hold; each text is its own."""
        lines, made = [], []
        for row in rows:
            self.count += 1
            (self.folder / f"{self.count}.jpg").write_bytes(encoded(picture(self.count, 16, 12)))
            source = row["source"] and f"<{self.count}>{row['source']}"
            made.append(row | {"source": source})
            lines.append(json.dumps({"path": f"{self.count}.jpg", "label": self.count, **made[-1]}))
        listing = self.folder / f"{self.count}.jsonl"
        listing.write_text("\n".join(lines))
        return listing, made


class Values(RuleBasedStateMachine):
    """Any changes one after the other, beside a list of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.samples = Samples(self.folder)
        self.out = self.folder / "out"

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(rows=st.lists(ROW, min_size=1, max_size=4), format=st.sampled_from(FORMATS), bare=st.booleans())
    def pack(self, rows: list[dict[str, Any]], format: str, bare: bool) -> None:
        listing, self.rows = self.samples.listed(rows)
        pack(listing, self.out, PackOptions(format, columns=Columns("path", "label") if bare else COLUMNS))
        if bare:
            self.rows = [NOTHING] * len(rows)

    @rule(rows=st.lists(ROW, min_size=1, max_size=3), by=st.sampled_from(["list", "dataset"]))
    def append(self, rows: list[dict[str, Any]], by: str) -> None:
        listing, made = self.samples.listed(rows)
        if by == "dataset":
            listing = self.folder / f"dataset {self.samples.count}"
            pack(self.folder / f"{self.samples.count}.jsonl", listing, PackOptions(columns=COLUMNS))
        append(self.out, listing, columns=None if by == "dataset" else COLUMNS)
        self.rows = self.rows + made

    @rule(data=st.data(), names=st.sets(st.sampled_from(list(KINDS)), min_size=1))
    def add(self, data: st.DataObject, names: set[str]) -> None:
        """The chosen fields of all rows, which take the place of what was there."""
        found = data.draw(st.lists(ROW, min_size=len(self.rows), max_size=len(self.rows)))
        dataset = open_dataset(self.out)
        if len({dataset.filename(row) for row in range(len(dataset))}) < len(dataset):
            return
        said = [{name: row[name] for name in names} for row in found]
        listing = self.folder / "added.jsonl"
        lines = [json.dumps({"path": dataset.filename(row), **each}) for row, each in enumerate(said)]
        listing.write_text("\n".join(lines[::-1]))
        add_field(self.out, listing, [field for field in FIELDS if field.name in names], replace_existing=True)
        self.rows = [row | each for row, each in zip(self.rows, said, strict=True)]

    @precondition(lambda self: len(self.rows) > 1)
    @rule(data=st.data(), purged=st.booleans())
    def drop(self, data: st.DataObject, purged: bool) -> None:
        most = len(self.rows) - 1
        rows = data.draw(st.sets(st.integers(0, most), min_size=1, max_size=most))
        (purge if purged else drop_rows)(self.out, rows)
        gone = [self.rows[row]["source"] for row in rows]
        self.rows = [values for row, values in enumerate(self.rows) if row not in rows]
        if purged:
            kept = {values["source"] for values in self.rows}
            now = tree(self.out)
            # Short ones may stand anywhere.
            for text in (text for text in gone if text and len(text) > 4 and text not in kept):
                assert not any(text.encode() in content for content in now.values()), "a text is still there"

    @rule()
    def compact(self) -> None:
        compact(self.out)

    @rule(format=st.sampled_from(FORMATS), seed=st.sampled_from([0, None]))
    def pack_again(self, format: str, seed: int | None) -> None:
        again = self.folder / f"again {self.samples.count} {len(list(self.folder.iterdir()))}"
        pack(self.out, again, PackOptions(format, seed=seed))
        self.out = again

    @invariant()
    def each_row_has_what_was_put_into_it(self) -> None:
        found = values(self.out)
        assert len(found) == len(self.rows)
        for row, (one, other) in enumerate(zip(found, self.rows, strict=True)):
            assert all(same(one[name], other[name]) for name in KINDS), (row, one, other)

    @invariant()
    def it_is_sound(self) -> None:
        assert not verify(self.out).problems

    @invariant()
    def conditions_find_the_same_rows(self) -> None:
        pytest.importorskip("polars")
        dataset = open_dataset(self.out)
        for name, condition, chosen in (
            ("count", "count < 0", lambda value: value is not None and value < 0),
            ("score", "score is null", lambda value: value is None),
            ("sharp", "sharp", lambda value: value is True),
            ("source", "length(source) > 4", lambda value: len(value or "") > 4),
        ):
            if name in dataset.schema.names:
                some = dataset.where(condition)
                found = [some.label(row) for row in range(len(some))]
                rows = [row for row, each in enumerate(self.rows) if chosen(each[name])]
                assert found == [dataset.label(row) for row in rows], condition


TestValues = Values.TestCase
TestValues.settings = settings(max_examples=max(5, settings().max_examples // 2), stateful_step_count=5, deadline=None)
