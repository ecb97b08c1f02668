"""Datasets that are changed: what is appended to them, and what they hold."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packtrain import FieldColumn, add_field, append, drop_rows, open_dataset, verify

from .support import encoded, packed, picture

VERSIONS = (1, 2, 3, 4)


def changed_dataset(images: Path, folder: Path) -> Path:
    """Packs every other image of a list, appends the rest, drops a row of each segment, and adds a field to all."""
    lines = images.read_text().splitlines()
    for number in (0, 1):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::2]))
    out = packed(folder / "0.txt", folder / "out", "tar", root=images.parent, shard_size=4096)
    append(out, folder / "1.txt", root=images.parent)
    drop_rows(out, [1, len(lines) - 1])
    captions = [f"{line.rsplit(maxsplit=1)[0]},{line[::-1]}" for line in lines]
    (folder / "captions.csv").write_text("\n".join(["path,caption", *captions]))
    add_field(out, folder / "captions.csv", [FieldColumn("caption", "text", "caption", by_path=False)])
    return out


def listed(folder: Path, first: int, count: int) -> Path:
    """A list of images with the labels `first`, `first` + 1 and so on, by which they are known."""
    for number in range(first, first + count):
        (folder / f"{number}.jpg").write_bytes(encoded(picture(number, 16 + number % 3, 12)))
    listing = folder / f"{first}.txt"
    listing.write_text("".join(f"{number}.jpg {number}\n" for number in range(first, first + count)))
    return listing


def labels_of(out: Path, **options: Any) -> list[int]:
    """The labels of all rows of a dataset."""
    return [int(label) for label in open_dataset(out, **options).targets]


def rows_of(out: Path, **options: Any) -> list[tuple[Any, ...]]:
    """The path, stored image, label and values of other fields of each row of a dataset."""
    dataset = open_dataset(out, **options)
    fields = [name for name in dataset.schema.names if name != "image"]
    chosen = open_dataset(out, fields=["label", *fields], **options)
    return [(dataset.filename(row), bytes(dataset.record(row)), *chosen[row]) for row in range(len(dataset))]


def same(one: Any, other: Any) -> bool:
    """True for the same value of the same type; NaN equals NaN."""
    return type(one) is type(other) and (one == other or (one != one and other != other))


def laid_out(files: Mapping[str, bytes], folder: Path, *, sound: bool = True) -> Path:
    """A folder that has these files and no others; every file that a version names has to be sound."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    assert not sound or not verify(folder).problems
    return folder
