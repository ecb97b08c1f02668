"""HDF5 shards in other people's hands: h5py and the HDF5 Group's own tools."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from helpers.support import output_of, packed, sources, tool
from PIL import Image

from packtrain._core.options import LabelSpec, StoreOptions

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(params=["records", "raw", "raw of one size"])
def shard(request: pytest.FixtureRequest, images: Path, tmp_path: Path) -> Path:
    """A shard in list order of each layout."""
    store = {
        "records": StoreOptions("verbatim"),
        "raw": StoreOptions("raw"),
        "raw of one size": StoreOptions("raw", resize="8x6", mode="L"),
    }
    (tmp_path / "train.txt").write_text(images.read_text().replace(".jpg ", ".jpg -1.25 "))
    options: dict[str, Any] = {"labels": LabelSpec("float", 2), "root": images.parent, "seed": None}
    out = packed(tmp_path / "train.txt", tmp_path / "out", "hdf5", store=store[request.param], **options)
    (path,) = out.glob("*.h5")
    return path


@pytest.fixture
def expected(shard: Path, images: Path, request: pytest.FixtureRequest) -> Arrays:
    """The arrays that the shard has to hold, by name."""
    lines = sources(images)
    arrays: Arrays = {
        "lines": np.arange(len(lines)),
        "labels": np.array([[-1.25, source.label] for source in lines], np.float32),
    }
    pictures = [Image.open(io.BytesIO(source.data)).convert("RGB") for source in lines]
    if "one size" in request.node.name:
        small = [Image.open(io.BytesIO(source.data)).convert("L") for source in lines]
        arrays["images"] = np.stack([np.asarray(image.resize((8, 6), Image.Resampling.BILINEAR)) for image in small])
        arrays["images"] = arrays["images"][..., None]
        return arrays
    records = [source.data for source in lines]
    if "raw" in request.node.name:
        records = [image.tobytes() for image in pictures]
        arrays["shapes"] = np.array([[image.height, image.width, 3] for image in pictures], np.int32)
    arrays["images"] = np.frombuffer(b"".join(records), np.uint8)
    arrays["offsets"] = np.cumsum([0, *map(len, records)])
    return arrays


def test_h5py_reads_plain_datasets(shard: Path, expected: Arrays) -> None:
    with h5py.File(shard, "r") as file:
        assert set(file) == {*expected, "crc32c"}
        for name, array in expected.items():
            np.testing.assert_array_equal(file[name][()], array, strict=True)
            assert (file[name].chunks, file[name].compression, file[name].dtype.byteorder) in [
                (None, None, "<"),
                (None, None, "="),
                (None, None, "|"),
            ]
        assert file["images"].id.get_offset() % 4096 == 0


def test_nothing_in_the_file_depends_on_the_time(shard: Path) -> None:
    with h5py.File(shard, "r") as file:
        assert [h5py.h5g.get_objinfo(file[name].id).mtime for name in file] == [0] * len(file)


def test_h5dump_reads_the_same(shard: Path, expected: Arrays, tmp_path: Path) -> None:
    for name, array in expected.items():
        dump = tmp_path / "dump"
        output_of(tool("h5dump", "hdf5-tools"), "-d", name, "-b", "LE", "-o", dump, shard)
        np.testing.assert_array_equal(np.fromfile(dump, array.dtype).reshape(array.shape), array)


def test_h5dump_finds_nothing_to_object_to(shard: Path) -> None:
    described = output_of(tool("h5dump", "hdf5-tools"), "--header", "--properties", shard)
    assert described.count("CONTIGUOUS") == described.count("DATASET")
