"""Samples of many fields in other people's hands: webdataset, GNU tar, DALI's index, h5py and py-lmdb."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import webdataset
from helpers.samples import Sample, write_shard
from helpers.support import encoded, output_of, picture, tool

from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.schema import Field, Schema, image_field

pytestmark = [
    # webdataset leaves it to the garbage collector to close its files.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCHEMA = Schema(
    (
        image_field(StoreOptions()),
        Field("depth", "mask", encoding="raw", dtype="<u2"),
        Field("caption", "text", optional=True),
        Field("boxes", "array", dtype="<f4", shape=(None, 4)),
        Field("pose", "array", dtype="<c8", shape=(2, 2)),
        Field("valid", "array", True, dtype="|b1", shape=(3,)),
        Field("meta", "json"),
    ),
    LabelSpec(),
)
COUNT = 3


def boxes(i: int) -> Any:
    return np.arange(4 * i, dtype="<f4").reshape(i, 4)


def sample(i: int) -> Sample:
    """The first one lacks what may be missing; its boxes are an empty array, and the caption of the second is empty."""
    return Sample(
        i,
        10 + i,
        (
            encoded(picture(i, 8 + i, 9)),
            np.full((9, 8 + i), 300 + i, "<u2"),
            None if i == 0 else b"" if i == 1 else "Zoë".encode(),
            boxes(i),
            np.full((2, 2), i + 1j, "<c8"),
            None if i == 0 else np.array([True, False, i == 1]),
            json.dumps({"line": i}).encode(),
        ),
    )


@pytest.fixture
def shard(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path: Path = tmp_path / "shard"
    written = write_shard(path, request.param, SCHEMA, [sample(i) for i in range(COUNT)])
    for suffix, data in written.sidecars.items():
        path.with_suffix(suffix).write_bytes(data)
    return path


def names(i: int) -> list[str]:
    """The members of a sample, in order."""
    optional = {"caption.txt": i > 0, "valid.npy": i > 0}
    parts = ["jpg", "cls", "depth.npy", "caption.txt", "boxes.npy", "pose.npy", "valid.npy", "meta.json"]
    return [part for part in parts if optional.get(part, True)]


@pytest.mark.parametrize("shard", ["tar"], indirect=True)
class TestTar:
    def test_gnu_tar_lists_the_members_in_order(self, shard: Path) -> None:
        expected = [f"{i:09}.{name}" for i in range(COUNT) for name in names(i)]
        assert output_of(tool("tar", "tar"), "-tf", shard).splitlines() == expected

    def test_webdataset_decodes_them(self, shard: Path) -> None:
        found = list(webdataset.WebDataset(str(shard), shardshuffle=False).decode("rgb8"))
        assert [set(each) - {"__key__", "__url__", "__local_path__"} for each in found] == [
            set(names(i)) for i in range(COUNT)
        ]
        for i, each in enumerate(found):
            assert (each["cls"], each["meta.json"]) == (10 + i, {"line": i})
            np.testing.assert_array_equal(each["boxes.npy"], boxes(i), strict=True)
            np.testing.assert_array_equal(each["depth.npy"], np.full((9, 8 + i), 300 + i, "<u2"), strict=True)
            assert each["jpg"].shape == (9, 8 + i, 3)
        assert [each.get("caption.txt") for each in found] == [None, "", "Zoë"]

    def test_dalis_index_names_every_member(self, shard: Path) -> None:
        version, *lines = shard.with_suffix(".idx").read_text().splitlines()
        assert version == f"v1.2 {COUNT}"
        content = shard.read_bytes()
        for i, line in enumerate(lines):
            words = line.split()
            assert words[::4] == names(i)
            assert words[3::4] == [f"{i:09}.{name}" for name in names(i)]
            members = {words[n]: content[int(words[n + 1]) :][: int(words[n + 2])] for n in range(0, len(words), 4)}
            assert members["cls"] == str(10 + i).encode()
            np.testing.assert_array_equal(np.load(io.BytesIO(members["boxes.npy"])), boxes(i), strict=True)


@pytest.mark.parametrize("shard", ["hdf5"], indirect=True)
def test_h5py_reads_typed_arrays(shard: Path) -> None:
    with h5py.File(shard) as file:
        group = file["fields/boxes"]
        data, offsets = group["data"], group["offsets"]
        assert (data.dtype, data.shape, offsets[:].tolist()) == (np.dtype("<f4"), (3, 4), [0, 0, 1, 3])
        for i in range(COUNT):
            np.testing.assert_array_equal(data[offsets[i] : offsets[i + 1]], boxes(i), strict=True)
        assert (file["fields/pose/data"].dtype, file["fields/pose/data"].shape) == (np.dtype("<c8"), (COUNT, 2, 2))
        assert file["fields/pose/data"][2, 0, 0] == 2 + 1j
        assert set(file["fields/pose"]) == {"data", "crc32c"}
        valid = file["fields/valid"]
        assert valid["data"][:].tolist() == [[True, False, True], [True, False, False]]
        assert valid["offsets"][:].tolist() == [0, 0, 1, 2]
        assert valid["present"][:].tolist() == file["fields/caption/present"][:].tolist() == [0, 1, 1]
        assert file["fields/caption/data"][:].tobytes().decode() == "Zoë"
        depth = file["fields/depth"]
        assert depth["shapes"][:].tolist() == [[9, 8], [9, 9], [9, 10]]
        assert set(depth["data"][:].view("<u2").tolist()) == {300, 301, 302}
        every = [file["images"], *(group[name] for group in file["fields"].values() for name in group)]
        assert all(each.chunks is None and each.id.get_offset() % 8 == 0 for each in every)
