"""Laws of datasets that are split: every row is on the side that the specification says, wherever one asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.damage import forge
from helpers.support import encoded, flip, held, packed, picture, require_module, tree

from packtrain import (
    FieldColumn,
    Loader,
    PackOptions,
    add_field,
    append,
    compact,
    drop_rows,
    open_dataset,
    pack,
    purge,
    split,
    verify,
)
from packtrain._core.versions import NO_SIDE, Split
from packtrain._packer import regex_keys
from packtrain._readers.dataset.stored_rows import StoredRows
from packtrain._readers.dataset.summary import summarise
from packtrain.errors import CorruptFile, UsageError
from packtrain.transforms import CenterCrop

from .test_changing import change
from .test_sides import expected, hash_of


def listed(folder: Path, numbers: range) -> Path:
    """A list of images, four of each of some patients, whose classes are 0 to 2."""
    for number in numbers:
        path = folder / f"p{number // 4}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number, 16, 12)))
    listing = folder / f"{numbers.start}.txt"
    listing.write_text("".join(f"p{number // 4}/{number}.jpg {number % 3}\n" for number in numbers))
    return listing


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A dataset of two segments, with dropped rows in both."""
    folder = packed(listed(tmp_path, range(30)), tmp_path / "out", "tar")
    append(folder, listed(tmp_path, range(30, 50)))
    drop_rows(folder, [0, 7, 33])
    return folder


def sides(out: Path, version: int | None = None) -> list[str | None]:
    """The side of each row of a version, by its lines and columns."""
    dataset = open_dataset(out, version=version)
    names = ["train", "val", "test", *(f"fold-{fold}" for fold in range(5))]
    found: list[str | None] = [None] * len(dataset)
    require_module("polars")
    where = {dataset.filename(row): row for row in range(len(dataset))}
    for name in names:
        chosen = dataset.where(f"split = '{name}'")
        for row in range(len(chosen)):
            found[where[chosen.filename(row)]] = name
    return found


def specified(out: Path, keys: list[list[bytes]], recorded: list[int], how: Split) -> list[str]:
    hashed = [[hash_of(key, how.seed, number) for key in column] for number, column in enumerate(keys)]
    labels = [int(label) for label in open_dataset(out).targets]
    return [how.names[side] for side in expected(hashed, labels, recorded, how)]


def paths(out: Path) -> list[bytes]:
    dataset = open_dataset(out)
    return [dataset.filename(row).encode() for row in range(len(dataset))]


@pytest.mark.complete
def test_rows_are_on_the_sides_that_are_specified(out: Path, tmp_path: Path) -> None:
    how = Split(200_000, 100_000, 0, 5, ("path",), True)
    before = tree(out)
    report = change(split, out, val="20%", test=0.1, seed=5)
    keys = paths(out)
    found = sides(out)
    assert found == specified(out, [keys], [NO_SIDE] * len(keys), how)
    assert report.sides == {name: found.count(name) for name in how.names}
    assert {**tree(out), **before} == tree(out), "a file was written again"
    assert split(out).version == report.version, "rows that are on a side were split again"
    # What comes later is put beside it.
    append(out, listed(tmp_path, range(50, 80)))
    drop_rows(out, [2])
    recorded = [how.names.index(side) for side in found if side is not None]
    del recorded[2]
    assert sides(out) == [how.names[side] for side in recorded] + [None] * 30
    change(split, out)
    assert sides(out) == specified(out, [paths(out)], recorded + [NO_SIDE] * 30, how)
    assert (verify(out).problems, verify(out).orphans) == ((), ())
    assert sides(out, report.version) == found


def test_a_side_is_opened(out: Path, tmp_path: Path) -> None:
    split(out, folds=3)
    there = sides(out)
    for names in ("fold-0", ["fold-1", "fold-2"]):
        rows = [row for row, side in enumerate(there) if side in names]
        dataset, whole = open_dataset(out, split=names), open_dataset(out)
        assert [dataset.filename(row) for row in range(len(dataset))] == [whole.filename(row) for row in rows]
        np.testing.assert_array_equal(dataset.targets, whole.targets[rows])
    stored = StoredRows.open(out)
    assert len(stored.where("split <> 'fold-0'")) == len(stored) - there.count("fold-0")
    assert summarise(out, "split = 'fold-0'").rows == there.count("fold-0")
    alone = tmp_path / "alone"
    assert pack(out, alone, PackOptions(where="split = 'fold-0'")).records == there.count("fold-0")
    assert held(open_dataset(alone)) == held(open_dataset(out, split="fold-0"))


