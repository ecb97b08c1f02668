"""The examples that pack what other libraries wrote: images stay the files that they were, byte for byte.

Each runs where its library is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from helpers.support import encoded, import_torchvision, picture

from packtrain import PackOptions, StoreOptions, open_dataset, pack

COUNT = 9
VERBATIM = PackOptions(store=StoreOptions("verbatim"), seed=None)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[Path, int]]:
    (tmp_path / "images").mkdir()
    found = []
    for number in range(COUNT):
        path = tmp_path / "images" / f"{number}.jpg"
        path.write_bytes(encoded(picture(number, 40, 30), "JPEG"))
        found.append((path, number % 4))
    return found


def check(samples: Any, files: list[tuple[Path, int]], out: Path) -> None:
    pack(samples, out, VERBATIM)
    dataset = open_dataset(out)
    found = [(bytes(dataset.record(row)), int(dataset.label(row))) for row in range(len(dataset))]
    assert found == [(path.read_bytes(), label) for path, label in files]


def _required(name: str) -> Any:
    """A library that imports torchvision."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    import_torchvision()
    return importlib.import_module(name)


def test_mds(files: list[tuple[Path, int]], tmp_path: Path) -> None:
    streaming = _required("streaming")
    from from_other_formats import mds
    from PIL import Image

    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns={"image": "jpeg", "label": "int"}) as sink:
        for path, label in files:
            sink.write({"image": Image.open(path), "label": label})
    check(mds.samples(str(tmp_path / "mds")), files, tmp_path / "out")


def test_litdata(files: list[tuple[Path, int]], tmp_path: Path) -> None:
    pytest.importorskip("litdata", exc_type=ImportError)
    from from_other_formats import lit_chunks
    from litdata.streaming.writer import BinaryWriter
    from PIL import Image

    # What `optimize` does in processes of its own.
    writer = BinaryWriter(str(tmp_path / "lit"), chunk_bytes=1 << 20)
    for number, (path, label) in enumerate(files):
        writer[number] = {"image": Image.open(path), "label": label}
    writer.done()
    writer.merge()
    check(lit_chunks.samples(str(tmp_path / "lit")), files, tmp_path / "out")


class Pictures:
    """Datasets that FFCV and slipstream write."""

    def __init__(self, files: list[tuple[Path, int]], cache_path: Path) -> None:
        self.files = files
        self.cache_path = cache_path
        self.field_types = {"image": "ImageBytes", "label": "int"}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Any:
        path, label = self.files[row]
        return {"image": path.read_bytes(), "label": label}


class Decoded(Pictures):
    """Pictures, as arrays."""

    def __getitem__(self, row: int) -> Any:
        return picture(row, 40, 30), self.files[row][1]


@pytest.mark.parametrize("mode", ["raw", "jpg"])
def test_beton(files: list[tuple[Path, int]], tmp_path: Path, mode: str) -> None:
    pytest.importorskip("ffcv", exc_type=ImportError)
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from from_other_formats import beton

    fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=95), "label": IntField()}
    path = str(tmp_path / "train.beton")
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(Decoded(files, tmp_path))
    store = "raw" if mode == "raw" else "verbatim"
    pack(beton.Beton(path), tmp_path / "out", PackOptions(store=StoreOptions(store), seed=None))
    dataset = open_dataset(tmp_path / "out")
    assert [int(dataset.label(row)) for row in range(COUNT)] == [label for _, label in files]
    for row in range(COUNT):
        # OpenCV encodes the JPEGs of a beton, so they are only near.
        far = np.abs(np.asarray(dataset[row][0]).astype(int) - np.asarray(picture(row, 40, 30)))
        assert far.max() == 0 if mode == "raw" else far.mean() < 8


def test_tfrecord(files: list[tuple[Path, int]], tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord", exc_type=ImportError)
    from from_other_formats import tfrecords

    paths = [str(tmp_path / f"train-{number:05d}-of-00002") for number in range(2)]
    for path, part in zip(paths, (files[:5], files[5:]), strict=True):
        writer = tfrecord.TFRecordWriter(path)
        for image, label in part:
            writer.write({"image/encoded": (image.read_bytes(), "byte"), "image/class/label": (label + 1, "int")})
        writer.close()
    check(tfrecords.samples(paths), files, tmp_path / "out")


def test_slipstream(files: list[tuple[Path, int]], tmp_path: Path) -> None:
    _required("slipstream")
    from from_other_formats import slip_cache
    from slipstream.cache import OptimizedCache

    OptimizedCache.build(Pictures(files, tmp_path / "slipstream"), verbose=False)
    check(slip_cache.Cache(str(tmp_path / "slipstream")), files, tmp_path / "out")
