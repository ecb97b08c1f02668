"""Laws of converting: what comes out is what packing the list would have given; what can be copied is not touched."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fields import COLUMNS, WITHOUT_IMAGE, field_set
from helpers.shards import write_shards, write_tar
from helpers.support import FORMATS, encoded, flip, packed, picture, tree

from packtrain import ConvertOptions, convert, verify
from packtrain._core.manifest import Manifest
from packtrain._core.options import STORE_MODES, StoreOptions
from packtrain._packer.foreign import unpacking
from packtrain._packer.foreign.indexer import index_shards
from packtrain._packer.options import Columns
from packtrain._readers.dataset.store import RecordStore
from packtrain.errors import CorruptRecord, MissingDependency, OutputConflict, PackError, TooManyRejects, UsageError

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
    convert(source, out, ConvertOptions(format, store, seed=None))
    return out


def content(dataset: Path) -> dict[str, bytes]:
    """Everything in a dataset but plan and manifest, which name the source."""
    return {name: data for name, data in tree(dataset).items() if name not in ("plan.json", "manifest.json")}


def told(dataset: Path) -> dict[str, Any]:
    """What the manifest says, apart from the source and who wrote it."""
    said: dict[str, Any] = json.loads((dataset / "manifest.json").read_bytes())
    return {name: value for name, value in said.items() if name not in ("plan_sha256", "written_by", "checksum")}


def records(dataset: Path, field: str) -> list[bytes | None]:
    with RecordStore(dataset) as store:
        found = [store.field(field).read(row) for row in range(len(store))]
        return [None if record is None else bytes(record) for record in found]


def is_lossless(before: str, after: str) -> bool:
    """True if the list, packed as `after`, gives what a dataset packed as `before` gives."""
    return before == after or (before in ("verbatim", "crop-ready", "raw") and after != "verbatim")


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
            assert records(out, field) == records(dataset(from_format, TARGETS[before]), field)
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
    convert(source, tmp_path / "out", ConvertOptions(store=applied))
    assert content(tmp_path / "out") == content(expected)
    convert(expected, tmp_path / "again", ConvertOptions(store=StoreOptions("raw")))
    assert set(np.load(tmp_path / "again" / "index" / "orientation.npy")) == {1}, "the pixels are upright now"


@pytest.mark.complete
def test_the_bytes_do_not_depend_on_the_workers(listing: Path, tmp_path: Path) -> None:
    source = packed(listing, tmp_path / "source", "hdf5", max_rejects="1", columns=COLUMNS)
    options = ConvertOptions("tar", StoreOptions("jpeg", resize="long=20"), shard_bytes=5000)
    report = convert(source, tmp_path / "one", options)
    assert report.packed > 1
    convert(source, tmp_path / "two", options, workers=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert convert(source, tmp_path / "one", options).complete_before


def test_refused_rows_are_rejects_beside_those_of_the_source(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(picture(number)))
    (tmp_path / "1.jpg").write_bytes(b"<html>")
    listing = tmp_path / "list"
    listing.write_text("".join(f"{number}.jpg 0\n" for number in range(4)))
    (tmp_path / "2.jpg").write_bytes(encoded(picture(2, 65501, 1), "PNG"))
    source = packed(listing, tmp_path / "source", "tar", max_rejects="1", store=StoreOptions("raw"))
    assert convert(source, tmp_path / "same", max_rejects=0).rejects == 1
    options = ConvertOptions(store=StoreOptions("jpeg"))
    with pytest.raises(TooManyRejects, match=r"line 2: '2\.jpg': 65501 x 1 pixels"):
        convert(source, tmp_path / "out", options, max_rejects=0)
    assert convert(source, tmp_path / "out", options, max_rejects=1).rejects == 2
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
        convert(source, tmp_path / "out", ConvertOptions("hdf5"), workers=workers)
    assert (caught.value.row, caught.value.line, caught.value.file) == (3, line, shard.name)
    assert all(text in str(caught.value) for text in (shard.name, f"line {line}", str(source)))
    assert not (tmp_path / "out" / "manifest.json").exists()
    flip(shard, offset)
    convert(source, tmp_path / "out", ConvertOptions("hdf5"))
    assert verify(tmp_path / "out").problems == ()


def test_what_does_not_fit_is_refused(dataset: Packed, listing: Path, tmp_path: Path) -> None:
    source = dataset("tar", StoreOptions("verbatim"))
    for out in (source, source / "inside"):
        before = tree(source)
        with pytest.raises((UsageError, OutputConflict), match="choose another folder"):
            convert(source, out)
        assert tree(source) == before
    with pytest.raises(UsageError, match="leave out `fields`"):
        convert(source, tmp_path / "out", label="cls")
    convert(source, tmp_path / "out")
    with pytest.raises(OutputConflict, match="another plan"):
        convert(source, tmp_path / "out", ConvertOptions("hdf5"))
    with pytest.raises(OutputConflict, match="list_sha256"):
        convert(dataset("hdf5", StoreOptions("verbatim")), tmp_path / "out", ConvertOptions("tar"))


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Foreign shards of JPEG, label and caption."""
    return write_shards(tmp_path / "shards", 3)


