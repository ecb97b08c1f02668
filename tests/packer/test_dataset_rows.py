"""Laws of packing a dataset: what comes out is what its list would have given; what can be copied is not touched."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fields import COLUMNS, WITHOUT_IMAGE, field_set
from helpers.shards import write_shards
from helpers.support import FORMATS, encoded, flip, packed, picture, tree

from packtrain import PackOptions, merge, pack, verify
from packtrain._codec.record_forms import as_image_file
from packtrain._core.manifest import Manifest
from packtrain._core.options import StoreOptions
from packtrain._core.store_modes import STORE_MODES
from packtrain._packer.foreign.indexer import index_shards
from packtrain._packer.options import Columns
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import CorruptRecord, OutputConflict, TooManyRejects, UsageError

COUNT = 6
TARGETS = {mode: StoreOptions(mode) for mode in STORE_MODES} | {
    "raw small": StoreOptions("raw", resize="12x10"),
    "jpeg short": StoreOptions("jpeg", resize="short=14", quality=70),
    "raw grey": StoreOptions("raw", mode="L"),
}
Packed = Callable[..., Path]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with a field of every kind, one of them with a broken mask."""
    return field_set(tmp_path_factory.mktemp("fields"), COUNT)


@pytest.fixture(scope="module")
def dataset(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The list, packed in one shard and in its order; each combination once."""
    folder, made = tmp_path_factory.mktemp("datasets"), dict[Any, Path]()

    def make(format: str, store: StoreOptions, columns: Columns = COLUMNS) -> Path:
        key = format, store, columns
        if key not in made:
            out = folder / str(len(made))
            made[key] = packed(listing, out, format, max_rejects="1", columns=columns, store=store, seed=None)
        return made[key]

    return make


def converted(source: Path, out: Path, format: str | None = None, store: StoreOptions | None = None) -> Path:
    pack(source, out, PackOptions(format, store, seed=None))
    return out


def content(dataset: Path) -> dict[str, bytes]:
    """Everything in a dataset but plan and manifest, which name the source."""
    return tree(dataset, "plan.json", "manifest.json")


def told(dataset: Path) -> dict[str, Any]:
    """The manifest without the source and who wrote it."""
    said: dict[str, Any] = json.loads((dataset / "manifest.json").read_bytes())
    return {name: value for name, value in said.items() if name not in ("plan_sha256", "written_by", "checksum")}


def records(dataset: Path, field: str) -> list[bytes | None]:
    with RecordStore(dataset) as store:
        found = [store.field(field).read(row) for row in range(len(store))]
        return [None if record is None else bytes(record) for record in found]


def is_lossless(before: str, after: str) -> bool:
    """True if the list, packed as `after`, gives what a dataset packed as `before` gives."""
    return before == after or (before in ("verbatim", "crop-ready", "coefficients", "raw") and after != "verbatim")


@pytest.mark.parametrize("before", STORE_MODES)
@pytest.mark.parametrize("after", TARGETS)
@pytest.mark.parametrize("from_format", FORMATS)
@pytest.mark.parametrize("to_format", FORMATS)
def test_every_pair(dataset: Packed, tmp_path: Path, before: str, after: str, from_format: str, to_format: str) -> None:
    source, store = dataset(from_format, TARGETS[before]), TARGETS[after]
    if before == "raw" and store.keeps_pixels:
        with pytest.raises(UsageError, match="--store jpeg"):
            converted(source, tmp_path / "out", to_format, store)
        return
    out = converted(source, tmp_path / "out", to_format, store)
    assert verify(out, decode_images=True).problems == ()
    if is_lossless(before, after):
        expected = dataset(to_format, store)
        assert content(out) == content(expected)
        assert told(out) == told(expected)
    elif store.keeps_pixels:
        for field in ("image", "side"):
            # Of coefficients, which are no files, a JPEG is kept.
            kept = [None if data is None else bytes(as_image_file(data)) for data in records(source, field)]
            found = [None if data is None else bytes(as_image_file(data)) for data in records(out, field)]
            assert found == kept
    assert (out / "rejects.jsonl").read_bytes() == (source / "rejects.jsonl").read_bytes()


@pytest.mark.parametrize("from_format", FORMATS)
@pytest.mark.parametrize("to_format", FORMATS)
@pytest.mark.parametrize("store", ["jpeg short", "raw small", "crop-ready"])
def test_what_is_stored_alike_is_copied(
    dataset: Packed, tmp_path: Path, from_format: str, to_format: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No library decides the bytes, so nothing may be decoded; jpeg would lose quality once more."""
    source = dataset(from_format, TARGETS[store])
    expected = dataset(to_format, TARGETS[store])
    for name in ("store_image", "store_pixels", "store_mask"):
        monkeypatch.delattr(f"packtrain._packer.dataset_rows.{name}")
    out = converted(source, tmp_path / "out", to_format)
    assert content(out) == content(expected)
    assert json.loads((out / "plan.json").read_bytes())["encoder"] is None


@pytest.mark.parametrize("from_format", FORMATS)
def test_samples_without_an_image(dataset: Packed, tmp_path: Path, from_format: str) -> None:
    for to_format in FORMATS:
        expected = dataset(to_format, StoreOptions(), WITHOUT_IMAGE)
        source = dataset(from_format, StoreOptions(), WITHOUT_IMAGE)
        assert content(converted(source, tmp_path / to_format, to_format)) == content(expected)


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product(["verbatim", "raw", "raw apply"], ["jpeg", "raw"]))
)
def test_an_orientation_is_applied_once(tmp_path: Path, before: str, after: str) -> None:
    for orientation in range(1, 9):
        image = picture(orientation, 40, 30)
        exif = image.getexif()
        exif[0x0112] = orientation
        (tmp_path / f"{orientation}.jpg").write_bytes(encoded(image, exif=exif))
    (tmp_path / "list").write_text("".join(f"{number}.jpg {number}\n" for number in range(1, 9)))
    applied = StoreOptions(after, orientation="apply")
    mode, _, turned = before.partition(" ")
    store = StoreOptions(mode, orientation=turned or "ignore")
    source = packed(tmp_path / "list", tmp_path / "source", "tar", store=store)
    expected = packed(tmp_path / "list", tmp_path / "expected", "tar", store=applied)
    pack(source, tmp_path / "out", PackOptions(store=applied))
    assert content(tmp_path / "out") == content(expected)
    pack(expected, tmp_path / "again", PackOptions(store=StoreOptions("raw")))
    assert set(np.load(tmp_path / "again" / "index" / "orientation.npy")) == {1}, "the pixels are upright now"


