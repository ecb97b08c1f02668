"""Laws of the options of `packtrain pack` that name columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.support import tree

from packtrain import Columns, FieldColumn, pack
from packtrain._cli import columns

from .conftest import Run

NONE: dict[str, Any] = {
    "image": None,
    "label": None,
    "image_field": (),
    "mask": (),
    "text": (),
    "json_field": (),
    "array": (),
    "bytes": (),
    "optional": (),
    "mask_classes": (),
    "mask_store": None,
    "dtype": (),
    "shape": (),
}


def named(**options: Any) -> Columns | None:
    return columns.columns_of(**{**NONE, **options})


def test_every_option_says_which_column_holds_which_field() -> None:
    found = named(
        image="path",
        label="class",
        image_field=["second=Other View"],
        mask=["seg:path", "parts=Parts"],
        text=["caption", "notes=Note File:path"],
        json_field=["meta"],
        array=["boxes", "flow:path"],
        bytes=["sound=Clip"],
        optional=["caption", "seg"],
        mask_classes=["parts=names.txt"],
        mask_store="raw",
        dtype=["boxes=float32", "parts=u2"],
        shape=["boxes=N,4", "flow=()"],
    )
    assert found == Columns(
        "path",
        "class",
        (
            FieldColumn("second", "image", "Other View", True),
            FieldColumn("seg", "mask", "seg", True, optional=True, encoding="raw"),
            FieldColumn("parts", "mask", "Parts", True, encoding="raw", dtype="<u2", classes=Path("names.txt")),
            FieldColumn("caption", "text", "caption", False, optional=True),
            FieldColumn("notes", "text", "Note File", True),
            FieldColumn("meta", "json", "meta", False),
            FieldColumn("boxes", "array", "boxes", False, dtype="<f4", shape=(None, 4)),
            FieldColumn("flow", "array", "flow", True, shape=()),
            FieldColumn("sound", "bytes", "Clip", True),
        ),
    )
    assert named() is None
    assert named(array=["spectrum"]) == Columns(fields=(FieldColumn("spectrum", "array", "spectrum", False),))


WRONG: dict[str, tuple[list[str], str]] = {
    "a name with a blank": (["--mask", "Seg Mask"], "for example: --mask 'seg_mask=Seg Mask'"),
    "a reserved name": (
        ["--text", "label:path"],
        "it is reserved. Choose another name, for example: --text label_text=",
    ),
    "a number": (["--json-field", "3"], "for example: --json-field json_3=3"),
    "no column": (["--text", "a="], "--text a=: no column is named"),
    "nothing but a suffix": (["--text", ":path"], "--text '': no column is named"),
    "an unknown optional field": (
        ["--text", "caption", "--optional", "captoin"],
        "the fields are caption; did you mean",
    ),
    "an optional image": (["--image", "path", "--optional", "image"], "no sample can be without the image"),
    "classes without a file": (["--mask", "seg", "--mask-classes", "f.txt"], "expected NAME=FILE, such as seg=FILE"),
    "another type": (["--array", "a", "--dtype", "a=float33"], "expected a type of numpy's, such as float32"),
    "another shape": (["--array", "a", "--shape", "a=4,N"], "expected sizes such as 3,4 or N,4"),
    "a shape of a mask": (["--mask", "m", "--shape", "m=3"], "--shape m: there is no such field"),
    "classes of a text": (["--text", "t", "--mask-classes", "t=f.txt"], "--mask-classes t: there is no such field"),
    "no masks to store": (["--text", "t", "--mask-store", "raw"], "--mask-store is for masks, but there is no --mask"),
    "only a label": (["--label", "y"], "add --image COL. For a list of `path label` lines, the option is --labels"),
    "two of one name": (["--text", "t", "--json-field", "t"], "two fields are called 't'"),
    "labels without a column": (["--image", "path", "--labels", "float"], "name it with `--label`"),
    "a label and none": (["--image", "path", "--label", "class", "--labels", "none"], "but `--labels` is none"),
    "an unknown column": (["--image", "pth"], "train.csv has no column 'pth', but path, class; did you mean 'path'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_wrong_usage_with_what_to_type(case: str, run: Run, tmp_path: Path) -> None:
    words, message = WRONG[case]
    (tmp_path / "train.csv").write_text("path,class\na.jpg,1\n")
    outcome = run("pack", tmp_path / "train.csv", tmp_path / "out", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


def test_columns_pack_what_the_list_of_paths_and_labels_packs(run: Run, images: Path, tmp_path: Path) -> None:
    lines = [line.rsplit(" ", 1) for line in images.read_text().splitlines()]
    rows = [f'x,{label},"{path}"\n' for path, label in lines]
    (tmp_path / "train.csv").write_text("note,class,path\n" + "".join(rows))
    words = ("--image", "path", "--label", "class", "--root", images.parent, "--workers", 1)
    assert run("pack", tmp_path / "train.csv", tmp_path / "out", *words).code == 0
    pack(images, tmp_path / "plain")
    found, plain = tree(tmp_path / "out"), tree(tmp_path / "plain")
    shards = [name for name in plain if name.endswith(".tar")]
    assert [found[name] for name in shards] == [plain[name] for name in shards]
