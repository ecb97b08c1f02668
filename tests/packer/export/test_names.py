"""Names of exported files, whatever paths a dataset has: inside the folder, distinct, and names that can be made."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.damage import reindexed
from helpers.datasets import make_dataset
from helpers.support import tree
from hypothesis import given
from hypothesis import strategies as st

from packtrain import export
from packtrain._core.index import text_column
from packtrain._packer.export.names import Names, class_folders, distinct_names
from packtrain._packer.export.rows import SourceRows

PARTS = st.one_of(
    st.sampled_from(["..", ".", "", "a", "A", "a-2", "a.b", "CON", "__x__", "x" * 300, "é" * 200, "\u0130", "\udcff"]),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=9),
)
PATHS = st.lists(PARTS, min_size=1, max_size=12).map("/".join)
HOSTILE = (
    *("../../x.jpg", "/etc/x.jpg", "x.jpg", "X.JPG", "x.png", "./x.jpg", "a/../x.jpg", "\udcfe\udcff.jpg", "é" * 300),
    *(
        "c\\d.jpg",
        "new\nline.jpg",
        ".hidden",
        "..",
        "",
        "a.jpg/b.jpg",
        "a.jpg",
        "/",
        "x" * 4000 + ".jpg",
        "deep/" * 900,
    ),
)


class Listed:
    """Paths and labels, as far as names need a dataset."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int]) -> None:
        self._paths, self._labels = paths, labels

    def filename(self, row: int) -> str:
        return self._paths[row]

    def label(self, row: int) -> int:
        return self._labels[row]


def named(names: Names, paths: Sequence[str], labels: Sequence[int]) -> list[str]:
    count = len(paths)
    store: Any = Listed(paths, labels)
    rows = SourceRows((store,), np.zeros(count, np.int64), np.arange(count))
    found = distinct_names(names, rows)
    cut = count // 2
    parts = [(found.some(0, cut), range(cut)), (found.some(cut, count), range(cut, count))]
    return [part.name(row - rows[0], paths[row], labels[row]) for part, rows in parts for row in rows]


def assert_safe(name: str) -> None:
    for part in name.split("/"):
        assert part == part.strip()
        assert part and not part.startswith(".")
        assert len(os.fsencode(part)) <= 160
        assert not any(ord(letter) < 32 or letter in "\\\x7f" for letter in part)
    assert len(name.split("/")) <= 9


@given(st.lists(st.tuples(PATHS, st.integers(-1, 3)), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_names_are_safe_and_distinct(entries: list[tuple[str, int]], dotted: bool, classes: bool) -> None:
    paths, labels = [path for path, _ in entries], [label for _, label in entries]
    folders = class_folders(["..", "a/b", "A_B"], ["classes.txt"]) if classes else None
    found = named(Names(folders, dotted), paths, labels)
    for name in found:
        assert_safe(name)
        assert dotted or "." not in name.rpartition("/")[2]
    assert len({unicodedata.normalize("NFC", name.casefold()) for name in found}) == len(found)
    if not classes:
        # No file is called like a folder, for it has an extension.
        assert not any("." in name.rpartition("/")[0] for name in found)


@given(st.lists(PARTS, max_size=12))
def test_folders_of_classes_are_safe_and_distinct(classes: list[str]) -> None:
    found = class_folders(classes, ["list.jsonl", "a"])
    for name in found:
        assert_safe(name)
        assert "/" not in name
    folded = [unicodedata.normalize("NFC", name.casefold()) for name in found]
    assert len({*folded, "list.jsonl", "a"}) == len(found) + 2


def test_ordinary_names_stay_and_doubles_are_numbered() -> None:
    paths = ["n01/a.b.JPEG", "n02/x.jpg", "n02/x-2.jpg", "n02/X.png", "n02/x.jpg", "s3://b/k/y.jpg", "/data/y.jpg"]
    names = named(Names(None, dotted=True), paths, [0] * 7)
    assert names == ["n01/a.b", "n02/x", "n02/x-2", "n02/X-3", "n02/x-4", "y", "y-2"]
    assert named(Names(("cat", "dog"), dotted=False), paths[:2], [1, 0]) == ["dog/a_b", "cat/x"]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A dataset whose index has such paths."""

    def change(columns: dict[str, Any]) -> None:
        columns["path_offsets"], columns["path_bytes"] = text_column(map(os.fsencode, HOSTILE), len(HOSTILE))

    made = make_dataset(tmp_path / "made", rows=len(HOSTILE))
    reindexed(made, change)
    return made


@pytest.mark.parametrize("to", ["folder", "webdataset", "parquet"])
def test_nothing_is_written_outside(hostile: Path, tmp_path: Path, to: str) -> None:
    before = tree(tmp_path)
    out = tmp_path / "deep" / "inside" / "out"
    report = export(hostile, out, to=to)
    assert report.rows == len(HOSTILE)
    found = tree(tmp_path)
    assert {name for name in found if name not in before and not name.startswith("deep/inside/out/")} == set()
    assert {name: found[name] for name in before} == before
    if to == "folder":
        # A file for each field that a row has, a list, and a plan.
        assert len(tree(out)) == len(HOSTILE) * 9 - 2 + 3
