"""Tar shards in other people's hands: webdataset, GNU tar, DALI."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import webdataset
from helpers.corpus import ORIENTATION, exif
from helpers.support import Source, encoded, image_set, output_of, packed, picture, shard_bytes, sources, tool
from PIL import Image

from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._formats.tar.reader import check_dali_index

pytestmark = [
    # webdataset leaves it to the garbage collector to close its files.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Packed(NamedTuple):
    """A dataset of tar shards and the lines it was made from."""

    folder: Path
    lines: list[Source]

    @property
    def shards(self) -> list[str]:
        return sorted(map(str, self.folder.glob("*.tar")))

    @property
    def indexes(self) -> list[str]:
        return sorted(map(str, self.folder.glob("*.idx")))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("tar")
    listing = image_set(folder / "images", 11)
    return Packed(packed(listing, folder / "out", "tar", shard_size=shard_bytes(listing, 4)), sources(listing))


@pytest.fixture(scope="module")
def crop_ready(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The same, and a progressive JPEG, as crop-ready records."""
    folder = tmp_path_factory.mktemp("crop-ready")
    listing = image_set(folder / "images", 11)
    (folder / "images" / "image 1.jpg").write_bytes(encoded(picture(1, 150, 110), progressive=True, exif=exif(6)))
    size = shard_bytes(listing, 4)
    return Packed(packed(listing, folder / "out", "tar", shard_size=size, store=StoreOptions()), sources(listing))


def samples(dataset: Packed, *decoders: str) -> list[dict[str, Any]]:
    """All samples that webdataset finds, by key."""
    pipeline = webdataset.WebDataset(dataset.shards, shardshuffle=False)
    return sorted(pipeline.decode(*decoders) if decoders else pipeline, key=lambda sample: str(sample["__key__"]))


def test_webdataset_finds_every_line_under_its_key(dataset: Packed) -> None:
    assert [(sample["__key__"], sample["jpg"], sample["cls"]) for sample in samples(dataset)] == [
        (f"{line:09d}", source.data, str(source.label).encode()) for line, source in enumerate(dataset.lines)
    ]


def test_webdataset_decodes_crop_ready_records(crop_ready: Packed) -> None:
    assert len(crop_ready.shards) > 1
    for sample, source in zip(samples(crop_ready, "pil"), crop_ready.lines, strict=True):
        assert sample["jpg"].tobytes() == Image.open(io.BytesIO(source.data)).convert("RGB").tobytes()
        assert sample["cls"] == source.label


def test_gnu_tar_extracts_crop_ready_records_as_sound_jpegs(crop_ready: Packed, tmp_path: Path) -> None:
    for shard in crop_ready.shards:
        output_of(tool("tar", "tar"), "--extract", "--directory", tmp_path, "--file", shard)
    for line, source in enumerate(crop_ready.lines):
        path = tmp_path / f"{line:09d}.jpg"
        assert path.read_bytes() != source.data and b"packtrain" in path.read_bytes()[:60]
        with Image.open(path) as image:
            assert image.format == "JPEG"
            image.verify()
        with Image.open(path) as image, Image.open(io.BytesIO(source.data)) as expected:
            assert image.convert("RGB").tobytes() == expected.convert("RGB").tobytes()
    assert Image.open(tmp_path / "000000001.jpg").getexif()[ORIENTATION] == 6


def test_webdataset_decodes_raw_pixels_and_vectors(images: Path, tmp_path: Path) -> None:
    text = images.read_text().replace(".jpg ", ".jpg 0.5 -")
    (tmp_path / "train.txt").write_text(text)
    options: dict[str, Any] = {"labels": LabelSpec("float", 2), "store": StoreOptions("raw"), "root": images.parent}
    folder = packed(tmp_path / "train.txt", tmp_path / "out", "tar", **options)
    found = samples(Packed(folder, []), "pil")
    for sample, source in zip(found, sources(images), strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(source.data)).convert("RGB"))
        np.testing.assert_array_equal(sample["npy"], pixels, strict=True)
        assert sample["json"] == [0.5, -source.label]


def test_gnu_tar_lists_plain_files_without_owner_or_time(dataset: Packed) -> None:
    listed = []
    for shard in dataset.shards:
        options = ("--list", "--verbose", "--utc", "--numeric-owner", "--full-time")
        listed += [line.split() for line in output_of(tool("tar", "tar"), *options, "--file", shard).splitlines()]
    assert {tuple(line[i] for i in (0, 1, 3, 4)) for line in listed} == {
        ("-rw-r--r--", "0/0", "1970-01-01", "00:00:00")
    }
    members = {line[5]: int(line[2]) for line in listed}
    assert members == {
        **{f"{line:09d}.jpg": len(source.data) for line, source in enumerate(dataset.lines)},
        **{f"{line:09d}.cls": 1 for line in range(len(dataset.lines))},
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: re.sub(rb" [0-9]+ (\S+ cls)", rb" -1 \1", line), "line 3 has a member with size '-1' at"),
        (
            lambda line: re.sub(rb" [0-9]+ (\S+)$", rb" 999999999999 \1", line),
            "line 3 has a member with size '999999999999'",
        ),
        (lambda line: line.replace(b"jpg ", b"jpg -", 1), "line 3 has a member with size .* at '-"),
        (lambda line: b"jpg 512", "line 3 is 'jpg 512', not EXT OFFSET SIZE NAME"),
        (lambda line: line + b"\n" + line, "line 1 is 'v1.2 .*', and .* lines follow"),
    ],
)
def test_an_index_that_would_make_dali_crash_is_refused(
    dataset: Packed, change: Callable[[bytes], bytes], message: str
) -> None:
    size = Path(dataset.shards[0]).stat().st_size
    index = Path(dataset.indexes[0]).read_bytes()
    check_dali_index(index, size)
    lines = index.split(b"\n")
    with pytest.raises(ValueError, match=message):
        check_dali_index(b"\n".join([*lines[:2], change(lines[2]), *lines[3:]]), size)


class TestDali:
    def test_the_idx_file_is_what_nvidias_own_tool_writes(self, dataset: Packed, tmp_path: Path) -> None:
        tool_module = pytest.importorskip("wds2idx", reason="pip install nvidia-dali-cuda120")
        for shard, index in zip(dataset.shards, dataset.indexes, strict=True):
            with tool_module.IndexCreator(shard, str(tmp_path / "idx"), verbose=False) as creator:
                creator.create_index()
            assert Path(index).read_bytes() == (tmp_path / "idx").read_bytes()

    def test_the_reader_takes_shards_and_their_idx_files(self, dataset: Packed) -> None:
        dali = pytest.importorskip("nvidia.dali", reason="pip install nvidia-dali-cuda120")

        @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
        def records() -> Any:
            return tuple(
                dali.fn.readers.webdataset(
                    paths=dataset.shards,
                    index_paths=dataset.indexes,
                    ext=["jpg", "cls"],
                    missing_component_behavior="error",
                    name="shards",
                )
            )

        pipeline = records()
        pipeline.build()
        assert pipeline.epoch_size("shards") == len(dataset.lines)
        batches = [pipeline.run() for _ in dataset.lines]
        found = [tuple(bytes(np.asarray(output.at(0))) for output in batch) for batch in batches]
        assert sorted(found) == sorted((source.data, str(source.label).encode()) for source in dataset.lines)
