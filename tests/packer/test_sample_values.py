"""Laws of samples with named keys: values in memory are packed as the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fields import COLUMNS, field_set, field_sources
from helpers.support import encoded, packed, picture
from PIL import Image

from packtrain import PackOptions, open_dataset, pack, verify
from packtrain._core.options import StoreOptions
from packtrain._packer.options import Columns, FieldColumn
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import ListError

COUNT = 6
KEYS = Columns(
    "photo",
    "label",
    tuple(
        FieldColumn(f.name, f.kind, f.name, f.by_path, f.optional, f.encoding, f.dtype, f.shape) for f in COLUMNS.fields
    ),
)
"""Each key has the name of its field, but for the image."""
STORES = [StoreOptions("verbatim"), StoreOptions("raw", resize="12x10"), StoreOptions("jpeg", resize="short=14")]


def records(dataset: Path, name: str) -> list[bytes | None]:
    with RecordStore(dataset) as store:
        found = [store.field(name).read(row) for row in range(len(store))]
        return [None if record is None else bytes(record) for record in found]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return field_set(tmp_path_factory.mktemp("fields"), COUNT, bad=False)


def by_value(listing: Path) -> list[dict[str, Any]]:
    """The content of all files, and the values of all cells."""
    samples = []
    for source in field_sources(listing):
        values = dict(source.values)
        values["photo"] = values.pop("image")
        values |= {"caption": values["caption"].decode(), "meta": json.loads(values["meta"])}
        samples.append(values | {"label": source.label, "not named": 1})
    return samples


def by_path(listing: Path) -> list[dict[str, Any]]:
    """The same, with the paths of images, masks and bytes."""
    samples = []
    for number, source in enumerate(by_value(listing)):
        paths = {"photo": f"{number}.jpg", "seg": f"{number} seg.png", "depth": Path(f"{number} depth.png")}
        paths |= {"blob": str(listing.parent / f"{number}.bin")}
        samples.append(source | paths)
    return samples


def decoded(listing: Path) -> list[dict[str, Any]]:
    """The same, with masks as arrays or as images of PIL."""
    samples = []
    for number, source in enumerate(by_value(listing)):
        seg = Image.open(listing.parent / f"{number} seg.png")
        depth = np.asarray(Image.open(listing.parent / f"{number} depth.png"))
        samples.append(source | {"seg": seg, "depth": depth.astype(np.int64)})
    return samples


@pytest.mark.parametrize("store", STORES, ids=str)
@pytest.mark.parametrize("given", [by_value, by_path, decoded])
def test_values_are_packed_as_files_are(
    listing: Path, tmp_path: Path, store: StoreOptions, given: Callable[[Path], list[dict[str, Any]]]
) -> None:
    expected = packed(listing, tmp_path / "list", "tar", columns=COLUMNS, store=store)
    pack(given(listing), tmp_path / "out", PackOptions(store=store, columns=KEYS, root=listing.parent))
    assert verify(tmp_path / "out", decode_images=True).problems == ()
    theirs, mine = open_dataset(expected), open_dataset(tmp_path / "out")
    assert mine.targets.tolist() == theirs.targets.tolist()
    for name in mine.schema.names:
        if given is decoded and name == "seg" and store.store == "verbatim":
            # Another PNG of the same indices.
            rows = [(mine.value(row, name), theirs.value(row, name)) for row in range(COUNT)]
            assert all(np.array_equal(one, other) for one, other in rows)
        elif name in ("meta", "boxes"):
            # JSON is written otherwise, and JSON has no float64.
            assert [np.asarray(mine.value(row, name)).tolist() for row in range(COUNT)] == [
                np.asarray(theirs.value(row, name)).tolist() for row in range(COUNT)
            ]
        else:
            assert records(tmp_path / "out", name) == records(expected, name), name


@pytest.mark.parametrize(
    ("kind", "values", "options", "found"),
    [
        ("mask", [np.zeros((4, 4), np.int64), np.full((4, 4), 300)], {}, "<u2"),
        ("mask", [np.zeros((4, 4), bool), np.full((4, 4), 255)], {}, "|u1"),
        ("array", [[1, 2], [3]], {}, "<i8"),
        ("array", [[1, 2], [3]], {"dtype": "float32"}, "<f4"),
        ("array", [np.array([1, 2], np.float16)], {"dtype": "float32"}, "<f4"),
    ],
)
def test_the_type_of_a_field_has_room_for_the_first_samples(
    tmp_path: Path, kind: str, values: list[Any], options: dict[str, Any], found: str
) -> None:
    columns = Columns(fields=(FieldColumn("x", kind, "key", by_path=kind == "mask", **options),))
    pack([{"key": value} for value in values], tmp_path / "out", PackOptions(columns=columns))
    dataset = open_dataset(tmp_path / "out", fields=("x",))
    assert dataset.schema["x"].dtype == found
    for row, value in enumerate(values):
        np.testing.assert_array_equal(np.asarray(dataset[row].x), np.asarray(value))


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (np.full((4, 4), -1), "it holds the class index -1, and the field 0 to 255"),
        (
            np.full((4, 4), 256),
            'index 256, and the field 0 to 255. If all are to have 16 bits, give dtype="uint16" for m',
        ),
        (np.zeros((4, 4, 3), np.uint8), "it is uint8 [4, 4, 3], not class indices"),
        (np.zeros((4, 4)), "it is float64 [4, 4], not class indices"),
        (picture(1), "mode RGB has colours"),
        (encoded(picture(1)), "a JPEG, whose compression changes class indices"),
        (np.zeros((4, 5), np.uint8), "it has 5 x 4 pixels, and its image 4 x 4"),
        ("none.png", "mask m: No such file or directory ('none.png')"),
        (None, "it has no m"),
    ],
)
def test_a_mask_that_is_none_is_a_reject(tmp_path: Path, value: Any, names: str) -> None:
    columns = Columns("image", None, (FieldColumn("m", "mask", "m", by_path=True, dtype="uint8"),))
    pixels = np.zeros((4, 4, 3), np.uint8)
    samples = [{"image": pixels, "m": np.zeros((4, 4), np.uint8)}, {"image": pixels, "m": value}]
    pack(samples, tmp_path / "out", PackOptions(store=StoreOptions("raw"), columns=columns), max_rejects=1)
    (found,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert names in found["reason"]


def test_an_array_that_no_first_sample_has(tmp_path: Path) -> None:
    columns = Columns("image", None, (FieldColumn("x", "array", "x", by_path=False, optional=True),))
    with pytest.raises(ListError, match=r"array x: none of the first samples has it.*`dtype`"):
        pack([{"image": encoded(picture(1))}], tmp_path / "out", PackOptions(columns=columns))


def test_what_is_written_by_pillow_is_in_the_plan(tmp_path: Path) -> None:
    """Another Pillow may write another PNG of the same mask."""
    columns = Columns(fields=(FieldColumn("m", "mask", "m", by_path=True),))
    pack([{"m": np.zeros((4, 4), np.uint8)}], tmp_path / "out", PackOptions(columns=columns))
    assert "zlib" in json.loads((tmp_path / "out" / "plan.json").read_bytes())["encoder"]
