"""The example that makes a list of COCO annotations: everything it writes can be read as columns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packtrain import Columns, FieldColumn
from packtrain._core.options import LabelSpec
from packtrain._packer.lists.reader import read_list

SCRIPT = Path(__file__).parents[2] / "examples" / "lists" / "coco.py"
COCO: dict[str, Any] = {
    "images": [
        {"id": 9, "file_name": "a, b.jpg", "width": 4, "height": 3},
        {"id": 7, "file_name": "empty.jpg", "width": 1, "height": 1},
    ],
    "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
    "annotations": [
        {"image_id": 9, "category_id": 3, "bbox": [0.5, 1, 2, 2]},
        {"image_id": 9, "caption": 'a "dog",\nand a car'},
        {"image_id": 9, "category_id": 18, "bbox": [1, 1, 1, 1]},
    ],
}


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv"])
def test_coco_annotations_become_columns(name: str, tmp_path: Path) -> None:
    (tmp_path / "coco.json").write_text(json.dumps(COCO))
    command: list[str | Path] = [sys.executable, SCRIPT, tmp_path / "coco.json", tmp_path / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / name}: 2 images\n"), done.stderr
    assert (tmp_path / "train.classes.txt").read_text() == "dog\ncar\n"
    kinds = {"boxes": "array", "classes": "array", "captions": "json", "meta": "json", "caption": "text"}
    fields = tuple(FieldColumn(field, kind, field, False, optional=True) for field, kind in kinds.items())
    listing = read_list(tmp_path / name, LabelSpec("none"), columns=Columns("path", fields=fields))
    assert listing.rejects == []
    first, second = listing.entries(np.arange(2))
    assert (first.path, second.path) == ("a, b.jpg", "empty.jpg")
    *values, caption = first.cells
    assert [json.loads(cell.content) for cell in values if cell is not None] == [
        [[0.5, 1, 2, 2], [1, 1, 1, 1]],
        [1, 0],
        ['a "dog",\nand a car'],
        {"id": 9, "width": 4, "height": 3},
    ]
    assert caption is not None
    assert caption.content.decode() == 'a "dog",\nand a car'
    assert second.cells[0] is not None
    assert second.cells[0].content == b"[]"
