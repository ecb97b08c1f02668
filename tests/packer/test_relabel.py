"""Laws of other labels: a row has the label that the last list gave it, in every way of reading, and nothing else."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.support import encoded, held, packed, picture, tree
from hypothesis import given
from hypothesis import strategies as st

from packtrain import (
    LabelSpec,
    Loader,
    append,
    compact,
    drop_rows,
    export,
    open_dataset,
    pack,
    purge,
    relabel,
    split,
    stage,
    verify,
)
from packtrain._cli.main import group
from packtrain._core.manifest import Manifest
from packtrain._core.versions import load_version
from packtrain._readers.dataset.summary import summarise
from packtrain.errors import CorruptFile, ListError, UsageError
from packtrain.transforms import CenterCrop

NAMES = tuple(f"{number}.jpg" for number in range(9))
DROPPED = 2
KEPT = [number for number in range(9) if number != DROPPED]
CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(encoded(picture(number, 16, 12)))
    return folder


def made(pictures: Path, out: Path, texts: list[str] | None = None, **options: Any) -> Path:
    """A dataset of two segments whose labels are these texts, of the first of which a row was dropped."""
    texts = [str(number % 3) for number in range(9)] if texts is None else texts
    named = {"classes": options["classes"]} if "classes" in options else {}
    for part, start, stop in (("first", 0, 6), ("second", 6, 9)):
        lines = [f"{NAMES[number]} {texts[number]}\n" for number in range(start, stop)]
        listing = out.with_name(f"{out.name}-{part}.txt")
        listing.write_text("".join(lines))
        if part == "first":
            packed(listing, out, "tar", root=pictures, **options)
        else:
            append(out, listing, root=pictures, label_names=options.get("label_names"), **named)
    drop_rows(out, [DROPPED])
    return out


@pytest.fixture(scope="module")
def base(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(pictures, tmp_path_factory.mktemp("base") / "out")


@pytest.fixture
def out(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base, tmp_path / "out")


@pytest.fixture
def named(pictures: Path, tmp_path: Path) -> Path:
    """The same with class names."""
    return made(pictures, tmp_path / "named", [CLASSES[number % 3] for number in range(9)], label_names=True)


def listed(path: Path, rows: dict[str, Any], key: str = "path", label: str = "label") -> Path:
    """A list of these labels by path, in another order, in the form that its name says."""
    found = [{"other": "x", label: value, key: name} for name, value in rows.items()][::-1]
    if path.suffix == ".txt":
        path.write_text("".join(f"{row[key]} {row[label]}\n" for row in found))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
    elif path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(found), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, found[0], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(found)
    return path


def labels(out: Path, **options: Any) -> list[Any]:
    dataset = open_dataset(out, **options)
    return [dataset.label(row) for row in range(len(dataset))]


def names_of(out: Path) -> list[str]:
    """The class names of all rows."""
    classes = open_dataset(out).classes
    assert classes is not None
    return [classes[label] for label in labels(out)]


FORMS = ("txt", "csv", "tsv", "jsonl", "parquet")
SAID = st.dictionaries(st.sampled_from(range(9)), st.integers(-(1 << 63), (1 << 63) - 1), min_size=1)


@pytest.mark.complete
@given(st.lists(st.tuples(st.sampled_from(FORMS), SAID), min_size=1, max_size=3))
def test_each_row_has_the_label_that_the_last_list_gave_it(base: Path, lists: list[tuple[str, dict[int, int]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        out = shutil.copytree(base, Path(name, "out"))
        before, expected = tree(out), {number: number % 3 for number in KEPT}
        images = [data for data, _ in held(open_dataset(out))]
        for form, said in lists:
            other = sum(expected[number] != label for number, label in said.items() if number in expected)
            version = load_version(out).number
            report = relabel(out, listed(Path(name, f"list.{form}"), {NAMES[row]: said[row] for row in said}))
            expected |= {number: label for number, label in said.items() if number in expected}
            assert (report.relabelled, report.version) == (other, version + (other > 0))
            assert held(open_dataset(out)) == list(zip(images, expected.values(), strict=True))
        assert {**tree(out), **before} == tree(out), "a file was written again"
        assert labels(out, version=3) == [number % 3 for number in KEPT]
        assert not verify(out).orphans


@pytest.mark.complete
def test_everything_sees_the_new_labels(out: Path, tmp_path: Path) -> None:
    pytest.importorskip("polars")
    split(out, val=0.5)
    sides = [open_dataset(out, split=side).targets for side in ("train", "val")]
    paths = [[each.filename(row) for row in range(len(each))] for each in _sides(out)]
    relabel(out, listed(tmp_path / "list.txt", {"0.jpg": 7, "8.jpg": 7}))
    expected = [7, 1, 0, 1, 2, 0, 1, 7]
    dataset = open_dataset(out)
    assert dataset.targets.tolist() == labels(out) == expected
    assert [dataset.filename(row) for row in (0, 7)] == ["0.jpg", "8.jpg"]
    found = dataset.where("label = 7")
    assert [found.filename(row) for row in range(len(found))] == ["0.jpg", "8.jpg"]
    assert [[each.filename(row) for row in range(len(each))] for each in _sides(out)] == paths
    assert sum(map(len, sides)) == 8
    assert summarise(out).label_counts == {0: 2, 1: 3, 2: 1, 7: 2}
    assert summarise(out, "label = 7").rows == 2
    for workers in (0, 2):
        with Loader(open_dataset(out, [CenterCrop(8)]), 3, num_workers=workers) as loader:
            assert [label for batch in loader for label in batch[1].tolist()] == expected
    (tmp_path / "stage").mkdir()
    staged = stage(out, tmp_path / "stage").path
    assert labels(staged) == expected
    pack(out, tmp_path / "again")
    assert labels(tmp_path / "again") == expected
    export(out, tmp_path / "files", to="folder")
    written = (tmp_path / "files" / "list.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in written] == expected
    compact(out)
    assert labels(out) == expected
    assert [[each.filename(row) for row in range(len(each))] for each in _sides(out)] == paths
    relabel(out, listed(tmp_path / "more.txt", {"1.jpg": 5}))
    del dataset, found, loader
    purge(out, [0])
    assert labels(out) == [5, *expected[2:]]
    assert not verify(out).problems


def _sides(out: Path) -> list[Any]:
    return [open_dataset(out, split=side) for side in ("train", "val")]


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [("float", "0.5", 0.25), ("int*2", "1 2", [3, -4]), ("float*3", "0 0.5 1", [1.5, 0.25, -2.0])],
)
@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_labels_stay_of_their_type(
    pictures: Path, tmp_path: Path, kind: str, old: str, new: float | list[float], form: str
) -> None:
    out = made(pictures, tmp_path / "out", [old] * 9, labels=LabelSpec.parse(kind))
    value = " ".join(map(str, np.atleast_1d(new))) if form == "txt" else new
    relabel(out, listed(tmp_path / f"list.{form}", {"1.jpg": value, "7.jpg": value}))
    before = np.array([float(word) for word in old.split()]).reshape(np.shape(new))
    for row, number in enumerate(KEPT):
        np.testing.assert_array_equal(open_dataset(out).label(row), new if number in (1, 7) else before)
    with pytest.raises(ListError):
        relabel(out, listed(tmp_path / "wrong.txt", {"1.jpg": "many"}))
    with pytest.raises(UsageError, match=f"`classes` needs labels int, but those of .* are {kind[:3]}"):
        relabel(out, classes=CLASSES)
    assert not verify(out).problems


def test_columns_may_be_called_otherwise(out: Path, tmp_path: Path) -> None:
    listing = listed(tmp_path / "list.csv", {"0.jpg": 7, "8.jpg": 8}, "file", "class_id")
    relabel(out, listing, key="file", label="class_id")
    assert labels(out) == [7, 1, 0, 1, 2, 0, 1, 8]
    with pytest.raises(UsageError, match=r"has no column 'path', but other, class_id, file"):
        relabel(out, listing, label="class_id")


def test_class_names(named: Path, tmp_path: Path) -> None:
    relabel(named, listed(tmp_path / "list.txt", {"0.jpg": "cat", "8.jpg": "bee"}), label_names=True)
    expected = ["cat", "bee", "ant", "bee", "cat", "ant", "bee", "bee"]
    assert names_of(named) == expected
    # Names in a column are seen to be some.
    relabel(named, listed(tmp_path / "list.jsonl", {"0.jpg": "bee"}))
    expected[0] = "bee"
    assert names_of(named) == expected
    report = relabel(named, rename={"bee": "wasp", "ant": "bee"})
    expected = [{"bee": "wasp", "ant": "bee"}.get(name, name) for name in expected]
    assert names_of(named) == expected
    assert (report.relabelled, open_dataset(named, version=3).classes) == (0, CLASSES)
    listing = listed(tmp_path / "new.csv", {"7.jpg": "dog"})
    with pytest.raises(ListError, match="class 'dog' is not among the 3 class names"):
        relabel(named, listing)
    relabel(named, listing, classes=("bee", "wasp", "cat", "dog"))
    expected[6] = "dog"
    assert names_of(named) == expected
    assert not verify(named).problems
    append(named, listed(tmp_path / "more.txt", {"more.jpg": "dog"}), label_names=True, root=_with_more(tmp_path))
    assert names_of(named) == [*expected, "dog"]
    compact(named)
    assert names_of(named) == [*expected, "dog"]


def _with_more(folder: Path) -> Path:
    (folder / "more.jpg").write_bytes(encoded(picture(30, 16, 12)))
    return folder


def test_classes_get_names_that_had_none(out: Path) -> None:
    with pytest.raises(UsageError, match="has a label 2, but there are 2 class names, whose labels are 0 to 1"):
        relabel(out, classes=CLASSES[:2])
    relabel(out, classes=CLASSES)
    assert names_of(out) == [CLASSES[number % 3] for number in KEPT]
    assert labels(out) == [number % 3 for number in KEPT]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say what is to change: a list of labels, `classes` or `rename`"),
        ({"classes": CLASSES, "rename": {"ant": "x"}}, "leave out one of them"),
        ({"classes": CLASSES[:2]}, r"has 3 class names, and these are only 2"),
        ({"rename": {"cats": "x"}}, "no class 'cats'; did you mean 'cat'"),
        ({"rename": {"ant": "bee"}}, "two classes of .* would be called 'bee'"),
    ],
    ids=str,
)
def test_class_names_that_do_not_fit(named: Path, options: dict[str, Any], message: str) -> None:
    before = tree(named)
    with pytest.raises(UsageError, match=message):
        relabel(named, **options)
    assert tree(named) == before


def test_a_name_of_several_classes_is_not_renamed(pictures: Path, tmp_path: Path) -> None:
    """ImageNet has two cranes."""
    out = made(pictures, tmp_path / "out", classes=("crane", "bee", "crane"))
    with pytest.raises(UsageError, match="has 2 classes 'crane': name all, by `classes`"):
        relabel(out, rename={"crane": "bird"})
    relabel(out, rename={"bee": "wasp"})
    assert open_dataset(out).classes == ("crane", "wasp", "crane")


def test_keys_that_do_not_fit_are_named(out: Path, tmp_path: Path) -> None:
    for rows, message in [
        ("0.jpg 1\nx.jpg 2\n", r"1 keys name no sample .*'x\.jpg'"),
        ("0.jpg 1\n1.jpg 2\n0.jpg 1\n", r"line 2 has the same key as line 0: '0\.jpg'"),
        ("0.jpg 1\n1.jpg x\n", r"line 1: label 'x' is not an integer"),
    ]:
        (tmp_path / "list.txt").write_text(rows)
        before = tree(out)
        with pytest.raises(ListError, match=message):
            relabel(out, tmp_path / "list.txt")
        assert tree(out) == before
    # A row that was dropped may be named, and stays as it is.
    assert relabel(out, listed(tmp_path / "dropped.txt", {NAMES[DROPPED]: 9})).version == 3
    append(out, listed(tmp_path / "again.txt", {"1.jpg": 0}), root=_again(tmp_path))
    with pytest.raises(ListError, match=r"several samples have the same path, such as '1\.jpg'"):
        relabel(out, listed(tmp_path / "list.txt", {"1.jpg": 2}))


def _again(folder: Path) -> Path:
    (folder / "1.jpg").write_bytes(encoded(picture(31, 16, 12)))
    return folder


def test_what_cannot_be_leaves_a_packed_dataset_as_it_was(pictures: Path, tmp_path: Path) -> None:
    listing = listed(tmp_path / "train.txt", {"0.jpg": 0, "1.jpg": 1})
    out = packed(listing, tmp_path / "out", "tar", root=pictures)
    before = tree(out)
    with pytest.raises(ListError):
        relabel(out, listed(tmp_path / "list.txt", {"0.jpg": "x"}))
    with pytest.raises(UsageError, match="has no class 'a'"):
        relabel(out, rename={"a": "b"})
    planned = relabel(out, listed(tmp_path / "list.txt", {"1.jpg": 2}), dry_run=True)
    assert tree(out) == before
    assert (planned.version, planned.relabelled) == (2, 1)
    assert relabel(out, listing).version == 1
    report = relabel(out, tmp_path / "list.txt")
    assert set(planned.written) >= {f"layers/{path.name}" for path in (out / "layers").iterdir()}
    assert (report.version, labels(out)) == (2, [2, 0])
    bare = packed(listed(tmp_path / "bare.txt", {"0.jpg": ""}), tmp_path / "bare", "tar", root=pictures, labels="none")
    with pytest.raises(UsageError, match="has no labels that could be others"):
        relabel(bare, listing)
    with pytest.raises(UsageError, match="is a folder: give a list"):
        relabel(out, pictures)


def test_a_layer_of_labels_is_as_the_format_says(out: Path, tmp_path: Path) -> None:
    """It has no field and no shard, version 3, and the order of its segment; numpy reads the labels."""
    relabel(out, listed(tmp_path / "list.txt", {"7.jpg": -5}))
    document = json.loads((out / "versions/00000004.json").read_bytes())
    assert document["change"] == {"kind": "relabel", "text": "relabelled rows by list.txt"}
    first, second = document["segments"]
    assert first["layers"] == []
    (layer,) = second["layers"]
    assert layer["fields"] == ["label"]
    folder = out / "layers" / layer["name"]
    manifest, plan = (json.loads((folder / name).read_bytes()) for name in ("manifest.json", "plan.json"))
    for body in (manifest, plan):
        assert [body[key] for key in ("version", "fields", "labels", "shards")] == [3, [], "int", []]
    assert np.load(folder / "index/label.npy").tolist() == [0, -5, 2]
    order = [np.load(place / "index/by_place.npy").tolist() for place in (folder, out / "segments" / second["name"])]
    assert order[0] == order[1]


@pytest.mark.parametrize("change", [{"labels": "none"}, {"version": 2}], ids=str)
def test_a_layer_without_anything_is_damaged(out: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    from packtrain._core.document import dump_document, load_document

    relabel(out, listed(tmp_path / "list.txt", {"7.jpg": -5}))
    (folder,) = (out / "layers").iterdir()
    body = load_document(folder / "manifest.json", newest=3) | change
    body.pop("checksum", None)
    (folder / "manifest.json").write_bytes(dump_document(body))
    with pytest.raises(CorruptFile, match=r"manifest\.json is damaged"):
        Manifest.load(folder)


def test_labels_that_may_be_names_or_numbers_are_not_guessed(pictures: Path, tmp_path: Path) -> None:
    out = made(pictures, tmp_path / "out", [("10", "1", "2")[number % 3] for number in range(9)], label_names=True)
    listing = listed(tmp_path / "list.txt", {"0.jpg": 1})
    with pytest.raises(UsageError, match=r"--labels class for names, or --labels int"):
        relabel(out, listing)
    relabel(out, listing, label_names=True)
    assert names_of(out)[0] == "1"
    relabel(out, listing, label_names=False)
    assert names_of(out)[0] == "10"


def test_the_command(named: Path, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(group, ["relabel", str(named), *words], standalone_mode=False)
        assert done.exception is None, done.output
        return done.output

    listing = listed(tmp_path / "list.txt", {"0.jpg": "cat", "1.jpg": "bee"})
    assert "would have 8 rows, 1 relabelled" in said(str(listing), "--labels", "class", "--dry-run")
    assert "version 4 has these labels, 1 of them other than before" in said(str(listing), "--labels", "class")
    said("--rename", "cat=tiger", "--rename", "bee=wasp")
    assert open_dataset(named).classes == ("ant", "wasp", "tiger")
    done = CliRunner().invoke(group, ["relabel", str(named), "--rename", "cat"], standalone_mode=False)
    assert "expected OLD=NEW" in str(done.exception)
