"""Laws of packing a dataset that was changed: the new one has the rows of its newest version."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import encoded, image_set, packed, picture, tree

from packtrain import (
    FieldColumn,
    ImageDataset,
    PackOptions,
    TuneOptions,
    add_field,
    append,
    compact,
    drop_rows,
    drop_version,
    open_dataset,
    pack,
    pack_status,
    purge,
    relabel,
    split,
    stage,
    tune,
    verify,
)
from packtrain.errors import PacktrainError, UsageError

FIELDS = ("image", "label", "caption")


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Two segments, rows of both dropped, and a caption for all."""
    out = packed(image_set(tmp_path, 9), tmp_path / "out", "tar")
    lines = []
    for number in range(4):
        (tmp_path / f"more {number}.jpg").write_bytes(encoded(picture(50 + number, 31, 22)))
        lines.append(f"more {number}.jpg {number % 2}\n")
    (tmp_path / "more.txt").write_text("".join(lines))
    append(out, tmp_path / "more.txt")
    paths = [f"image {number}.jpg" for number in range(9)] + [f"more {number}.jpg" for number in range(4)]
    (tmp_path / "captions.csv").write_text("path,caption\n" + "".join(f"{path},about {path}\n" for path in paths))
    add_field(out, tmp_path / "captions.csv", [FieldColumn("caption", "text", "caption", by_path=False)])
    drop_rows(out, [0, 4, 11])
    return out


def content(dataset: ImageDataset) -> list[tuple[object, ...]]:
    return [
        (bytes(dataset.record(row)), dataset.label(row), dataset.filename(row), dataset.value(row, "caption"))
        for row in range(len(dataset))
    ]


@pytest.mark.complete
@pytest.mark.parametrize("seed", [0, None])
def test_a_changed_dataset_is_packed_row_for_row(changed: Path, tmp_path: Path, seed: int | None) -> None:
    report = pack(changed, tmp_path / "again", PackOptions(format="lmdb", shard_size=4096, seed=seed), num_workers=2)
    assert report.records == 10
    found, expected = (open_dataset(path, fields=FIELDS) for path in (tmp_path / "again", changed))
    assert content(found) == content(expected)
    assert verify(tmp_path / "again", decode_images=True).problems == ()
    assert pack(changed, tmp_path / "again", PackOptions(format="lmdb", shard_size=4096, seed=seed)).complete_before
    assert pack_status(tmp_path / "again").complete


def test_rows_that_are_chosen(changed: Path, tmp_path: Path) -> None:
    pytest.importorskip("polars")
    where = "label = 1 and width < 50 or path like 'more%'"
    pack(changed, tmp_path / "some", PackOptions(where=where))
    expected = open_dataset(changed, fields=FIELDS).where(where)
    assert 0 < len(expected) < 10
    assert content(open_dataset(tmp_path / "some", fields=FIELDS)) == content(expected)
    with pytest.raises(UsageError, match="no row of"):
        pack(changed, tmp_path / "none", PackOptions(where="width > 9000"))


def test_one_is_appended_to_another(changed: Path, tmp_path: Path) -> None:
    pytest.importorskip("polars")
    out = tmp_path / "sum"
    pack(changed, out, PackOptions(where="row < 4"))
    assert append(out, changed).records == 14
    expected = content(open_dataset(changed, fields=FIELDS))
    assert content(open_dataset(out, fields=FIELDS)) == expected[:4] + expected


@pytest.mark.complete
def test_tune_reads_a_version(changed: Path) -> None:
    options = TuneOptions(batch_size=2, seconds=1, max_workers=0, transform="center8")
    assert tune(changed, options).results


def named(path: Path) -> list[str]:
    """The class names of all rows."""
    dataset = open_dataset(path)
    assert dataset.classes is not None
    return [dataset.classes[int(dataset.label(row))] for row in range(len(dataset))]


def test_a_dataset_with_class_names_is_appended_to_one(tmp_path: Path) -> None:
    image_set(tmp_path, 6)
    lines = [f"image {number}.jpg {'cat' if number % 2 else 'dog'}\n" for number in range(6)]
    for name, chosen in (("one", lines[:4]), ("two", lines[4:]), ("other", ["image 0.jpg bird\n"])):
        (tmp_path / f"{name}.txt").write_text("".join(chosen))
        pack(tmp_path / f"{name}.txt", tmp_path / name, PackOptions(label_names=True))
    assert append(tmp_path / "one", tmp_path / "two").records == 6
    assert named(tmp_path / "one") == [line.split()[-1] for line in lines]
    with pytest.raises(UsageError, match="label 0 is 'bird' in what is appended, but 'cat' in the dataset"):
        append(tmp_path / "one", tmp_path / "other")
    assert len(open_dataset(tmp_path / "one")) == 6


