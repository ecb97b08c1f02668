"""Whatever is exported comes back: by `pack`, `index` or `datasets`, with the same values in every field."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from helpers.datasets import FIELDS, NO_IMAGE, SCHEMA, make_dataset, values_of, write_dataset
from helpers.fields import COLUMNS, field_set
from helpers.staging.remote import BUCKET, installed
from helpers.support import encoded, import_torchvision, items, output_of, picture, require_module, tool, tree
from PIL import Image

from packtrain import Columns, FieldColumn, PackOptions, append, concat, drop_rows, export, open_dataset, pack
from packtrain._cli.main import group
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import Field, Schema
from packtrain.errors import ListError
from packtrain.reports import ExportReport

pytestmark = [
    # webdataset leaves it to the garbage collector to close its files.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STORES = ("crop-ready", "coefficients", "verbatim", "jpeg", "raw")
FORMATS = ("tar", "hdf5", "lmdb")


def back(report: ExportReport, out: Path, *more: str, fields: Sequence[str] | None = None) -> Any:
    """The dataset that the commands make which an export names."""
    options = [*more, "--workers", "1"]
    for command in report.again.split(" && "):
        (program, *arguments) = shlex.split(command)
        assert program == "packtrain"
        arguments[arguments.index("OUT")] = str(out)
        done = CliRunner().invoke(group, [*arguments, *options], standalone_mode=False)
        assert done.exception is None, done.output
        options = []
    return open_dataset(out, fields=fields)


def same(one: Any, other: Any) -> bool:
    """True for the same value: of images their pixels, of arrays also the type."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Image.Image):
        return (one.mode, one.tobytes()) == (other.mode, other.tobytes())
    return bool(one == other)


def assert_same(one: Any, other: Any) -> None:
    assert len(one) == len(other)
    for row, name in product(range(len(one)), one.schema.names):
        assert same(one.value(row, name), other.value(row, name)), (row, name)
    for row in range(len(one)):
        assert np.array_equal(one.label(row), other.label(row))


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return field_set(tmp_path_factory.mktemp("list"), 7, bad=False)


