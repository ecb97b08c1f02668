"""What was packed by the first packtrain of each version of the format is read for ever, and written the same."""

from __future__ import annotations

import io
import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from contract.oracles import HDF5, LMDB, TAR
from golden.make import CHANGED, DATASETS, GOLDEN, SOURCES, pack_again
from helpers.support import items, tree
from PIL import Image

from packtrain import open_dataset, verify
from packtrain._codec.cut import cut
from packtrain._codec.geometry import Box

ORACLES = {oracle.format: oracle for oracle in (TAR, HDF5, LMDB)}
# What train.txt, pixels.txt and crops.txt say, by line.
VERBATIM = {0: ("a b.jpg", 0), 3: ("grey.jpg", 1), 4: ("c.png", 0)}
RAW = {0: ("c.png", 1), 2: ("d.png", 0)}
CROPS = {0: ("photo.jpg", 1), 2: ("grey.jpg", 0)}

EVERY = pytest.mark.parametrize("name", DATASETS)


def expected(name: str) -> dict[int, tuple[str, int]]:
    return {"verbatim": VERBATIM, "raw": RAW}.get(name.partition("-")[2], CROPS)


@EVERY
@pytest.mark.parametrize("way", ["mmap", "pread"])
def test_it_is_read(name: str, way: str) -> None:
    opened = open_dataset(GOLDEN / name, io=way)
    lines = expected(name)
    assert opened.store.index["line"].tolist() == list(lines)
    assert [(opened.filename(row), opened.label(row)) for row in range(len(opened))] == list(lines.values())
    assert opened.classes == ("tench", "Zoë's goldfish")
    for (image, _), (source, _) in zip(items(opened), lines.values(), strict=True):
        assert image.tobytes() == Image.open(io.BytesIO((SOURCES / source).read_bytes())).convert("RGB").tobytes()
    if name.endswith("verbatim"):
        for row, (source, _) in enumerate(lines.values()):
            assert opened.record(row) == (SOURCES / source).read_bytes()


def test_its_records_can_be_cut() -> None:
    opened = open_dataset(GOLDEN / "tar-crop-ready")
    photo = Image.open(SOURCES / "photo.jpg").convert("RGB")
    part = cut(opened.record(0), Box(140, 90, 40, 30))
    assert part is not None
    assert (part.left, part.top) == (128, 80)
    small = Image.open(io.BytesIO(part.data)).convert("RGB")
    assert small.size == (122, 48)
    assert small.crop((12, 10, 52, 40)).tobytes() == photo.crop((140, 90, 180, 120)).tobytes()


@EVERY
def test_it_is_sound(name: str) -> None:
    assert verify(GOLDEN / name, decode_images=True).problems == ()
    (reject,) = (GOLDEN / name / "rejects.jsonl").read_text().splitlines()
    assert json.loads(reject)["reason"] == "No such file or directory"


@EVERY
def test_todays_writer_writes_the_same_records(name: str, tmp_path: Path) -> None:
    out = pack_again(name, tmp_path / "out")
    oracle = ORACLES[name.split("-")[0]]
    shards = sorted(path.name for path in GOLDEN.joinpath(name).glob("*-0*") if path.suffix != ".idx")
    assert len(shards) > 1
    for shard in shards:
        assert repr(list(oracle.records(out / shard))) == repr(list(oracle.records(GOLDEN / name / shard)))
    for path in (GOLDEN / name / "index").iterdir():
        if path.stem not in ("offset", "blocks"):  # where a record lies is up to libhdf5 and liblmdb
            golden = np.load(path)
            np.testing.assert_array_equal(np.load(out / "index" / path.name), golden, strict=True)


def test_todays_writer_writes_the_same_bytes_where_no_library_has_a_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = GOLDEN / "tar-verbatim"
    written_by = json.loads((golden / "plan.json").read_bytes())["written_by"]
    monkeypatch.setattr(metadata, "version", lambda _: written_by.removeprefix("packtrain "))
    assert tree(pack_again("tar-verbatim", tmp_path / "out")) == tree(golden)


def test_the_versions_of_a_changed_dataset_are_read() -> None:
    """The values that `golden.make.change` says of it, counted by hand."""
    packed = [*VERBATIM.values()]
    versions = {1: packed, 2: [*packed, ("d.png", 1), ("grey.jpg", 0)], 3: [packed[1], packed[2], ("grey.jpg", 0)]}
    for number, lines in versions.items():
        opened = open_dataset(CHANGED, version=number)
        assert [(opened.filename(row), opened.label(row)) for row in range(len(opened))] == lines
        for row, (source, _) in enumerate(lines):
            assert opened.record(row) == (SOURCES / source).read_bytes()
    assert len(open_dataset(CHANGED)) == len(versions[3])
    assert (verify(CHANGED).problems, verify(CHANGED).orphans) == ((), ())


def test_a_segment_is_a_dataset() -> None:
    (segment,) = (CHANGED / "segments").iterdir()
    assert [open_dataset(segment).filename(row) for row in range(2)] == ["d.png", "grey.jpg"]
