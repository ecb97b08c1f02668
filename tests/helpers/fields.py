"""A list of samples of many fields, with the files that it names, and what must come back of each sample."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers.support import encoded, picture
from PIL import Image

from packtrain._packer.options import Columns, FieldColumn

HEADER_LINES = 1
BAD = 2
"""The sample whose mask is broken."""
COLUMNS = Columns(
    "path",
    "class",
    (
        FieldColumn("side", "image", "side", by_path=True, optional=True),
        FieldColumn("seg", "mask", "seg", by_path=True),
        FieldColumn("depth", "mask", "depth", by_path=True, encoding="raw"),
        FieldColumn("caption", "text", "caption", by_path=False, optional=True),
        FieldColumn("meta", "json", "meta", by_path=False),
        FieldColumn("boxes", "array", "boxes", by_path=False),
        FieldColumn("wave", "array", "wave", by_path=True, optional=True),
        FieldColumn("blob", "bytes", "blob", by_path=True),
    ),
)
INDEXED = (
    FieldColumn("rating", "number", "rating", by_path=False, optional=True),
    FieldColumn("source", "string", "source", by_path=False),
)
"""Columns of values that lie in the index, beside those of records."""
NO_JSON = {
    "NaN": (b'{"a": NaN}', "NaN is no JSON: write null"),
    "Infinity": (b"[-Infinity]", "-Infinity is no JSON: write null"),
    "a large exponent": (b"[1e999]", "1e999 is beyond the numbers that float64 has"),
    "many digits": (b"9" * 400 + b".5", "9{24}[.]{3} is beyond the numbers that float64 has"),
    "an integer of many digits": (b"9" * 5000, "4300 digits"),
    "a key that comes twice": (b'[{"b": 1, "a": 2, "b": 1}]', "an object has the key 'b' twice"),
    "deep nesting": (b"[" * 257 + b"]" * 257, "nested more than 256 deep"),
    "very deep nesting": (b"[" * 100_000, "nested more than 256 deep"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "begins with a byte order mark"),
}
"""Texts that Python's json takes, or fails to read in a way of its own, and what is said of them."""
STORED_JSON = frozenset({"a large exponent", "many digits", "a key that comes twice"})
"""Those of them that datasets may hold which were packed before writers refused them."""
WITHOUT_IMAGE = Columns(None, None, tuple(field for field in COLUMNS.fields if field.kind in ("array", "text", "json")))


@dataclass(frozen=True)
class FieldSource:
    """One line, read without packtrain.

    Attributes:
        line: 0-based number of the line.
        label: Its label.
        values: By name of the field: bytes of the file, the text, or an array; None where it is missing.
    """

    line: int
    label: int
    values: dict[str, Any]


def field_set(folder: Path, count: int, *, bad: bool = True) -> Path:
    """Writes a CSV list of `count` samples with a field of every kind. Returns the list.

    Of four samples, one has no side view and an empty caption, one no caption, and one no wave and no boxes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "class", *(field.column for field in (*COLUMNS.fields, *INDEXED))])
        for line in range(count):
            writer.writerow(_row(folder, line, bad=bad and line == BAD))
    return folder / "train.csv"


def _row(folder: Path, line: int, *, bad: bool) -> list[Any]:
    random, (width, height) = np.random.default_rng(line), (24 + line, 20 + line % 3)
    (folder / f"{line}.jpg").write_bytes(encoded(picture(line, width, height)))
    (folder / f"{line} side.jpg").write_bytes(encoded(picture(100 + line, 16, 12)))
    narrow = Image.fromarray(random.integers(0, 4, (height, width), np.uint8))
    (folder / f"{line} seg.png").write_bytes(b"<html>" if bad else encoded(narrow, "PNG"))
    wide = Image.fromarray(random.integers(0, 1 << 16, (height, width), np.uint16))
    (folder / f"{line} depth.png").write_bytes(encoded(wide, "PNG"))
    np.save(folder / f"{line}.npy", random.random((4, 3)).astype(">f4", order="F"))
    (folder / f"{line}.bin").write_bytes(random.bytes(line))
    caption = ['a "quoted" caption,\nin two lines', "", "Zoë 図", "plain"][line % 4]
    boxes = [[round(float(value), 3) for value in box] for box in random.random((line % 4, 4))]
    return [
        f"{line}.jpg",
        line % 3,
        "" if line % 4 == 1 else f"{line} side.jpg",
        f"{line} seg.png",
        f"{line} depth.png",
        caption,
        json.dumps({"id": line, "tags": ["x"] * line}),
        json.dumps(boxes),
        "" if line % 4 == 3 else f"{line}.npy",
        f"{line}.bin",
        "" if line % 4 == 2 else line / 2,
        f"source {line}" * (line % 3),
    ]


def field_sources(listing: Path) -> list[FieldSource]:
    """The lines of a `field_set` list, read by Python's csv."""
    found = []
    with listing.open(newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        start = reader.line_num
        for cells in reader:
            row = dict(zip(header, cells, strict=True))
            values = {field.name: _value(listing.parent, field, row[field.column]) for field in COLUMNS.fields}
            values["image"] = (listing.parent / row["path"]).read_bytes()
            found.append(FieldSource(start - HEADER_LINES, int(row["class"]), values))
            start = reader.line_num
    return found


def _value(folder: Path, field: FieldColumn, cell: str) -> Any:
    if not cell and field.kind != "text":
        return None
    match field.name:
        case "depth":
            return np.asarray(Image.open(folder / cell)).astype("<u2")
        case "boxes":
            return np.array(json.loads(cell), "<f8").reshape(-1, 4)
        case "wave":
            return np.load(folder / cell).astype("<f4")
    return (folder / cell).read_bytes() if field.by_path else cell.encode()
