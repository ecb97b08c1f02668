"""Laws of packing samples of many fields: each record is what its source says, or the sample is refused as a whole."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers.fields import BAD, COLUMNS, NO_JSON, WITHOUT_IMAGE, FieldSource, field_set, field_sources
from helpers.support import encoded, packed, picture, tree

from packtrain import PackOptions, open_dataset, pack
from packtrain._core.document import dump_document, load_document
from packtrain._core.manifest import Manifest
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._formats import container
from packtrain._packer.options import Columns, FieldColumn
from packtrain._packer.plan import Plan
from packtrain.errors import CorruptFile, ListError, OutputConflict, ShardFailed, UnsupportedVersion

COUNT = 9
SHARD_BYTES = 16_000
NAMES = ["image", *(field.name for field in COLUMNS.fields)]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine samples, one of which has a broken mask."""
    return field_set(tmp_path_factory.mktemp("fields"), COUNT)


@pytest.fixture(scope="module")
def datasets(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The list, packed in every format."""
    folder = tmp_path_factory.mktemp("datasets")
    return {format: packed_fields(listing, folder / format, format) for format in ("tar", "hdf5", "lmdb")}


def packed_fields(listing: Path, out: Path, format: str, columns: Columns = COLUMNS, **options: Any) -> Path:
    options = {"shard_size": SHARD_BYTES, **options}
    return packed(listing, out, format, max_rejects="1", columns=columns, **options)


def column(dataset: Path, field: str, name: str) -> list[int]:
    prefix = "" if field == "image" else f"field.{field}."
    values: list[int] = np.load(dataset / "index" / f"{prefix}{name}.npy").tolist()
    return values


def records(dataset: Path, field: str) -> list[bytes | None]:
    """The bytes of a field, by row, found with the index alone."""
    shards = [
        (dataset / shard["name"]).read_bytes()
        for shard in json.loads((dataset / "manifest.json").read_text())["shards"]
    ]
    found: list[bytes | None] = []
    for shard, offset, length, checksum in zip(
        np.load(dataset / "index" / "shard.npy").tolist(),
        *(column(dataset, field, name) for name in ("offset", "length", "crc32c")),
        strict=True,
    ):
        if length < 0:
            assert (offset, length, checksum) == (0, -1, 0)
            found.append(None)
        else:
            record = shards[shard][offset : offset + length]
            assert crc32c(record) == checksum
            found.append(record)
    return found


def meant(record: bytes | None, value: Any, *, bare: bool) -> Any:
    """A record in the form of its source: bytes, or an array."""
    if record is None or not isinstance(value, np.ndarray):
        return record
    return np.frombuffer(record, value.dtype).reshape(value.shape) if bare else np.load(io.BytesIO(record))


def sound(listing: Path) -> list[FieldSource]:
    return [source for number, source in enumerate(field_sources(listing)) if number != BAD]


@pytest.mark.parametrize("name", NAMES)
def test_every_record_is_what_its_source_says(
    datasets: dict[str, Path], listing: Path, format_name: str, name: str
) -> None:
    found = records(datasets[format_name], name)
    assert len(found) == COUNT - 1
    for record, source in zip(found, sound(listing), strict=True):
        value = source.values[name]
        if value is None:
            assert record is None
        else:
            np.testing.assert_array_equal(meant(record, value, bare=format_name == "hdf5"), value, strict=True)


def test_rows_have_the_line_label_and_sizes_of_their_source(
    datasets: dict[str, Path], listing: Path, format_name: str
) -> None:
    dataset = datasets[format_name]
    assert column(dataset, "image", "line") == [source.line for source in sound(listing)]
    assert column(dataset, "image", "label") == [source.label for source in sound(listing)]
    heights, widths = zip(*(source.values["depth"].shape for source in sound(listing)), strict=True)
    for name in ("image", "seg", "depth"):
        assert column(dataset, name, "width") == list(widths)
        assert column(dataset, name, "height") == list(heights)
    missing = [source.values["side"] is None for source in sound(listing)]
    assert column(dataset, "side", "width") == [0 if gone else 16 for gone in missing]
    assert column(dataset, "side", "orientation") == [0 if gone else 1 for gone in missing]


def test_the_manifest_sums_up_each_field(datasets: dict[str, Path], format_name: str) -> None:
    dataset = datasets[format_name]
    manifest = Manifest.load(dataset)
    assert manifest.version == 2
    assert list(manifest.schema.names) == NAMES
    for field in manifest.fields:
        lengths = [len(record) for record in records(dataset, field.name) if record is not None]
        assert (field.bytes, field.maximum) == (sum(lengths), max(lengths))
        assert field.missing == COUNT - 1 - len(lengths)


def test_a_sample_with_one_refused_field_is_nowhere(datasets: dict[str, Path], listing: Path, format_name: str) -> None:
    dataset, line = datasets[format_name], field_sources(listing)[BAD].line
    (reject,) = map(json.loads, (dataset / "rejects.jsonl").read_text().splitlines())
    assert (reject["line"], reject["path"]) == (line, f"{BAD}.jpg")
    assert reject["reason"].startswith("mask seg: it is no PNG file")
    manifest = Manifest.load(dataset)
    for number in range(len(manifest.shards)):
        walked = container(format_name).walk(manifest.shard_path(dataset, number), manifest.schema)
        assert line not in {sample.line for sample in walked}


def test_a_lost_shard_is_packed_again_with_the_same_bytes(
    datasets: dict[str, Path], listing: Path, tmp_path: Path, format_name: str
) -> None:
    out = packed_fields(listing, tmp_path / "out", format_name)
    lost = next(path for path in sorted(out.glob("train-*1.*")) if path.suffix != ".idx")
    lost.unlink()
    assert tree(packed_fields(listing, out, format_name)) == tree(datasets[format_name])


def test_samples_may_have_no_image(listing: Path, tmp_path: Path, format_name: str) -> None:
    out = packed_fields(listing, tmp_path / "out", format_name, WITHOUT_IMAGE, shard_size=600)
    manifest = Manifest.load(out)
    assert manifest.schema.image is None
    assert manifest.labels == LabelSpec("none")
    assert len(manifest.shards) > 1
    assert not (out / "index" / "offset.npy").exists()
    for field in WITHOUT_IMAGE.fields:
        for record, source in zip(records(out, field.name), field_sources(listing), strict=True):
            value = source.values[field.name]
            found = meant(record, value, bare=format_name == "hdf5")
            assert (found is None) == (value is None)
            if value is not None:
                np.testing.assert_array_equal(found, value)


def test_what_readers_could_not_read_is_a_reject(tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    good = encoded(picture(1, mode="L"), "PNG")
    # Two headers, of which Pillow believes the second.
    bad = good[:33] + encoded(picture(1), "PNG")[8:33] + good[33:]
    (tmp_path / "good.png").write_bytes(good)
    (tmp_path / "bad.png").write_bytes(bad)
    cells = [(nested(256), "good.png"), (nested(257), "good.png"), (nested(900), "good.png"), ("1", "bad.png")]
    listing = table(tmp_path, ["json", "mask"], [list(cell) for cell in cells])
    columns = Columns(
        fields=(FieldColumn("a", "json", "json", by_path=False), FieldColumn("m", "mask", "mask", by_path=True))
    )
    report = pack(listing, tmp_path / "out", PackOptions(columns=columns), max_rejects=3)
    assert (report.records, report.rejects) == (1, 3)
    reasons = (tmp_path / "out" / "rejects.jsonl").read_text()
    assert reasons.count("column 'json': ") == reasons.count("more than 256 deep") == 2
    assert "mask m: " in reasons
    assert json.dumps(open_dataset(tmp_path / "out", fields=["a"])[0].a) == nested(256)


def test_masks_follow_images_that_are_resized(listing: Path, tmp_path: Path) -> None:
    out = packed_fields(listing, tmp_path / "out", "tar", store=StoreOptions("raw", resize="12x10"))
    for name in ("image", "seg", "depth"):
        assert set(column(out, name, "width")) == {12}
        assert set(column(out, name, "height")) == {10}
    assert re.search(r"[Pp]illow.*, zlib", str(Plan.load(out).encoder))


class TestPlan:
    def test_it_loads_as_it_was_dumped(self, datasets: dict[str, Path]) -> None:
        data = (datasets["tar"] / "plan.json").read_bytes()
        plan = Plan.load(datasets["tar"])
        assert plan.dump() == data
        assert load_document(datasets["tar"] / "plan.json", newest=2)["version"] == 2
        assert [(column.field, column.column) for column in plan.columns or ()] == [
            ("image", "path"),
            ("label", "class"),
            *((field.name, field.column) for field in COLUMNS.fields),
        ]

    def test_keys_of_a_later_packtrain_are_passed_over_or_refused(
        self, datasets: dict[str, Path], tmp_path: Path
    ) -> None:
        body = load_document(datasets["tar"] / "plan.json", newest=2)
        body["x-colour"] = body["fields"][0]["x-size"] = 3
        (tmp_path / "plan.json").write_bytes(dump_document(body))
        assert Plan.load(tmp_path) == Plan.load(datasets["tar"])
        (tmp_path / "plan.json").write_bytes(dump_document({**body, "colour": 3}))
        with pytest.raises(UnsupportedVersion, match="colour"):
            Plan.load(tmp_path)

    def test_fields_that_contradict_each_other_are_damage(self, datasets: dict[str, Path], tmp_path: Path) -> None:
        body = load_document(datasets["tar"] / "plan.json", newest=2)
        body["fields"].append(body["fields"][1])
        (tmp_path / "plan.json").write_bytes(dump_document(body))
        with pytest.raises(CorruptFile, match=r"plan\.json is damaged: two fields are called side"):
            Plan.load(tmp_path)

    def test_other_columns_are_another_plan(self, datasets: dict[str, Path], listing: Path) -> None:
        swapped = replace(COLUMNS, fields=(replace(COLUMNS.fields[0], column="path"), *COLUMNS.fields[1:]))
        with pytest.raises(OutputConflict, match=r"column of side: side .*there, path .*asked for"):
            packed_fields(listing, datasets["tar"], "tar", swapped)
        with pytest.raises(OutputConflict, match="boxes kind: array there, None asked for"):
            packed_fields(listing, datasets["tar"], "tar", replace(COLUMNS, fields=COLUMNS.fields[:5]))

    def test_what_a_sample_has_shown_is_not_looked_for_again(
        self, datasets: dict[str, Path], listing: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("packtrain._packer.planning.sampled", None)
        options = PackOptions("tar", StoreOptions("verbatim"), columns=COLUMNS, shard_size=SHARD_BYTES)
        assert pack(listing, datasets["tar"], options, max_rejects="1").complete_before

    def test_an_image_and_a_label_from_columns_are_a_dataset_of_version_1(self, listing: Path, tmp_path: Path) -> None:
        out = packed_fields(listing, tmp_path / "out", "tar", Columns("path", "class"))
        assert load_document(out / "manifest.json", newest=2)["version"] == 1
        with pytest.raises(OutputConflict, match=r"column of image: path .*there, seg .*asked for"):
            packed_fields(listing, out, "tar", Columns("seg", "class"))


Rows = list[list[Any]]


def table(folder: Path, header: list[str], rows: Rows) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder / "list.csv"


def packed_arrays(folder: Path, values: list[Any], *, by_path: bool, out: str = "out", **form: Any) -> Path:
    """A dataset of a list with a column of arrays."""
    cells = []
    for number, value in enumerate(values):
        cells.append(f"{number}.npy" if by_path else json.dumps(value))
        if by_path:
            np.save(folder / f"{number}.npy", value)
    source = table(folder, ["name", "boxes"], [["x", cell] for cell in cells])
    columns = Columns(fields=(FieldColumn("boxes", "array", "boxes", by_path=by_path, **form),))
    return packed_fields(source, folder / out, "tar", columns)


FORMS: dict[str, tuple[list[Any], bool, str, tuple[int | None, ...]]] = {
    "numbers": ([1, 2, 3], False, "<i8", ()),
    "numbers, some with a fraction": ([1, 2.5], False, "<f8", ()),
    "lists of one length": ([[1, 2], [3, 4]], False, "<i8", (2,)),
    "lists of several lengths": ([[1.0], [3, 4]], False, "<f8", (None,)),
    "boxes, one without any": ([[], [[1, 2, 3, 4]]], False, "<i8", (None, 4)),
    "files of one shape": ([np.zeros((2, 3), ">f4")] * 2, True, "<f4", (2, 3)),
    "files of several lengths": ([np.zeros((n, 3), "<u2") for n in range(4)], True, "<u2", (None, 3)),
    "files of types of which one holds the others": ([np.zeros(2, "|i1"), np.zeros(2, "<f4")], True, "<f4", (2,)),
    "flags": ([True, False], False, "|b1", ()),
}


@pytest.mark.parametrize("name", FORMS)
def test_type_and_shape_are_found_from_a_sample(tmp_path: Path, name: str) -> None:
    values, by_path, dtype, shape = FORMS[name]
    out = packed_arrays(tmp_path, values, by_path=by_path)
    (field,) = Plan.load(out).fields
    assert (field.dtype, field.shape) == (dtype, shape)
    assert Manifest.load(out).rejects == 0


CONTRADICTIONS: dict[str, tuple[list[Any], bool, str]] = {
    "dimensions": ([[1], [[1]]], False, r"shapes such as \(1,\) and \(1, 1\), but only the first size may differ"),
    "a second size": ([[[1]], [[1, 2]]], False, "only the first size may differ from row to row"),
    "types": ([np.zeros(1, "<i8"), np.zeros(1, "<f4")], True, "hold <f4, <i8, which no type holds exactly"),
    "nothing": ([[], []], False, r"no row of a sample .* --dtype boxes=float32 --shape boxes=N,4"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_sample_that_contradicts_itself_is_an_error(tmp_path: Path, name: str) -> None:
    values, by_path, message = CONTRADICTIONS[name]
    with pytest.raises(ListError, match=rf"array boxes \(column 'boxes'\): .*{message}"):
        packed_arrays(tmp_path, values, by_path=by_path)
    assert not (tmp_path / "out").exists()


def test_an_array_that_the_sample_did_not_show_is_a_reject_that_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packtrain._packer.planning._SAMPLED_ROWS", 4)
    values: list[Any] = [[[1, 2]]] * 30
    values[29] = [[1, 2], [3, 4]]
    out = packed_arrays(tmp_path, values, by_path=False)
    (reject,) = map(json.loads, (out / "rejects.jsonl").read_text().splitlines())
    assert reject["reason"] == (
        "array boxes: it is int64 [2, 2], and the field int64 [1, 2]. If all are to be so, pack into another folder "
        "with --shape boxes=N,2"
    )
    as_told = packed_arrays(tmp_path, values, by_path=False, out="as told", shape=(None, 2))
    assert Manifest.load(as_told).rejects == 0


REFUSED: dict[str, tuple[str, bytes, str]] = {
    "text": ("text", b"caf\xe9", "not UTF-8 .*at byte 3"),
    "json": ("json", b"{'a': 1}", "not JSON that can be read: "),
    **{name: ("json", content, message) for name, (content, message) in NO_JSON.items()},
    "json in UTF-16": ("json", '{"a": 1}'.encode("utf-16"), "not UTF-8"),
    "empty json": ("json", b"", "empty file"),
    "array": ("array", b"\x93NUMPY", r"\.npy header cannot be read"),
    "image": ("image", b"<html>", "not an image"),
    "mask": ("mask", encoded(picture(0), "PNG"), "its pixels are colours"),
    "mask of another size": ("mask", encoded(picture(0, 20, 20, "L"), "PNG"), "20 x 20 pixels, and its image 48 x 36"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_field_is_named(tmp_path: Path, name: str) -> None:
    kind, content, message = REFUSED[name]
    good = {"text": b"x", "json": b"{}", "image": encoded(picture(0)), "mask": encoded(picture(0, mode="L"), "PNG")}
    (tmp_path / "a.jpg").write_bytes(encoded(picture(0)))
    np.save(tmp_path / "good.npy", np.zeros(3))
    (tmp_path / "good").write_bytes(good.get(kind) or (tmp_path / "good.npy").read_bytes())
    (tmp_path / "bad").write_bytes(content)
    source = table(tmp_path, ["image", "extra"], [["a.jpg", "good"], ["a.jpg", "bad"], ["a.jpg", "good"]])
    columns = Columns("image", None, (FieldColumn("extra", kind, "extra", by_path=True),))
    out = packed_fields(source, tmp_path / "out", "tar", columns)
    (reject,) = map(json.loads, (out / "rejects.jsonl").read_text().splitlines())
    assert reject["line"] == 1
    assert reject["reason"].startswith(f"{kind} extra: ")
    assert re.search(message, reject["reason"])


def test_a_missing_file_of_any_field_is_a_reject_and_an_unreadable_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path, ["a"], [["there"], ["gone"]])
    (tmp_path / "there").write_bytes(b"")
    columns = Columns(fields=(FieldColumn("blob", "bytes", "a", by_path=True),))
    out = packed_fields(source, tmp_path / "out", "tar", columns)
    assert records(out, "blob") == [b""]
    assert "bytes blob: No such file or directory ('gone')" in (out / "rejects.jsonl").read_text()
    (tmp_path / "gone").symlink_to("/proc/self/mem")  # a regular file; reading its first byte is EIO
    with pytest.raises(ShardFailed, match=r"cannot read .*gone \(line 1\): .*The file is not at fault"):
        packed_fields(source, tmp_path / "again", "tar", columns)
