"""Datasets of foreign shards: what is in them, what is refused, and how new shards are taken in."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.corpus import exif
from helpers.damage import reindexed
from helpers.fields import NO_JSON, STORED_JSON
from helpers.jpegs import scan_bomb
from helpers.shards import Indexed, by_key, jpeg, npy, write_shards, write_tar
from helpers.support import encoded, picture, tree
from PIL import Image

from packtrain import open_dataset, pack, verify
from packtrain._core.errors import CorruptFile, DatasetError, OutputConflict, PackError, TooManyRejects, UsageError
from packtrain._core.files import checksum_file
from packtrain._core.manifest import Manifest
from packtrain._core.options import LabelSpec
from packtrain._packer.foreign import sources
from packtrain._packer.foreign.indexer import index_shards
from packtrain._packer.foreign.shard_files import SlidingWindow
from packtrain._packer.foreign.sources import expand_braces
from packtrain._packer.publishing import building
from packtrain._storage.location import Location, object_store
from packtrain._storage.sequential import LocalFile

PNG = encoded(picture(1, 24, 16), "PNG")
MASK = encoded(picture(1, 24, 16, "L"), "PNG")


def indexed(tmp_path: Path, *samples: list[tuple[str, bytes]], **options: Any) -> Indexed:
    """The dataset of one shard that consists of these members."""
    tmp_path.mkdir(exist_ok=True)
    shard = write_tar(tmp_path / "a.tar", [member for sample in samples for member in sample])
    return Indexed(index_shards(shard, tmp_path / "out", **options).dataset)


def find_shards(given: Sequence[str | Path]) -> list[Location]:
    """The shards, of which none is in an object store."""
    return sources.find_shards(given, object_store())


def kinds(dataset: Indexed) -> dict[str, str]:
    return {field.name: field.kind for field in dataset.manifest.fields}


def test_every_sample_is_a_row_in_the_order_of_the_shards(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 3)
    dataset = Indexed(index_shards(tmp_path / "shards", tmp_path / "out").dataset)
    assert dataset.samples() == [
        {
            "path": f"train-{number // 4:06d}.tar/{number:06d}",
            "label": number,
            "image": jpeg(number, 20 + number, 30),
            "text": f"caption {number}".encode(),
        }
        for number in range(12)
    ]
    assert dataset.index["width"].tolist() == list(range(20, 32))
    assert dataset.index["by_place"].tolist() == dataset.index["line"].tolist() == list(range(12))
    for number, shard in enumerate(shards):
        info = dataset.manifest.shards[number]
        assert info.link is not None
        stat = shard.stat()
        found = (info.bytes, info.crc32c, info.link.modified_ns)
        assert found == (stat.st_size, checksum_file(shard), stat.st_mtime_ns)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "shards"]


def test_fields_are_named_after_extensions(tmp_path: Path) -> None:
    first = [("a/1.jpg", jpeg()), ("a/1.seg.png", PNG), ("a/1.class.txt", b"x"), ("a/1.3d", b"y"), ("a/1.json", b"{}")]
    second = [("a/2.PNG", PNG), ("a/2.emb.npy", npy(np.ones(3, "f4")))]
    dataset = indexed(tmp_path, first, second)
    assert kinds(dataset) == {
        "image": "image",
        "seg": "image",
        "class_": "text",
        "f_3d": "bytes",
        "json": "json",
        "emb": "array",
    }
    assert [field.name for field in dataset.manifest.fields if not field.optional] == ["image"]
    assert [field.missing for field in dataset.manifest.fields] == [0, 1, 1, 1, 1, 1]
    assert dataset.manifest.labels == LabelSpec("none")
    assert by_key(dataset.samples())["a/2"]["image"] == PNG


def test_names_and_kinds_can_be_given(tmp_path: Path) -> None:
    members = [
        ("1.left.jpg", jpeg(1)),
        ("1.right.jpg", jpeg(2)),
        ("1.seg.png", MASK),
        ("1.txt", b"\xff"),
        ("1.id", b"7"),
    ]
    dataset = indexed(tmp_path, members, fields=["image=left.jpg", "caption=txt:bytes"], masks=["seg"], label="id")
    assert kinds(dataset) == {"image": "image", "right": "image", "seg": "mask", "caption": "bytes"}
    assert dataset.samples()[0]["label"] == 7
    assert dataset.manifest.schema["seg"].dtype == "|u1"


@pytest.mark.parametrize(
    ("arrays", "dtype", "shape"),
    [
        ([np.ones((2, 3), "<f4")] * 2, "<f4", (2, 3)),
        ([np.ones((2, 3), "<f4"), np.ones((0, 3), "<f4"), np.ones((5, 3), "<f4")], "<f4", (None, 3)),
        ([np.float64(1), np.float64(2)], "<f8", ()),
        ([np.ones((2, 3)), np.ones((2, 4))], None, None),
        ([np.ones((2, 3)), np.ones((2, 3), "f4")], None, None),
        ([np.ones((2, 3), ">f4")] * 2, None, None),
        ([np.asfortranarray(np.ones((2, 3)))] * 2, None, None),
        ([np.array([{}], object)] * 2, None, None),
    ],
)
def test_arrays_are_a_field_of_arrays_if_they_fit_together(
    tmp_path: Path, arrays: list[Any], dtype: str | None, shape: tuple[int | None, ...] | None
) -> None:
    dataset = indexed(tmp_path, *[[(f"{number}.npy", npy(array))] for number, array in enumerate(arrays)])
    field = dataset.manifest.schema["npy"]
    assert (field.kind, field.dtype, field.shape) == ("bytes" if dtype is None else "array", dtype, shape)
    assert [sample["npy"] for sample in dataset.samples()] == [npy(array) for array in arrays]


HEADERS = {
    "a size too large": "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 0), }",
    "one dimension in the order of Fortran": "{'descr': '<f8', 'fortran_order': True, 'shape': (2,), }",
    "another order of the keys": "{'shape': (2,), 'fortran_order': False, 'descr': '<f8', }",
}


@pytest.mark.parametrize("what", HEADERS)
def test_arrays_that_readers_could_not_read_are_bytes(tmp_path: Path, what: str) -> None:
    header = HEADERS[what].ljust(117) + "\n"
    record = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    record += bytes(0 if "large" in what else 16)
    dataset = indexed(tmp_path, [("0.npy", record)], [("1.npy", record)])
    assert kinds(dataset) == {"npy": "bytes"}
    opened = open_dataset(dataset.folder, fields=["npy"])
    assert [opened[row].npy for row in range(2)] == [record] * 2


@pytest.mark.parametrize("extension", ["5 x.jpg", "a\u00a0b.jpg", "\x1b[31m.jpg"])
def test_any_extension_can_be_read_again(tmp_path: Path, extension: str) -> None:
    dataset = indexed(tmp_path, [(f"photo 1.{extension}", jpeg())], [(f"photo 2.{extension}", jpeg(1))])
    assert not verify(dataset.folder).problems
    index_shards(write_tar(tmp_path / "b.tar", [(f"photo 3.{extension}", jpeg(2))]), dataset.folder, update=True)
    assert list(Indexed(dataset.folder).samples()[2].values())[-1] == jpeg(2)


@pytest.mark.parametrize(
    ("values", "labels", "classes", "expected", "why"),
    [
        (["3", "1"], "int", None, [3, 1], ""),
        (["3", "0.5"], "float", None, [3, 0.5], ""),
        (['"dog"', '"cat"'], "int", ("cat", "dog"), [1, 0], ""),
        (["true", "false", "true"], "int", ("false", "true"), [1, 0, 1], ""),
        (["16777216", "16777217"], "int", None, [16777216, 16777217], ""),
        (["16777216", "16777217", "0.5"], "float", None, [16777216, 0.5], "label 16777217 is a whole number that"),
        (["0.5", "1e300"], "float", None, [0.5], "finite number"),
        (["0.5", '"\\ud800"'], "float", None, [0.5], "half of a surrogate pair"),
        (["0.5", "[1]"], "float", None, [0.5], "is neither a number nor a text"),
        (["1", "9223372036854775808"], "int", None, [1], "does not fit 64 bits"),
        (["0.5", "NaN"], "float", None, [0.5], "no JSON"),
    ],
)
def test_labels_out_of_json(
    tmp_path: Path, values: list[str], labels: str, classes: Any, expected: list[Any], why: str
) -> None:
    samples = [[(f"{n}.json", f'{{"a": {{"b": {value}}}}}'.encode())] for n, value in enumerate(values)]
    dataset = indexed(tmp_path, *samples, label="json:a.b", max_rejects=1)
    assert (str(dataset.manifest.labels), dataset.manifest.classes) == (labels, classes)
    assert [sample["label"] for sample in dataset.samples()] == expected
    rejects = (dataset.folder / "rejects.jsonl").read_text() if why else ""
    assert (len(rejects.splitlines()), why in rejects) == (len(values) - len(expected), True)
    assert kinds(dataset) == {"json": "json"} and not verify(dataset.folder).problems


BAD = {
    "no image": [("b.cls", b"1")],
    "no label": [("b.jpg", jpeg())],
    "a label must be a whole number": [("b.jpg", jpeg()), ("b.cls", b"one")],
    "its header cannot be read": [("b.jpg", b"<html>"), ("b.cls", b"1")],
    "a JPEG with 60 scans of 6000 x 6000 pixels": [("b.jpg", scan_bomb(6000, 6000, 60)), ("b.cls", b"1")],
    "a text must be UTF-8": [("b.jpg", jpeg()), ("b.cls", b"1"), ("b.txt", b"\xff")],
    "not JSON": [("b.jpg", jpeg()), ("b.cls", b"1"), ("b.json", b"[" * 100_000)],
    "nested more than 256 deep": [("b.jpg", jpeg()), ("b.cls", b"1"), ("b.json", b"[" * 257 + b"]" * 257)],
    "has 9 x 9 pixels, and the image 24 x 16": [
        ("b.jpg", jpeg()),
        ("b.cls", b"1"),
        ("b.seg.png", encoded(picture(1, 9, 9, "L"), "PNG")),
    ],
    "one channel": [("b.jpg", jpeg()), ("b.cls", b"1"), ("b.seg.png", PNG)],
}


def test_json_without_a_single_meaning_is_refused_and_stays_readable_if_stored(tmp_path: Path) -> None:
    sound = [("a.json", b'{"a": {"b": 1}}'), ("a.txt", b"")]
    bad = [[(f"{name}.json", content), (f"{name}.txt", content)] for name, (content, _) in NO_JSON.items()]
    dataset = indexed(tmp_path, sound, *bad, label="json:a.b", max_rejects="100%")
    rejects = list(map(json.loads, (dataset.folder / "rejects.jsonl").read_text().splitlines()))
    for name, reject in zip(NO_JSON, rejects, strict=True):
        assert reject["path"] == f"a.tar/{name}"
        assert re.match(rf"'{name}\.json', byte \d+: it is not JSON .*{NO_JSON[name][1]}", reject["reason"], re.DOTALL)
    # A dataset that says of such texts that they are JSON.
    texts = indexed(tmp_path / "texts", sound, *bad, fields=["json=json:text", "other=txt:bytes"], label="none").folder
    manifest = Manifest.load(texts)
    fields = [replace(field, kind="json") if field.name == "json" else field for field in manifest.fields]
    (texts / "manifest.json").write_bytes(replace(manifest, fields=tuple(fields)).dump())
    opened, problems = open_dataset(texts, fields=("json",)), verify(texts, decode_images=True).problems
    assert len(problems) == len(NO_JSON) - len(STORED_JSON)
    for row, (name, (content, message)) in enumerate(NO_JSON.items(), 1):
        if name in STORED_JSON:
            assert opened[row].json == json.loads(content)
        else:
            with pytest.raises(DatasetError, match=message):
                opened[row]
            assert any(re.search(message, problem.message) for problem in problems)
    assert pack(texts, tmp_path / "again", max_rejects="100%").rejects == len(NO_JSON)
    for line, (_, message) in zip(
        (tmp_path / "again" / "rejects.jsonl").read_text().splitlines(), NO_JSON.values(), strict=True
    ):
        assert re.search(f"json json: .*{message}", line)


@pytest.mark.parametrize("why", BAD)
def test_a_sample_that_cannot_be_used_is_refused_and_listed(tmp_path: Path, why: str) -> None:
    sound = [("a.jpg", jpeg()), ("a.cls", b"5"), ("a.seg.png", MASK)]
    after = [("c.jpg", jpeg(3)), ("c.cls", b"6"), ("c.seg.png", MASK)]
    dataset = indexed(tmp_path, sound, BAD[why], after, masks=["seg"], max_rejects=1)
    assert [sample["label"] for sample in dataset.samples()] == [5, 6]
    assert dataset.index["line"].tolist() == [0, 2]
    (reject,) = map(json.loads, (dataset.folder / "rejects.jsonl").read_text().splitlines())
    assert (reject["line"], reject["path"]) == (1, "a.tar/b")
    assert why in reject["reason"]
    with pytest.raises(TooManyRejects, match="1 of 3 samples refused, 0 allowed"):
        indexed(tmp_path / "again", sound, BAD[why], after, masks=["seg"], max_rejects=0)


def test_a_missing_record_has_nothing_in_the_index_but_its_length(tmp_path: Path) -> None:
    dataset = indexed(tmp_path, [("a.jpg", jpeg()), ("a.left.jpg", jpeg())], [("b.jpg", jpeg(1))])
    field = dataset.manifest.schema["left"]
    columns = dataset.index.field("left")
    missing = {name.removeprefix(field.prefix): 0 for name in field.columns()} | {"length": -1}
    assert {name: columns[name][1] for name in missing} == missing


def test_orientation_and_size_come_from_the_header(tmp_path: Path) -> None:
    files = {"jpg": jpeg(), "png": PNG, "bmp": encoded(picture(0, 24, 16), "BMP"), "gif": encoded(picture(0), "GIF")}
    files["tif"] = encoded(picture(2, 25, 17), "TIFF")
    files["jpeg"] = encoded(picture(1, 30, 20), exif=exif(6))
    dataset = indexed(tmp_path, *[[(f"{name}.{name}", data)] for name, data in files.items()])
    for row, data in enumerate(files.values()):
        with Image.open(io.BytesIO(data)) as image:
            size = (dataset.index["width"][row], dataset.index["height"][row])
            assert (*size, dataset.index["orientation"][row]) == (*image.size, image.getexif().get(0x0112, 1))


SAMPLE = [("1.jpg", jpeg()), ("1.txt", b"x")]
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([("a.jpg", b""), ("b.jpg", b""), ("a.txt", b"")], {}, PackError, "'a.txt' belongs to the sample 'a', which .* 0"),
    ([("a.jpg", b""), ("a.JPG", b"")], {}, PackError, "'a.JPG' is there twice .* at byte 0"),
    ([(f"a.{number}.jpg", b"") for number in range(65)], {}, PackError, "keys of samples must not have dots"),
    ([("a.jpg", jpeg()), ("a.png", PNG)], {}, PackError, "two members for the field 'image', at bytes 512 and"),
    (SAMPLE, {"fields": ["x=jpgg"]}, UsageError, "did you mean 'jpg'"),
    (SAMPLE, {"fields": ["Ä=jpg"]}, UsageError, "cannot be the name"),
    (SAMPLE, {"fields": ["jpg"]}, UsageError, "expected NAME=EXT"),
    (SAMPLE, {"fields": ["a=jpg", "b=jpg"]}, UsageError, "`fields`: two are for the extension jpg"),
    (SAMPLE, {"fields": ["a=jpg", "a=txt"]}, UsageError, "would both be the field 'a'"),
    (SAMPLE, {"fields": ["a=jpg:picture"]}, UsageError, "expected"),
    (SAMPLE, {"masks": ["segg"]}, UsageError, "there is no field 'segg'"),
    (SAMPLE, {"label": "json:"}, UsageError, "expected EXT or EXT:KEY"),
    (SAMPLE, {"label": "number"}, UsageError, "no member has the extension 'number'"),
    (SAMPLE, {"fields": "a=jpg"}, UsageError, "expected a list"),
    (SAMPLE, {"base": "/"}, UsageError, "add `update`"),
    (SAMPLE, {"update": True}, OutputConflict, "Leave out --update"),
    ([], {}, PackError, "no sample of 0 can be used"),
]


@pytest.mark.parametrize(("members", "options", "error", "why"), REFUSED)
def test_what_is_no_sample_and_rules_that_do_not_fit_are_refused(
    tmp_path: Path, members: Any, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        indexed(tmp_path, members, **options)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_shards_that_cannot_be_indexed_are_all_named_at_once(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 3)
    os.truncate(shards[0], 9000)
    with tarfile.open(tmp_path / "shards" / "train-000003.tar.gz", "w:gz") as file:
        file.add(shards[1], "x.jpg")
    with pytest.raises(PackError) as caught:
        index_shards(tmp_path / "shards", tmp_path / "out")
    message = str(caught.value)
    assert "2 of 4 shards" in message
    assert f"{shards[0]} is cut off, or no tar archive: it ends at byte 9000" in message
    assert "compressed with gzip" in message and "`--unpack DIR`" in message


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shards, billions = write_shards(tmp_path, 3), "{0..999999}" * 3
    (tmp_path / "list.txt").write_text(f"train-{{000001..000002}}.tar\n\n{shards[0]}\n")
    (tmp_path / "long.txt").write_text(f"{billions}.tar\n" * 3)
    assert find_shards([tmp_path]) == find_shards([f"{tmp_path}/train-{{000000..000002}}.tar"]) == shards
    assert find_shards([f"@{tmp_path}/list.txt"]) == [*shards[1:], shards[0]]
    for given, error, why in (
        ([shards[0], tmp_path], PackError, "is there twice"),
        ([tmp_path / "none.tar"], PackError, "cannot be read"),
        ([f"{tmp_path}/{billions}.tar"], PackError, "cannot be read"),
        ([f"@{tmp_path}/long.txt"], PackError, "cannot be read"),
        (["{a,b}" * 2000], UsageError, "pairs of braces"),
        (["{a}"], UsageError, "expected a range or a list in braces"),
        ([tmp_path / "train-*.tar"], PackError, r"train-\*\.tar cannot be read: .*Only braces are expanded here"),
        ([], UsageError, "no shards are given"),
    ):
        with pytest.raises(error, match=why):
            find_shards(given)
    reading, writing = os.pipe()
    os.write(writing, b"train-000001.tar\n")
    os.close(writing)
    with pytest.raises(UsageError, match=f"write @ before it: @/dev/fd/{reading}"):
        find_shards([f"/dev/fd/{reading}"])
    assert find_shards([f"@/dev/fd/{reading}"]) == shards[1:2]
    os.close(reading)


@pytest.mark.parametrize("pattern", ["a-{00..12}.tar", "{a,b}{1..3}", "{098..101}-{x,}", "none"])
def test_braces_are_those_of_the_shell(pattern: str) -> None:
    shell = subprocess.run(["bash", "-c", f"printf '%s\\n' {pattern}"], capture_output=True, text=True, check=True)
    assert list(expand_braces(pattern)) == shell.stdout.splitlines()


@pytest.mark.complete
def test_several_processes_give_the_same_bytes(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", 3)
    contents = []
    for workers in (1, 2):
        out = Path(index_shards(tmp_path / "shards", tmp_path / str(workers) / "out", num_workers=workers).dataset)
        contents.append(tree(out))
    assert contents[0] == contents[1]


def test_update_takes_in_new_shards_and_reads_no_other(tmp_path: Path) -> None:
    shards, out = write_shards(tmp_path / "shards", 4), tmp_path / "out"
    index_shards(shards[:2], out)
    old = Indexed(out).samples()
    report = index_shards(tmp_path / "shards", out, update=True)
    assert (report.indexed, report.shards, report.records) == (2, 4, 16)
    updated = Indexed(out)
    assert updated.samples()[:8] == old
    whole = Indexed(index_shards(tmp_path / "shards", tmp_path / "whole").dataset)
    assert updated.samples() == whole.samples()
    assert updated.manifest.columns == whole.manifest.columns
    assert index_shards(shards[1], out, update=True).indexed == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "shards", "whole"]


def test_update_with_other_fields_and_classes(tmp_path: Path) -> None:
    def shard(name: str, label: str, *more: tuple[str, bytes]) -> Path:
        text = json.dumps({"class": label}).encode()
        return write_tar(tmp_path / name, [("a.jpg", jpeg()), ("a.json", text), *more])

    first = shard("1.tar", "zebra", ("a.x.npy", npy(np.ones((2, 3)))))
    second = shard("2.tar", "ape", ("a.x.npy", npy(np.ones((5, 3)))), ("a.txt", b"new"))
    index_shards(first, tmp_path / "out", label="json:class")
    index_shards(second, tmp_path / "out", update=True)
    dataset = Indexed(tmp_path / "out")
    assert dataset.manifest.classes == ("zebra", "ape")
    assert [sample["label"] for sample in dataset.samples()] == [0, 1]
    assert [sample.get("text") for sample in dataset.samples()] == [None, b"new"]
    assert dataset.manifest.schema["x"].shape == (None, 3)
    with pytest.raises(PackError, match="'x' of the new shards does not fit"):
        index_shards(shard("3.tar", "b", ("a.x.npy", npy(np.ones(3)))), tmp_path / "out", update=True)


@pytest.mark.parametrize("label", [-1, 2])
def test_update_refuses_labels_without_a_class(tmp_path: Path, label: int) -> None:
    samples = [[("a.json", b'{"x": "ape"}')], [("b.json", b'{"x": "bee"}')]]
    dataset = indexed(tmp_path, *samples, label="json:x")
    reindexed(dataset.folder, lambda columns: columns["label"].put(1, label))
    new = write_tar(tmp_path / "b.tar", samples[0])
    with pytest.raises(CorruptFile, match="labels without a class"):
        index_shards(new, dataset.folder, update=True)


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 1)
    (tmp_path / "out").mkdir()
    index_shards(shards, tmp_path / "out")
    with pytest.raises(OutputConflict, match="--update"):
        index_shards([*shards, *write_shards(tmp_path / "others", 1)], tmp_path / "out")
    with pytest.raises(UsageError, match="leave out `fields`, `masks`, `label` and `mode`"):
        index_shards(shards, tmp_path / "out", update=True, masks=["seg"])


def test_shards_of_the_same_name_get_names_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_tar(tmp_path / folder / "0 é.tar", [("x.jpg", jpeg())])
        write_tar(tmp_path / folder / "s.tar", [("x.jpg", jpeg())])
    dataset = Indexed(index_shards([tmp_path / "a", tmp_path / "b"], tmp_path / "out").dataset)
    assert [shard.name for shard in dataset.manifest.shards] == [
        "0__-000000.tar",
        "s.tar",
        "0__-000002.tar",
        "s-000003.tar",
    ]
    assert len(dataset.samples()) == 4


@pytest.mark.parametrize("window", [1, 700, 5000])
def test_pieces_are_those_of_the_file(tmp_path: Path, window: int) -> None:
    data = os.urandom(20_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pieces = SlidingWindow(LocalFile(descriptor), len(data), window)
        random = np.random.default_rng(window)
        place = 0
        while place < len(data):
            length = int(random.integers(0, 3000))
            assert pieces.view(place, length) == data[place : place + length]
            assert pieces.checksum(place, min(length, len(data) - place)) == crc(data[place : place + length])
            place += int(random.integers(0, 2000))
        with pytest.raises(ValueError, match="cannot be viewed"):
            pieces.view(0, 10)
        assert pieces.finish() == crc(data)
    finally:
        os.close(descriptor)


def crc(data: bytes) -> int:
    from crc32c import crc32c

    return int(crc32c(data))


def test_verify_names_a_shard_that_readers_refuse_for_its_time(tmp_path: Path) -> None:
    dataset = indexed(tmp_path, [("a.jpg", jpeg())])
    shard = tmp_path / "a.tar"
    where = dataset.manifest.shard_path(dataset.folder, 0)
    os.utime(shard, ns=(0, 10**9))
    with pytest.raises(CorruptFile, match="was changed after it had been indexed"):
        open_dataset(dataset.folder)[0]
    (problem,) = verify(dataset.folder).problems
    assert problem.unreadable
    assert "another time of change, so readers refuse it" in problem.message
    assert problem.message.endswith(f"({where})")
    shard.unlink()
    (problem,) = verify(dataset.folder).problems
    assert problem.message.startswith("cannot be read: No such file or directory")
    assert f"({where})" in problem.message


def test_indexers_leave_each_other_alone_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    with building(tmp_path / "index", b"plan") as first, building(tmp_path / "index", b"plan"):
        assert (first / "plan.json").read_bytes() == b"plan"
    assert not list(tmp_path.iterdir())