@pytest.mark.complete
def test_what_is_joined_or_staged_is_on_its_sides(out: Path, tmp_path: Path, memory_path: Path) -> None:
    split(out, val=0.3)
    append(out, listed(tmp_path, range(50, 60)))
    there = sides(out)
    compact(out)
    assert sides(out) == there
    assert not verify(out).problems
    assert split(out).sides == {"train": 40, "val": 17}
    there = sides(out)
    purge(out, [1, 40])
    assert sides(out) == [side for row, side in enumerate(there) if row not in (1, 40)]
    assert (verify(out).problems, verify(out).orphans) == ((), ())
    val = open_dataset(out, split="val")
    staged = open_dataset(out, split="val", stage=memory_path)
    assert held(staged) == held(val)


def test_a_state_belongs_to_the_sides_of_its_version(out: Path, tmp_path: Path) -> None:
    """Its epoch ends on the rows that were on the side, though others are now."""
    split(out, val=0.5)
    options: dict[str, Any] = {"shuffle": True, "num_workers": 0, "fields": ["row"]}
    with Loader(open_dataset(out, [CenterCrop(8)], split="val"), 4, **options) as loader:
        batches = iter(loader)
        seen = [label for _ in range(2) for label in next(batches)[1].tolist()]
        state = loader.state_dict()
        rest = [label for batch in batches for label in batch[1].tolist()]
    split(out, val=0.5, seed=1, replace_existing=True)
    append(out, listed(tmp_path, range(50, 60)))
    split(out)
    with Loader(open_dataset(out, [CenterCrop(8)], split="val"), 4, **options) as loader:
        loader.load_state_dict(state)
        assert [label for batch in loader for label in batch[1].tolist()] == rest
        assert len(seen) + len(rest) < sum(len(batch[1]) for batch in loader)


def test_groups_stay_together(out: Path, tmp_path: Path) -> None:
    """A part of the path, and a text of a field, of which a row may have none."""
    patients = [path.split(b"/")[0] for path in paths(out)]
    scenes = [b"s%d" % (row % 9) if row % 2 else None for row in range(len(patients))]
    lines = zip(paths(out), scenes, strict=True)
    listing = tmp_path / "scenes.jsonl"
    listing.write_text("".join(json.dumps({"path": a.decode(), "s": b.decode()}) + "\n" for a, b in lines if b))
    add_field(out, listing, [FieldColumn("scene", "text", "s", by_path=False, optional=True)])
    nothing = [NO_SIDE] * len(patients)
    by = ("path:^(p[0-9]+)/",)
    split(out, val=0.3, by=by)
    assert sides(out) == specified(out, [patients], nothing, Split(300_000, 0, 0, 0, by, True))
    texts = [scene or path for scene, path in zip(scenes, paths(out), strict=True)]
    split(out, val=0.3, by=["scene", *by], stratified=False, replace_existing=True)
    labels = Split(300_000, 0, 0, 0, ("scene", *by), False)
    hashed = [[hash_of(key, 0, n) for key in column] for n, column in enumerate([texts, patients])]
    assert sides(out) == [labels.names[side] for side in expected(hashed, [0] * len(texts), nothing, labels)]


def test_numbers_and_strings_are_keys(out: Path, tmp_path: Path) -> None:
    scans = [row % 7 - 3 if row % 5 else None for row in range(len(paths(out)))]
    lines = [
        {"path": path.decode(), "n": scan, "s": f"é{scan}"}
        for path, scan in zip(paths(out), scans, strict=True)
        if scan is not None
    ]
    listing = tmp_path / "scans.jsonl"
    listing.write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = [FieldColumn(name, kind, name[0], False, True) for name, kind in (("number", "number"), ("s", "string"))]
    add_field(out, listing, columns)
    for name, form in (("number", "{}"), ("s", "é{}")):
        split(out, val=0.4, by=name, replace_existing=True)
        keys = [path if n is None else form.format(n).encode() for n, path in zip(scans, paths(out), strict=True)]
        assert sides(out) == specified(out, [keys], [NO_SIDE] * len(keys), Split(400_000, 0, 0, 0, (name,), True))


