"""Laws of what Hugging Face's `datasets` writes: packing gives the images, labels and texts that went in."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.parquet import COUNT, NAMES, images, written
from helpers.support import packed, require_module, soon

from packtrain import Columns, FieldColumn, PackOptions, StoreOptions, append, export, open_dataset, pack
from packtrain._core.manifest import Manifest
from packtrain.errors import ListError, PackError, UnreadableFile, UsageError
from packtrain.reports import PackProgress

VERBATIM = StoreOptions("verbatim")
CAPTION = FieldColumn("caption", "text", "kaption", by_path=False)


def loaded(source: Path, tmp_path: Path) -> Any:
    """The rows that the library makes of a folder of Parquet files."""
    require_module("datasets")
    import datasets

    files = [str(path) for path in sorted(source.glob("*"))]
    return datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))


def stored(out: Path) -> list[tuple[bytes, int]]:
    dataset = open_dataset(out)
    return [(bytes(dataset.record(row)), int(dataset.label(row))) for row in range(len(dataset))]


def reject(out: Path) -> dict[str, Any]:
    """The only one."""
    (found,) = map(json.loads, (out / "rejects.jsonl").read_text().splitlines())
    return dict(found)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_files_with_images_inside_become_samples_of_all_columns(tmp_path: Path, num_workers: int) -> None:
    source = written(tmp_path / "hub", files=3)
    pack(source, tmp_path / "out", PackOptions(store=VERBATIM), num_workers=num_workers)
    assert stored(tmp_path / "out") == [(data, row % 3) for row, data in enumerate(images())]
    dataset = open_dataset(tmp_path / "out", fields=("caption", "boxes", "info"))
    assert dataset.classes == NAMES
    for row in range(COUNT):
        assert (dataset[row].caption, dataset[row].boxes.tolist(), dataset[row].info) == (
            f"n° {row}",
            [[row, 1.5]],
            {"id": row},
        )


def test_columns_of_any_type_and_name_become_fields(tmp_path: Path) -> None:
    """Parquet calls what is in a struct by a dot, too; and names that no field may have are mended."""
    require_module("pyarrow")
    import pyarrow as pa

    rows = range(COUNT)
    texts, structs = [f"n° {row}" for row in rows], [{"b": row} for row in rows]
    ids, vectors = [list(range(row)) for row in rows], [[row / 7, float("nan")] for row in rows]
    boxes = [[[row, each] for each in range(row % 3)] for row in rows]
    some: list[Any] = [None if row % 4 == 1 else f"n° {row}" for row in rows]
    columns: dict[str, tuple[str, Any, list[Any]]] = {
        "ids": ("ids", pa.array(ids, pa.list_(pa.int16())), [np.array(each, "i2") for each in ids]),
        "boxes": (
            "boxes",
            pa.array(boxes, pa.list_(pa.list_(pa.float32()))),
            [np.array(each, "f4").reshape(-1, 2) for each in boxes],
        ),
        "vector": ("vector", pa.array(vectors, pa.list_(pa.float32())), [np.array(each, "f4") for each in vectors]),
        "age": ("age", pa.array(rows, pa.uint8()), [np.array(row, "u1") for row in rows]),
        "Alt-Text": ("alt_text", pa.array(texts).dictionary_encode(), texts),
        "caption": ("caption", some, some),
        "class": ("class_text", texts, texts),
        "1x": ("text_1x", texts, texts),
        "ROW": ("row_array", [[row] for row in rows], [np.array([row]) for row in rows]),
        **{name: (name.replace(".", "_"), structs, structs) for name in ("a", "a.b.c", "picture.bytes")},
        **{name: (name.replace(".", "_"), texts, texts) for name in ("a.b", "picture.c")},
    }
    given = {name: column for name, (_, column, _) in columns.items()}
    source, warnings = written(tmp_path / "hub", taken=pa.array([0] * COUNT, pa.timestamp("us")), **given), list[str]()
    pack(source, tmp_path / "out", PackOptions(store=VERBATIM), on_warning=warnings.append)
    assert len(warnings) == 1 and "'taken' (timestamp[us])" in warnings[0]
    dataset = open_dataset(tmp_path / "out", fields=tuple(field for field, _, _ in columns.values()))
    for row in rows:
        for field, _, values in columns.values():
            found = getattr(dataset[row], field)
            np.testing.assert_array_equal(found, values[row], strict=isinstance(found, np.ndarray))
    assert [field.name for field in Manifest.load(tmp_path / "out").fields if field.optional] == ["caption"]


def test_what_is_exported_is_packed_again(tmp_path: Path) -> None:
    pack(written(tmp_path / "hub"), tmp_path / "out", PackOptions(store=VERBATIM))
    export(tmp_path / "out", tmp_path / "again", to="parquet")
    pack(tmp_path / "again", tmp_path / "second", PackOptions(store=VERBATIM))
    assert stored(tmp_path / "second") == stored(tmp_path / "out")
    assert open_dataset(tmp_path / "second").classes == NAMES


def test_the_library_reads_the_same(tmp_path: Path) -> None:
    """Its images are stored as the files that they are, and its own object stays as it was."""
    names = ("tench", "ray", "pike")
    source = written(tmp_path / "hub", label=[names[row % 3] for row in range(COUNT)])
    dataset = loaded(source, tmp_path)
    features = dataset.features
    for number, given in enumerate((source, dataset)):
        out, texts = tmp_path / f"out{number}", tmp_path / f"texts{number}"
        pack(given, out, PackOptions(store=VERBATIM, seed=None))
        assert stored(out) == [(data, row % 3) for row, data in enumerate(images())]
        assert open_dataset(out).classes == NAMES
        # Texts are names of classes, in sorted order.
        pack(given, texts, PackOptions(store=VERBATIM, columns=Columns("picture", "label"), seed=None))
        assert open_dataset(texts).classes == ("pike", "ray", "tench")
        assert stored(texts) == [(data, (2, 1, 0)[row % 3]) for row, data in enumerate(images())]
        # Where names are given, labels go by these.
        classes = ("Zoë", "pike", "tench", "goldfish")
        pack(given, tmp_path / f"given{number}", PackOptions(store=VERBATIM, classes=classes))
        assert [label for _, label in stored(tmp_path / f"given{number}")] == [
            (2, 3, 0)[row % 3] for row in range(COUNT)
        ]
        with pytest.raises(PackError, match=r"class 'goldfish' is not among the 2 class names"):
            pack(given, tmp_path / f"fewer{number}", PackOptions(classes=("Zoë", "tench")))
    assert dataset.features == features


def test_a_row_without_an_image_is_refused(tmp_path: Path) -> None:
    struct = [{"bytes": None, "path": None}] + [{"bytes": each, "path": None} for each in images()[1:]]
    import pyarrow as pa

    column = pa.array(struct, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    source = written(tmp_path / "hub", picture=column)
    report = pack(source, tmp_path / "out", PackOptions(store=VERBATIM), max_rejects="1")
    assert (report.records, report.rejects) == (COUNT - 1, 1)
    assert reject(tmp_path / "out")["line"] == 0


def test_a_struct_without_bytes_names_a_file(tmp_path: Path) -> None:
    import pyarrow as pa

    column = [{"bytes": None, "path": f"{row}.img"} for row in range(COUNT)]
    source = written(
        tmp_path / "hub", picture=pa.array(column, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    )
    for row, data in enumerate(images()):
        (source / f"{row}.img").write_bytes(data)
    (source / "7.img").unlink()
    pack(source, tmp_path / "out", PackOptions(store=VERBATIM), max_rejects="1")
    assert [data for data, _ in stored(tmp_path / "out")] == images()[:7] + images()[8:]
    found = reject(tmp_path / "out")
    assert found == {
        "line": 7,
        "path": "part-1.parquet:1",
        "reason": "column 'picture': 7.img: No such file or directory",
    }


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside.img", "inside/../../outside.img", "link.img", "a\0b"])
def test_a_struct_names_no_file_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    """Whoever wrote the Parquet file may not choose a file of the machine, so that it ends in the dataset."""
    import pyarrow as pa

    column: list[dict[str, Any]] = [{"bytes": each, "path": None} for each in images()]
    column[4] = {"bytes": None, "path": name}
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    source = written(tmp_path / "hub", picture=pa.array(column, struct))
    (tmp_path / "outside.img").write_bytes(images()[4])
    (source / "link.img").symlink_to(tmp_path / "outside.img")
    report = pack(source, tmp_path / "out", PackOptions(store=VERBATIM), max_rejects="1")
    assert report.rejects == 1
    found = reject(tmp_path / "out")
    assert found["line"] == 4
    assert ("null" if "\0" in name else "out of the folder of the Parquet file") in found["reason"]


def as_bytes(folder: Path, column: str, feature: str | None) -> Path:
    """A Parquet file whose images are plain bytes, as `Image` of `datasets` or as nothing that is described."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({column: images(), "label": [row % 3 for row in range(COUNT)]})
    if feature is not None:
        about = {"info": {"features": {column: {"_type": feature}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    folder.mkdir()
    parquet.write_table(table, folder / "train.parquet", row_group_size=4)
    return folder


@pytest.mark.parametrize(("column", "feature", "asked"), [("x", "Image", None), ("jpg", None, None), ("x", None, "x")])
def test_bytes_are_images_where_something_says_so(
    tmp_path: Path, column: str, feature: str | None, asked: str | None
) -> None:
    source = as_bytes(tmp_path / "hub", column, feature)
    columns = None if asked is None else Columns(asked, "label")
    pack(source, tmp_path / "out", PackOptions(store=VERBATIM, columns=columns))
    assert stored(tmp_path / "out") == [(data, row % 3) for row, data in enumerate(images())]


def test_files_are_found_below_a_folder_by_a_pattern_and_by_a_list(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / ".cache").mkdir()
    source = written(tmp_path / "hub" / "default")
    shutil.copy(source / "part-0.parquet", tmp_path / "hub" / ".cache" / "part-9.parquet")
    every = list(range(COUNT))
    turned = [*every[6:], *every[:6]]
    paths = [source / "part-1.parquet", str(source / "part-0.parquet")]
    cases: list[tuple[Any, list[int]]] = [
        (tmp_path / "hub", every),
        (tmp_path / "hub" / "*" / "*.parquet", every),
        (paths, turned),
    ]
    for number, (given, rows) in enumerate(cases):
        pack(given, tmp_path / f"out{number}", PackOptions(store=VERBATIM))
        assert stored(tmp_path / f"out{number}") == [(images()[row], row % 3) for row in rows]
    shutil.copytree(source, tmp_path / "hub" / "other")
    with pytest.raises(UsageError, match=r"2 folders have Parquet files: .*default, .*other\. Pack each"):
        pack(tmp_path / "hub", tmp_path / "none")


def test_a_row_without_a_label_says_so(tmp_path: Path) -> None:
    fish = [-1 if row == 3 else row % 3 for row in range(COUNT)]
    pack(written(tmp_path / "hub", fish=fish), tmp_path / "out", PackOptions(store=VERBATIM), max_rejects="1")
    found = reject(tmp_path / "out")
    assert found["line"] == 3 and found["reason"].startswith("column 'fish' is -1, by which `datasets` says")


def test_what_is_appended_goes_by_the_names_of_classes(tmp_path: Path) -> None:
    pack(written(tmp_path / "hub"), tmp_path / "out")
    other = ("goldfish", "Zoë", "tench")
    append(tmp_path / "out", written(tmp_path / "other", names=other))
    dataset = open_dataset(tmp_path / "out")
    assert [NAMES[int(dataset.label(row))] for row in range(2 * COUNT)] == [
        names[row % 3] for names in (NAMES, other) for row in range(COUNT)
    ]


def test_pieces_of_one_split_are_one_dataset(tmp_path: Path) -> None:
    source = written(tmp_path / "hub")
    for number in range(2):
        (source / f"part-{number}.parquet").rename(source / f"train-0000{number}-of-00002.parquet")
    pack(source, tmp_path / "out", PackOptions(store=VERBATIM))
    assert [data for data, _ in stored(tmp_path / "out")] == images()
    pack(source / "train-00000*.parquet", tmp_path / "some", PackOptions(store=VERBATIM))
    assert [data for data, _ in stored(tmp_path / "some")] == images()[:6]


def test_what_is_no_dataset_is_refused_with_the_reason(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def beside(**other: Any) -> Path:
        """A folder with a sound file, and one of other columns or classes."""
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        source = written(folder, files=1)
        shutil.copy(written(folder / "other", files=1, **other) / "part-0.parquet", source / "part-1.parquet")
        shutil.rmtree(folder / "other")
        return source

    hub, cut, fifo, split = written(tmp_path / "hub"), beside(), beside(), beside()
    os.truncate(cut / "part-1.parquet", 2000)
    os.mkfifo(fifo / "part-2.parquet")
    for number, name in enumerate(("train-00000-of-00001", "test-00000-of-00001")):
        (split / f"part-{number}.parquet").rename(split / f"{name}.parquet")
    parquet.write_table(pa.Table.from_arrays([pa.array(images())] * 2, names=["jpg", "jpg"]), tmp_path / "2.parquet")
    ray = written(tmp_path / "ray", names=("ray", "ray", "pike"))
    plain = as_bytes(tmp_path / "plain", "x", None) / "train.parquet"
    numbers, none = list(range(COUNT)), r"part-0\.parquet has no column '(none|fisch|kaption)', but picture, fish"
    refused: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (cut, {}, ListError, r"part-1\.parquet"),
        (beside(extra=numbers), {}, ListError, r"part-1\.parquet has other columns"),
        (beside(caption=numbers), {}, ListError, r"part-1\.parquet has other columns than .*: 'caption'"),
        (
            beside(names=NAMES[::-1]),
            {},
            ListError,
            "has other class names than .* in column 'fish'",
        ),
        (split, {}, UsageError, r"several splits: test, train\. .*\*\.parquet'"),
        (plain, {}, UsageError, "say which columns of .* --image x --label label"),
        (written(tmp_path / "unlabelled", fish=[-1] * COUNT), {}, ListError, "--image picture"),
        (hub, {"seed": 7}, UsageError, r"`seed` 7: rows of Parquet files .* keep their order"),
        (fifo, {}, OSError, "it is a FIFO"),
        (tmp_path / "2.parquet", {}, ListError, r"2\.parquet has more than one column 'jpg': give each a name"),
        (ray, {}, UsageError, "2 classes are called 'ray': give each a name of its own in `classes`"),
        (hub, {"columns": Columns("none")}, UsageError, none),
        (hub, {"columns": Columns("picture", "fisch")}, UsageError, none),
        (hub, {"columns": Columns("picture", None, (CAPTION,))}, UsageError, none),
    ]
    for number, (source, options, error, why) in enumerate(refused):
        with soon(), pytest.raises(error, match=why):
            pack(source, tmp_path / f"out{number}", PackOptions(**options))


def test_images_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding out what samples hold and how large they are reads no image."""
    require_module("pyarrow")
    from pyarrow import parquet

    from packtrain._packer.parquet_samples import ParquetSamples, named_files

    read: list[int] = []
    whole = parquet.ParquetFile.iter_batches

    def counted(file: Any, *args: Any, row_groups: list[int], columns: list[str], **options: Any) -> Any:
        if "picture" in columns:
            read.extend(row_groups)
        return whole(file, *args, row_groups=row_groups, columns=columns, **options)

    source = written(tmp_path / "hub", files=1)
    groups = parquet.ParquetFile(source / "part-0.parquet").num_row_groups
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    assert len(ParquetSamples(named_files([source / "part-0.parquet"]))) == COUNT
    pack(source, tmp_path / "out", PackOptions(store=VERBATIM))
    assert (groups, read) == (4, [0, 1, 2, 3])


@pytest.mark.parametrize("about", ["{", "[1]", '{"info": {"features": [1]}}', "[" * 100_000, f"[{'9' * 5000}]"])
def test_a_description_that_nobody_can_read_describes_nothing(tmp_path: Path, about: str) -> None:
    require_module("pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"jpg": images(), "label": [row % 3 for row in range(COUNT)]})
    parquet.write_table(table.replace_schema_metadata({"huggingface": about}), tmp_path / "train.parquet")
    pack(tmp_path / "train.parquet", tmp_path / "out", PackOptions(store=VERBATIM))
    assert stored(tmp_path / "out") == [(data, row % 3) for row, data in enumerate(images())]


@pytest.mark.parametrize("kind", ["bytes", "array"])
def test_a_text_names_no_file_outside_of_its_folder_either(tmp_path: Path, kind: str) -> None:
    """A column of values may turn out to hold paths."""
    np.save(tmp_path / "outside.npy", np.zeros(3))
    source = written(tmp_path / "hub", secret=[str(tmp_path / "outside.npy")] * COUNT)
    field = FieldColumn("secret", kind, "secret", by_path=kind == "bytes")
    with pytest.raises(ListError, match="it leads out of the folder of the Parquet file"):
        pack(source, tmp_path / "out", PackOptions(columns=Columns("picture", "fish", (field,))))
    for row in range(COUNT):
        (source / f"{row}.bin").write_bytes(bytes([row]))
    inside = FieldColumn("name", "bytes", "name", by_path=True)
    names = [f"{row}.bin" for row in range(COUNT)]
    shutil.move(written(tmp_path / "other", 1, name=names) / "part-0.parquet", source / "of-names.parquet")
    pack([source / "of-names.parquet"], tmp_path / "out", PackOptions(columns=Columns("picture", "fish", (inside,))))
    dataset = open_dataset(tmp_path / "out", fields=("name",))
    assert [bytes(dataset[row].name) for row in range(COUNT)] == [bytes([row]) for row in range(COUNT)]


def test_a_text_that_is_not_utf_8_makes_its_row_a_reject(tmp_path: Path) -> None:
    import pyarrow as pa

    words = [b"ray", b"\xff", *[b"pike"] * (COUNT - 2)]
    texts: Any = pa.Array.from_buffers(pa.string(), COUNT, pa.array(words, pa.binary()).buffers())
    source = written(tmp_path / "hub", words=texts)
    for number, columns in enumerate((None, Columns("picture", "words"))):
        options = PackOptions(store=VERBATIM, columns=columns)
        report = pack(source, tmp_path / f"out{number}", options, max_rejects=1)
        assert (report.records, report.rejects) == (COUNT - 1, 1)
        found = reject(tmp_path / f"out{number}")
        assert found["line"] == 1 and found["reason"].startswith("column 'words': 'utf-8' codec can't decode")
    assert open_dataset(tmp_path / "out1").classes == ("pike", "ray")


def test_a_footer_that_contradicts_the_file_is_an_error_and_no_reject(tmp_path: Path) -> None:
    """Names that are not UTF-8; and groups with more rows than there are."""
    from pyarrow import parquet

    path = written(tmp_path / "hub", files=1, described=False) / "part-0.parquet"
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:]
    path.write_bytes(data[:start] + footer.replace(b"caption", b"\xff" * 7))
    with pytest.raises(ListError, match=r"part-0\.parquet cannot be read as a Parquet file"):
        pack(path, tmp_path / "out")
    for found in re.finditer(b"\x16\x06", footer):
        # A number that is three; one of them is that of the rows of the first group.
        path.write_bytes(data[:start] + footer[: found.start()] + b"\x16\x08" + footer[found.end() :])
        if parquet.ParquetFile(path).metadata.row_group(0).num_rows == 4:
            break
    with pytest.raises(
        UnreadableFile, match=r"part-0\.parquet cannot be read: group 0 has 3 rows, and its description says 4"
    ):
        pack(path, tmp_path / "out", PackOptions(store=VERBATIM), max_rejects="100%")


def test_a_file_that_changes_meanwhile_is_an_error_and_no_mixture(tmp_path: Path) -> None:
    source, other = written(tmp_path / "hub", files=1), written(tmp_path / "other", files=1, names=("a", "b", "c"))
    path = source / "part-0.parquet"
    done: list[PackProgress] = []

    def change(progress: PackProgress) -> None:
        if not done:
            shutil.copy(other / "part-0.parquet", path)
        done.append(progress)

    with pytest.raises(PackError, match=r"part-0\.parquet has changed since packing began"):
        pack(path, tmp_path / "out", PackOptions(store=VERBATIM, shard_size=1), on_progress=change)


def test_a_list_of_paths_in_parquet_stays_a_list(tmp_path: Path) -> None:
    require_module("pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    (tmp_path / "a.jpg").write_bytes(images()[0])
    parquet.write_table(pa.table({"image": ["a.jpg"], "label": [2]}), tmp_path / "list.parquet")
    out = packed(tmp_path / "list.parquet", tmp_path / "out", "tar", columns=Columns("image", "label"))
    assert stored(out) == [(images()[0], 2)]


def test_damage_is_an_error_and_no_reject(tmp_path: Path) -> None:
    source = written(tmp_path / "hub")
    path = source / "part-1.parquet"
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(PackError, match=r"part-1\.parquet cannot be read: "):
        pack(source, tmp_path / "out", PackOptions(store=VERBATIM), max_rejects="100%")