def test_an_indexed_dataset_becomes_crop_ready(shards: list[Path], tmp_path: Path) -> None:
    source, out = tmp_path / "indexed", tmp_path / "out"
    index_shards(shards, source)
    convert(source, out, ConvertOptions(store=StoreOptions()))
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


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
}


def test_zstd_needs_a_package(shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards[0].with_suffix(".tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependency, match="pip install zstandard"):
        convert(shards[0].with_suffix(".tar.zst"), tmp_path / "out")


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_tars_give_what_plain_ones_give(shards: list[Path], tmp_path: Path, suffix: str) -> None:
    options = ConvertOptions("hdf5", StoreOptions())
    convert(shards[0].parent, tmp_path / "plain" / "out", options)
    for shard in shards[:2]:
        status = shard.stat()
        packed = shard.with_name(shard.name.removesuffix(".tar") + suffix)
        packed.write_bytes(COMPRESSIONS[suffix](shard.read_bytes()))
        os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
        shard.unlink()
    convert(shards[0].parent, tmp_path / "out", options)
    assert content(tmp_path / "out") == content(tmp_path / "plain" / "out")
    assert not (tmp_path / "out.unpacked").exists()
    assert convert(shards[0].parent, tmp_path / "out", options).complete_before


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_a_damaged_compressed_tar_is_named(shards: list[Path], tmp_path: Path, suffix: str, how: str) -> None:
    data = bytearray(COMPRESSIONS[suffix](shards[1].read_bytes()))
    if how == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 0xFF
    damaged = shards[1].with_name(f"train{suffix}")
    damaged.write_bytes(data)
    with pytest.raises(PackError, match="damaged") as caught:
        convert(damaged, tmp_path / "out")
    assert str(damaged) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_what_is_no_tar_is_not_unpacked(tmp_path: Path, suffix: str) -> None:
    for number, content in enumerate((bytes(1 << 24), b"{}", b"x" * 5000)):
        bomb = tmp_path / f"{number}{suffix}"
        bomb.write_bytes(COMPRESSIONS[suffix](content))
        with pytest.raises(PackError, match=rf"{bomb.name} holds no tar archive: decompressed, it begins with b'"):
            convert(bomb, tmp_path / str(number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.unpacked/**/*") if path.is_file()) == 0


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_an_archive_without_members_is_one(tmp_path: Path, suffix: str) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for name, data in (("a.jpg", encoded(picture(0, 8, 8))), ("a.cls", b"1")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    tarfile.open(tmp_path / "1.tar", "w").close()
    for name in ("0", "1"):
        tar = tmp_path / f"{name}.tar"
        (tmp_path / f"{name}{suffix}").write_bytes(COMPRESSIONS[suffix](tar.read_bytes()))
        tar.unlink()
    assert convert(tmp_path, tmp_path / "out").records == 1


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_tar_that_grows_beyond_measure_is_not_unpacked(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "_MOST_OF_SMALL", 4 << 20)
    inside = write_tar(tmp_path / "a.tar", [("a.bin", bytes(8 << 20))]).read_bytes()
    bomb = tmp_path / f"bomb{suffix}"
    bomb.write_bytes(COMPRESSIONS[suffix](inside))
    with pytest.raises(PackError, match=r"decompressed more than 4194304, as no archive of samples has: leave it out"):
        convert(bomb, tmp_path / "out")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.unpacked/**/*") if path.is_file()) == 0
    monkeypatch.setattr(unpacking, "_MOST_OF_SMALL", 16 << 20)
    assert convert(bomb, tmp_path / "out").records == 1


def test_a_stopped_run_over_compressed_tars_continues(shards: list[Path], tmp_path: Path) -> None:
    for shard in shards:
        shard.with_suffix(".tar.gz").write_bytes(gzip.compress(shard.read_bytes()))
        shard.unlink()
    options = ConvertOptions("hdf5", StoreOptions("raw", resize="8x8"), shard_bytes=3 * 8 * 8 * 3)

    class Stopped(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.done >= 4:
            raise Stopped

    convert(shards[0].parent, tmp_path / "undisturbed" / "out", options)
    with pytest.raises(Stopped):
        convert(shards[0].parent, tmp_path / "out", options, on_progress=stop)
    report = convert(shards[0].parent, tmp_path / "out", options)
    assert report.resumed > 0
    assert content(tmp_path / "out") == content(tmp_path / "undisturbed" / "out")


def test_options_are_taken_as_texts() -> None:
    options = ConvertOptions("tar", "jpeg", "2MiB")  # type: ignore[arg-type]
    assert (options.store, options.shard_bytes) == (StoreOptions("jpeg"), 2 << 20)
    assert replace(options, seed=None).seed is None
    with pytest.raises(UsageError):
        ConvertOptions("zip")