def test_a_row_that_joins_two_sides_is_named(tmp_path: Path) -> None:
    out = packed(listed(tmp_path, range(24)), tmp_path / "out", "tar")
    by = ["path:^(p[0-9]+)/", "path:([0-9]+).jpg$"]
    split(out, val=0.5, by=by)
    there = sides(out)
    one, other = there.index("train"), there.index("val")
    path = tmp_path / f"p{one // 4}" / f"{other}.jpg"
    path.write_bytes(encoded(picture(99, 16, 12)))
    (tmp_path / "more.txt").write_text(f"{path.relative_to(tmp_path)} 1\n")
    append(out, tmp_path / "more.txt")
    with pytest.raises(
        UsageError, match=rf"row 24 \(p{one // 4}/{other}\.jpg\) belongs to groups on different sides: row"
    ):
        split(out)
    assert sides(out) == [*there, None]


def test_damage_is_named(out: Path) -> None:
    split(out, val=0.2)
    path = min(out.glob("sides/*.npy"))
    flip(path, path.stat().st_size - 2)
    with pytest.raises(CorruptFile, match=path.name):
        open_dataset(out, split="val")
    assert [problem.file for problem in verify(out).problems] == [f"sides/{path.name}"]


@pytest.mark.complete
@pytest.mark.parametrize(
    ("regex", "message"),
    [
        ("(", "no regular expression"),
        ("a{99999999999}", "no regular expression"),
        ("\ud800", "no regular expression"),
        ("((.?){300})*!", r"needed more than 1 s of processor time\. Split by a simpler one, with --replace"),
    ],
    ids=["unclosed", "too many", "no text", "too slow"],
)
def test_what_a_stranger_splits_by_is_searched_for_within_limits(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regex: str, message: str
) -> None:
    monkeypatch.setattr(regex_keys, "_SECONDS", 1)
    split(out, val=0.2, by="path:p[0-9]+")
    append(out, listed(tmp_path, range(50, 52)))
    newest = max(out.glob("versions/*.json"))
    forge(newest, lambda body: body["split"].update(by=[f"path:{regex}"]))
    before = tree(out)
    with pytest.raises(UsageError, match=message):
        split(out)
    assert tree(out) == before


def test_what_cannot_be_is_refused(out: Path, tmp_path: Path) -> None:
    for options, message in [
        ({}, "say how to split"),
        ({"val": 0.1, "folds": 3}, "do not go together"),
        ({"val": "60%", "test": "40%"}, "nothing for train"),
        ({"val": 1}, r"val=1: expected a share"),
        ({"val": "x%"}, r"val='x%': expected a share"),
        ({"folds": 1}, "folds=1"),
        ({"val": 0.1, "by": "size"}, "there is no such field"),
        ({"val": 0.1, "by": "image"}, "it is of the kind image. Keys are path"),
        ({"val": 0.1, "by": "path:("}, "no regular expression"),
        ({"val": 0.1, "by": "path:q"}, "finds nothing in the path of"),
    ]:
        with pytest.raises(UsageError, match=message):
            split(out, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not split: `packtrain split"):
        open_dataset(out, split="val")
    split(out, val=0.1)
    with pytest.raises(UsageError, match="`val` was 10% when the dataset was split"):
        split(out, val=0.2)
    with pytest.raises(UsageError, match=r"split='vall': .*train, val, test; did you mean 'val'\?"):
        open_dataset(out, split="vall")
    with pytest.raises(UsageError, match="has no row there"):
        open_dataset(out, split="test")
    append(out, listed(tmp_path, range(50, 52)))
    with pytest.raises(UsageError, match="2 rows that were appended are on no side: run `packtrain split"):
        open_dataset(out, split="val")