@pytest.mark.complete
def test_the_bytes_do_not_depend_on_the_workers(listing: Path, tmp_path: Path) -> None:
    source = packed(listing, tmp_path / "source", "hdf5", max_rejects="1", columns=COLUMNS)
    options = PackOptions("tar", StoreOptions("jpeg", resize="long=20"), shard_size=5000)
    report = pack(source, tmp_path / "one", options)
    assert report.packed > 1
    pack(source, tmp_path / "two", options, num_workers=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert pack(source, tmp_path / "one", options).complete_before


def test_refused_rows_are_rejects_beside_those_of_the_source(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(picture(number)))
    (tmp_path / "1.jpg").write_bytes(b"<html>")
    listing = tmp_path / "list"
    listing.write_text("".join(f"{number}.jpg 0\n" for number in range(4)))
    (tmp_path / "2.jpg").write_bytes(encoded(picture(2, 65501, 1), "PNG"))
    source = packed(listing, tmp_path / "source", "tar", max_rejects="1", store=StoreOptions("raw"))
    assert pack(source, tmp_path / "same", max_rejects=0).rejects == 1
    options = PackOptions(store=StoreOptions("jpeg"))
    with pytest.raises(TooManyRejects, match=r"line 2: '2\.jpg': 65501 x 1 pixels"):
        pack(source, tmp_path / "out", options, max_rejects=0)
    assert pack(source, tmp_path / "out", options, max_rejects=1).rejects == 2
    manifest = Manifest.load(tmp_path / "out")
    assert (manifest.lines, manifest.records, manifest.rejects) == (4, 2, 2)
    refused = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [reject["line"] for reject in refused] == [1, 2]
    assert np.load(tmp_path / "out" / "index" / "line.npy").tolist() == [0, 3]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("field", ["image", "caption"])
def test_damage_is_named_and_what_is_mended_is_converted(
    dataset: Packed, tmp_path: Path, workers: int, field: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(dataset("tar", StoreOptions("verbatim")), source)
    with RecordStore(source) as store:
        offset = int(store.field(field).columns["offset"][3])
        line = int(store.index["line"][3])
    (shard,) = source.glob("*.tar")
    flip(shard, offset)
    with pytest.raises(CorruptRecord) as caught:
        pack(source, tmp_path / "out", PackOptions("hdf5"), num_workers=workers)
    assert (caught.value.row, caught.value.line, caught.value.file) == (3, line, shard.name)
    assert all(text in str(caught.value) for text in (shard.name, f"line {line}", str(source)))
    assert not (tmp_path / "out" / "manifest.json").exists()
    flip(shard, offset)
    pack(source, tmp_path / "out", PackOptions("hdf5"))
    assert verify(tmp_path / "out").problems == ()


def test_a_dataset_is_packed_in_parts(dataset: Packed, tmp_path: Path) -> None:
    source, options = dataset("lmdb", StoreOptions("verbatim")), PackOptions(shard_size=2000)
    report = pack(source, tmp_path / "whole", options)
    assert report.packed > 1
    for part in ("1/2", "2/2"):
        pack(source, tmp_path / "parts", options, part=part)
    merge(tmp_path / "parts", max_rejects=report.rejects)
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")


def test_what_does_not_fit_is_refused(dataset: Packed, listing: Path, tmp_path: Path) -> None:
    source = dataset("tar", StoreOptions("verbatim"))
    for out in (source, source / "inside"):
        before = tree(source)
        with pytest.raises((UsageError, OutputConflict), match="choose another folder"):
            pack(source, out)
        assert tree(source) == before
    for options in (PackOptions(labels="none"), PackOptions(root=tmp_path), PackOptions(allow_empty=True)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"is a dataset, .*leave out `"):
            pack(source, tmp_path / "out", options)
    pack(source, tmp_path / "out")
    with pytest.raises(OutputConflict, match="another plan"):
        pack(source, tmp_path / "out", PackOptions("hdf5"))
    with pytest.raises(OutputConflict, match="list_sha256"):
        pack(dataset("hdf5", StoreOptions("verbatim")), tmp_path / "out", PackOptions("tar"))


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Foreign shards of JPEG, label and caption."""
    return write_shards(tmp_path / "shards", 3)


def test_an_indexed_dataset_becomes_crop_ready(shards: list[Path], tmp_path: Path) -> None:
    source, out = tmp_path / "indexed", tmp_path / "out"
    index_shards(shards, source)
    pack(source, out, PackOptions(store=StoreOptions()))
    assert verify(out, decode_images=True).problems == ()
    assert Manifest.load(out).store.store == "crop-ready"
    assert Manifest.load(out).base is None
    with RecordStore(source) as before, RecordStore(out) as after:
        assert len(after) == len(before) == 12
        for row in range(len(after)):
            assert after.index.text("path", row) == before.index.text("path", row)
            assert after.index["line"][row] == before.index["line"][row] == row
            assert after.label(row) == before.label(row)
            assert after.record(row, "text") == before.record(row, "text")
            assert after.field("image").size(row) == before.field("image").size(row)
    shutil.rmtree(shards[0].parent)
    assert verify(out).problems == ()