@pytest.mark.parametrize("begun", [False, True], ids=["packed", "changed"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, begun: bool, dry_run: bool) -> None:
    image_set(tmp_path, 3)
    for name, line in (("one", "image 0.jpg cat"), ("more", "image 1.jpg cat"), ("other", "image 2.jpg bird")):
        (tmp_path / f"{name}.txt").write_text(f"{line}\n")
        pack(tmp_path / f"{name}.txt", tmp_path / name, PackOptions(label_names=True))
    if begun:
        append(tmp_path / "one", tmp_path / "more")
    before = tree(tmp_path / "one")
    with pytest.raises(UsageError, match="label 0 is 'bird' in what is appended"):
        append(tmp_path / "one", tmp_path / "other", dry_run=dry_run)
    assert tree(tmp_path / "one") == before


COMMANDS: dict[str, Callable[[Path], object]] = {
    "append": lambda copy: append(copy, copy),
    "add-field": lambda copy: add_field(copy, copy / "captions.csv", []),
    "compact": compact,
    "drop-rows": lambda copy: drop_rows(copy, [0]),
    "drop-version": drop_version,
    "purge": lambda copy: purge(copy, [0]),
    "relabel": lambda copy: relabel(copy, copy / "labels.txt"),
    "split": lambda copy: split(copy, val=0.5),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_staged_copy_is_not_changed(changed: Path, tmp_path: Path, name: str) -> None:
    """Whoever stages the same version would get the changed rows."""
    (tmp_path / "fast").mkdir()
    copy = stage(changed, tmp_path / "fast")
    before = tree(copy.path)
    with pytest.raises(UsageError, match=rf"is a staged copy.*packtrain pack {copy.path} OUT$"):
        COMMANDS[name](copy.path)
    assert tree(copy.path) == before
    pack(copy.path, tmp_path / "own")
    assert drop_rows(tmp_path / "own", [0]).dropped == 1


def test_labels_that_may_be_names_or_numbers_are_not_guessed(tmp_path: Path) -> None:
    image_set(tmp_path, 3)
    (tmp_path / "first.txt").write_text("image 0.jpg 1\nimage 1.jpg 2\nimage 2.jpg 10\n")
    (tmp_path / "more.txt").write_text("image 1.jpg 1\n")
    out = tmp_path / "out"
    pack(tmp_path / "first.txt", out, PackOptions(label_names=True))
    with pytest.raises(UsageError, match=r"'1' whose number is 0.*--labels class for names, or --labels int"):
        append(out, tmp_path / "more.txt")
    append(out, tmp_path / "more.txt", label_names=True)
    assert named(out) == ["1", "2", "10", "1"]


@pytest.mark.parametrize("change", ["pack", "compact", "purge"])
def test_paths_stay_byte_for_byte(tmp_path: Path, change: str) -> None:
    """Paths on Linux need not be text."""
    names = [b"\xff.jpg", b"b.jpg", b"\xe9\xff.jpg", b"c.jpg"]
    for number, name in enumerate(names):
        (tmp_path / os.fsdecode(name)).write_bytes(encoded(picture(number, 20, 20)))
    out = tmp_path / "out"
    for part, chosen in (("first", names[:2]), ("more", names[2:])):
        (tmp_path / f"{part}.txt").write_bytes(b"".join(name + b" 0\n" for name in chosen))
    pack(tmp_path / "first.txt", out)
    append(out, tmp_path / "more.txt")
    if change == "pack":
        pack(out, tmp_path / "again")
        out = tmp_path / "again"
    elif change == "compact":
        compact(out)
    else:
        purge(out, [1, 3])
    dataset = open_dataset(out)
    found = [os.fsencode(dataset.filename(row)) for row in range(len(dataset))]
    assert found == (names[::2] if change == "purge" else names)


REFUSED: dict[str, Callable[[Path], object]] = {
    "append": lambda out: append(out, out.parent / "typo.txt"),
    "add-field": lambda out: add_field(out, out.parent / "typo.txt", []),
    "drop-rows": lambda out: drop_rows(out, [99]),
    "purge": lambda out: purge(out, [99]),
    "purge nothing": purge,
    "relabel": lambda out: relabel(out, out.parent / "typo.txt"),
    "split": lambda out: split(out, val=2.0),
    "split by": lambda out: split(out, val=0.5, by="nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_a_packed_dataset_as_it_is(tmp_path: Path, name: str) -> None:
    """A release that knows no versions goes on to read it."""
    out = packed(image_set(tmp_path, 3), tmp_path / "out", "tar")
    (tmp_path / "typo.txt").write_text("no such image.jpg 1\n")
    before = tree(out)
    with pytest.raises(PacktrainError):
        REFUSED[name](out)
    assert tree(out) == before