@pytest.mark.parametrize("to", ["folder", "webdataset"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("store", STORES)
def test_packing_or_indexing_what_was_exported_gives_the_same_samples(
    listing: Path, tmp_path: Path, to: str, format: str, store: str
) -> None:
    options = PackOptions(format, StoreOptions(store), columns=COLUMNS, shard_size=6000)
    pack(listing, tmp_path / "packed", options)
    report = export(tmp_path / "packed", tmp_path / "out", to=to, shard_size=9000)
    assert report.parts > 1
    again = back(report, tmp_path / "again", *(["--store", "verbatim"] if to == "folder" else []))
    before = open_dataset(tmp_path / "packed")
    assert_same(before, again)
    if to == "folder":
        assert again.schema.fields[4:] == before.schema.fields[4:], "without what says how pixels are stored"
    if StoreOptions(store).store_mode.is_raw:
        return
    for row, name in product(range(len(before)), ("image", "side")):
        if before.value(row, name) is not None:
            assert again.image_file(row, name) == before.image_file(row, name)


def test_a_folder_with_masks_beside_is_packed_by_its_list_only(tmp_path: Path) -> None:
    """Its masks would be samples. The first row has none."""
    columns = Columns("image", fields=(FieldColumn("seg", "mask", "seg", True, optional=True),))
    image = encoded(picture(0, 8, 6))
    masks = [None, np.ones((6, 8), np.uint8)]
    pack([{"image": image, "seg": mask} for mask in masks], tmp_path / "packed", PackOptions(columns=columns))
    report = export(tmp_path / "packed", tmp_path / "out", to="folder")
    with pytest.raises(ListError, match=r"samples have files of seg beside .* --image image --mask seg") as raised:
        pack(tmp_path / "out", tmp_path / "again", PackOptions(labels=LabelSpec("none")))
    assert str(tmp_path / "out" / "list.jsonl") in str(raised.value)
    again = back(report, tmp_path / "again", fields=["seg"])
    assert [again.value(row, "seg") is None for row in range(2)] == [True, False]


@pytest.mark.parametrize("to", ["folder", "webdataset"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("schema", [SCHEMA, NO_IMAGE], ids=["all kinds", "no image"])
def test_every_kind_of_field_and_its_lack(tmp_path: Path, to: str, format: str, schema: Schema) -> None:
    make_dataset(tmp_path / "made", format, schema)
    again = back(export(tmp_path / "made", tmp_path / "out", to=to), tmp_path / "again", fields=["meta"])
    assert_same(open_dataset(tmp_path / "made", fields=["meta"]), again)
    for row in range(len(again)):
        for name, value in values_of(row, schema).items():
            if name not in ("image", "other"):
                wanted = value.astype(np.int32) if name == "depth" else value
                assert same(wanted, again.value(row, name))


@pytest.mark.parametrize("labels", ["int", "float", "int*3", "float*2", "none"])
@pytest.mark.parametrize("to", ["folder", "webdataset", "parquet"])
def test_labels_of_every_type(tmp_path: Path, to: str, labels: str) -> None:
    spec = LabelSpec.parse(labels)
    values = np.arange(4 * max(spec.fields, 1)).reshape(4, -1) * (0.5 if spec.kind == "float" else 3) - 1
    lines = []
    for row in range(4):
        (tmp_path / f"{row}.jpg").write_bytes(encoded(picture(row)))
        lines.append(" ".join([f"{row}.jpg", *map(str, values[row].tolist() if spec.fields else [])]) + "\n")
    (tmp_path / "train.txt").write_text("".join(lines))
    pack(tmp_path / "train.txt", tmp_path / "packed", PackOptions(labels=spec))
    report = export(tmp_path / "packed", tmp_path / "out", to=to)
    if to == "parquet":
        table = pyarrow.parquet.read_table(tmp_path / "out")
        assert ("label" in table.column_names) == (spec.kind != "none")
        if spec.fields:
            assert np.array_equal(np.array(table["label"].to_pylist()).reshape(4, -1), values.astype(spec.dtype))
        return
    again = back(report, tmp_path / "again")
    if to == "webdataset" and spec.count is not None:
        found = [again.value(row, "label_")["label"] for row in range(4)]
        assert np.array_equal(found, values.astype(spec.dtype))
    else:
        assert again.schema.labels == spec
        assert_same(open_dataset(tmp_path / "packed"), again)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of three classes, one of which has a name that is no name of a folder."""
    folder = tmp_path_factory.mktemp("photos") / "train"
    for number in range(9):
        path = (
            folder / ("dog", "St. Bernard", "zebra")[number % 3] / f"img.v{number // 3}.{'JPEG' if number else 'png'}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number), "JPEG" if number else "PNG"))
    return folder


def test_an_image_folder_comes_back_file_by_file(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "packed", PackOptions(store=StoreOptions("verbatim")))
    report = export(tmp_path / "packed", tmp_path / "out", to="folder")
    ours = {".packtrain-export.json", "list.jsonl", "classes.txt"}
    assert tree(tmp_path / "out", *ours) == tree(photos)
    theirs = import_torchvision().datasets.ImageFolder(tmp_path / "out")
    dataset = open_dataset(tmp_path / "packed")
    assert theirs.classes == list(dataset.classes or ())
    found = {(path, label): image.tobytes() for (path, label), (image, _) in zip(theirs.samples, theirs, strict=True)}
    for row, (image, label) in enumerate(items(dataset)):
        assert found[str(tmp_path / "out" / dataset.filename(row)), label] == image.tobytes()
    again = back(report, tmp_path / "again")
    assert again.classes == dataset.classes
    assert_same(dataset, again)


def test_gnu_tar_and_webdataset_read_the_tars(photos: Path, tmp_path: Path) -> None:
    import webdataset

    pack(photos, tmp_path / "packed", PackOptions(store=StoreOptions("verbatim")))
    report = export(tmp_path / "packed", tmp_path / "out", to="webdataset", shard_size=4000)
    dataset = open_dataset(tmp_path / "packed")
    assert back(report, tmp_path / "again").classes == dataset.classes
    shards = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    assert len(shards) > 1
    names = "".join(output_of(tool("tar", "tar"), "-tf", shard) for shard in shards).splitlines()
    samples = list(webdataset.WebDataset(shards, shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == [
        os.path.splitext(dataset.filename(row))[0].replace("img.", "img_") for row in range(len(dataset))
    ]
    for row, sample in enumerate(samples):
        extension = "png" if dataset.filename(row).endswith("png") else "jpg"
        assert sample[extension] == dataset.image_file(row)
        assert int(sample["cls"]) == dataset.label(row)
        assert f"{sample['__key__']}.{extension}" in names


PARQUET_FIELDS = (
    *FIELDS,
    Field("half", "array", dtype="<f2", shape=(2, 2)),
    Field("wave", "array", dtype="<c8", shape=(3,)),
    Field("one", "array", dtype="|b1", shape=()),
)


def parquet_values(row: int) -> dict[str, Any]:
    random = np.random.default_rng(row)
    return values_of(row) | {
        "half": random.random((2, 2)).astype("<f2"),
        "wave": (random.random(3) + 1j).astype("<c8"),
        "one": np.array(row % 2 == 0),
    }


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with fields of every kind, exported to Parquet."""
    folder = tmp_path_factory.mktemp("parquet")
    schema = Schema(PARQUET_FIELDS, LabelSpec.parse("int"), tuple(f"class {label}" for label in range(60)))
    write_dataset(folder / "made", "tar", schema, [parquet_values(row) for row in range(6)])
    export(folder / "made", folder / "out", to="parquet", shard_size=20_000)
    return folder


def cell_of(name: str, value: Any) -> Any:
    """The cell of a Parquet file for a value of no image."""
    if name == "wave":
        buffer = io.BytesIO()
        np.save(buffer, value)
        return buffer.getvalue()
    return value.tolist() if isinstance(value, np.ndarray) else value


def assert_cells(row: int, found: dict[str, Any], image_of: Callable[[Any], Any]) -> None:
    assert found["label"] == 10 * row
    for name, value in parquet_values(row).items():
        if value is None:
            assert found[name] is None
        elif name in ("image", "other"):
            assert image_of(found[name]).tobytes() == Image.open(io.BytesIO(encoded(value, quality=95))).tobytes()
        elif name in ("seg", "depth"):
            assert np.array_equal(np.asarray(image_of(found[name])), value)
        elif name == "meta":
            assert json.loads(found[name]) == value
        else:
            assert found[name] == cell_of(name, value), name


def test_parquet_files_hold_every_field(parquet: Path) -> None:
    files = sorted((parquet / "out").glob("*.parquet"))
    assert [file.name for file in files] == [f"t-{n:05d}-of-{len(files):05d}.parquet" for n in range(len(files))]
    assert len(files) > 1
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    for row, found in enumerate(rows):
        assert_cells(row, found, lambda cell: Image.open(io.BytesIO(cell["bytes"])))


@pytest.mark.complete
def test_datasets_of_hugging_face_reads_the_parquet_files(parquet: Path, tmp_path: Path) -> None:
    require_module("datasets")
    import datasets

    files = [str(path) for path in sorted((parquet / "out").glob("*.parquet"))]
    found = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert isinstance(found.features["image"], datasets.Image)
    assert found.features["label"].names[10] == "class 10"
    for row, cells in enumerate(found):
        assert_cells(row, cells, lambda image: image)


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtrain._packer.export.parquet._GROUP_BYTES", 1)
    make_dataset(tmp_path / "made")
    export(tmp_path / "made", tmp_path / "out", to="parquet")
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pyarrow.parquet.ParquetFile(file).num_row_groups == 6


@pytest.mark.complete
@pytest.mark.parametrize("to", ["folder", "webdataset", "parquet"])
def test_the_number_of_workers_changes_no_byte(listing: Path, tmp_path: Path, to: str) -> None:
    pack(listing, tmp_path / "packed", PackOptions(columns=COLUMNS))
    for workers in (1, 3):
        export(tmp_path / "packed", tmp_path / str(workers), to=to, shard_size=9000, num_workers=workers)
    assert tree(tmp_path / "1") == tree(tmp_path / "3")


def rows_of_parquet(out: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(out.glob("*.parquet")):
        yield from pyarrow.parquet.read_table(file).to_pylist()


def test_chosen_rows_subsets_and_concatenations(listing: Path, tmp_path: Path) -> None:
    pack(listing, tmp_path / "packed", PackOptions(columns=COLUMNS))
    make_dataset(tmp_path / "other")
    dataset = open_dataset(tmp_path / "packed")
    export(dataset.subset([5, 1, 3]), tmp_path / "one", to="parquet", rows=[2, 0, -2])
    assert [json.loads(row["meta"])["id"] for row in rows_of_parquet(tmp_path / "one")] == [3, 5, 1]
    export(concat([dataset, dataset.subset([6])]), tmp_path / "two", to="parquet", rows=[7, 0])
    assert [json.loads(row["meta"])["id"] for row in rows_of_parquet(tmp_path / "two")] == [6, 0]
    export(tmp_path / "packed", tmp_path / "three", to="parquet", rows=np.arange(7) % 3 == 1)
    assert [json.loads(row["meta"])["id"] for row in rows_of_parquet(tmp_path / "three")] == [1, 4]


def test_a_changed_dataset_is_exported_as_its_newest_version(
    listing: Path, tmp_path: Path, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(listing, tmp_path / "packed", PackOptions(columns=COLUMNS))
    more = field_set(tmp_path / "more", 9, bad=False)
    append(tmp_path / "packed", more)
    drop_rows(tmp_path / "packed", [1, 2, 8])
    cases: list[tuple[Any, str, Path | None]] = [
        (tmp_path / "packed", "one", None),
        (open_dataset(tmp_path / "packed"), "two", None),
        (tmp_path / "packed", "three", memory_path),
        (f"{BUCKET}/packed", "four", memory_path),
    ]
    installed(tmp_path / "store", monkeypatch).path(BUCKET).mkdir(parents=True)
    (tmp_path / "store" / "bucket" / "packed").symlink_to(tmp_path / "packed")
    for dataset, out, stage in cases:
        export(dataset, tmp_path / out, to="parquet", stage=stage)
        rows = [json.loads(row["meta"])["id"] for row in rows_of_parquet(tmp_path / out)]
        assert rows == [0, 3, 4, 5, 6, 0, *range(2, 9)]
