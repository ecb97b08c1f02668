"""Laws of what packing leaves on disk, for every format."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers.support import encoded, image_set, items, picture, shard_bytes, sources, tree
from PIL import Image

from packtrain import open_dataset, verify
from packtrain._codec.record_forms import to_jpeg
from packtrain._core.options import LabelSpec, StoreOptions

from .laws import PER_SHARD, Laws, column, manifest, placed_lines

Size = tuple[int, int]

LABELS: dict[str, Callable[[int], Any]] = {
    "int": lambda line: 5 - 3 * line,
    "int*1": lambda line: [line],
    "int*3": lambda line: [line, -line, 2**62 + line],
    "float": lambda line: line / 3,
    "float*2": lambda line: [line / 7, -1e30 * line],
    "none": lambda line: None,
}


def shorter_side(target: int) -> Callable[[Size], Size]:
    """torchvision's Resize(target), by its documentation: the shorter side is `target`, the other one in proportion."""

    def size(source: Size) -> Size:
        scale = Fraction(target, min(source))
        return int(source[0] * scale), int(source[1] * scale)

    return size


PIXELS: dict[str, tuple[StoreOptions, Callable[[Size], Size]]] = {
    "crop-ready": (StoreOptions(), lambda size: size),
    "coefficients": (StoreOptions("coefficients"), lambda size: size),
    "coefficients, compared": (StoreOptions("coefficients", check=True), lambda size: size),
    "crop-ready, compared": (StoreOptions(check=True), lambda size: size),
    "jpeg": (StoreOptions("jpeg", quality=35), lambda size: size),
    "jpeg, resized, grey": (StoreOptions("jpeg", resize="short=24", mode="L"), shorter_side(24)),
    "raw": (StoreOptions("raw"), lambda size: size),
    "raw, resized, grey": (StoreOptions("raw", resize="short=20", mode="L"), shorter_side(20)),
    "raw, one size": (StoreOptions("raw", resize="16x20"), lambda size: (16, 20)),
    "raw, one size, grey": (StoreOptions("raw", resize="20x16", mode="L"), lambda size: (20, 16)),
}


class PackingLaws(Laws):
    def test_every_line_is_in_a_container_once_with_its_files_bytes_and_its_label(
        self, images: Path, folder: Path
    ) -> None:
        found = self.found(folder)
        assert [(found[i].payload, found[i].label) for i in range(len(found))] == [
            (source.data, source.label) for source in sources(images)
        ]

    def test_the_index_says_what_lies_where(self, images: Path, folder: Path) -> None:
        shards = [(folder / shard["name"]).read_bytes() for shard in manifest(folder)["shards"]]
        rows = zip(*(column(folder, name).tolist() for name in ("line", "shard", "offset", "length")), strict=True)
        assert [(line, shards[shard][offset : offset + length]) for line, shard, offset, length in rows] == [
            (line, source.data) for line, source in enumerate(sources(images))
        ]
        assert column(folder, "label").tolist() == [source.label for source in sources(images)]
        assert column(folder, "crc32c").tolist() == [crc32c(source.data) for source in sources(images)]
        pictures = [Image.open(io.BytesIO(source.data)) for source in sources(images)]
        assert column(folder, "width").tolist() == [image.width for image in pictures]
        assert column(folder, "height").tolist() == [image.height for image in pictures]

    def test_by_place_is_the_order_of_the_shards_and_of_the_records_in_each(self, folder: Path) -> None:
        by_place = column(folder, "by_place")
        assert sorted(by_place.tolist()) == list(range(len(by_place)))
        shard, offset = column(folder, "shard")[by_place], column(folder, "offset")[by_place]
        assert (np.diff(shard.astype(int)) >= 0).all()
        if self.oracle.format == "lmdb":
            return  # a tree of pages has an order of its own
        assert (np.diff(offset)[np.diff(shard.astype(int)) == 0] > 0).all()

    def test_the_manifest_counts_what_is_there(self, images: Path, folder: Path) -> None:
        body = manifest(folder)
        files = tree(folder)
        assert [shard["records"] for shard in body["shards"]] == [len(shard) for shard in self.shards(folder)]
        assert max(shard["records"] for shard in body["shards"]) <= PER_SHARD < body["records"] == len(sources(images))
        for info in (
            body["rejects_file"],
            *body["shards"],
            *(s for shard in body["shards"] for s in shard["sidecars"]),
        ):
            assert (info["bytes"], info["crc32c"]) == (len(files[info["name"]]), crc32c(files.pop(info["name"])))
        for info in body["columns"]:
            data = files.pop(f"index/{info['name']}.npy")
            assert (info["bytes"], info["crc32c"]) == (len(data), crc32c(data))
        assert set(files) == {"plan.json", "manifest.json"}, "the folder holds what no manifest names"

    @pytest.mark.parametrize("labels", LABELS)
    def test_labels_of_every_kind_come_back_from_the_container_the_index_and_the_reader(
        self, tmp_path: Path, labels: str
    ) -> None:
        listing = image_set(tmp_path / "images", 5)
        expected = [LABELS[labels](line) for line in range(5)]
        texts = ["" if label is None else " ".join(map(repr, np.atleast_1d(label).tolist())) for label in expected]
        listing.write_text("".join(f"image {line}.jpg {text}\n" for line, text in enumerate(texts)))
        spec = LabelSpec.parse(labels)
        out = self.pack(listing, tmp_path / "out", labels=spec)
        found, opened = self.found(out), open_dataset(out)
        if spec.kind == "none":
            assert [found[line].label for line in range(5)] == [None] * 5
            assert [opened.label(row) for row in range(5)] == [-1] * 5
            assert not (out / "index" / "label.npy").exists()
        else:
            exact = np.array(expected, "<f4" if spec.kind == "float" else "<i8")
            stored = np.array([found[line].label for line in range(5)], exact.dtype)
            np.testing.assert_array_equal(stored, exact, strict=True)
            np.testing.assert_array_equal(column(out, "label"), exact, strict=True)
            np.testing.assert_array_equal(np.array([opened.label(row) for row in range(5)], exact.dtype), exact)
            assert {type(opened.label(row)) for row in range(5)} <= {int, float, np.ndarray}
        assert not verify(out, decode_images=True).problems

    @pytest.mark.parametrize("kind", PIXELS)
    def test_pixels_are_those_that_pillow_alone_makes(self, tmp_path: Path, images: Path, kind: str) -> None:
        store, size = PIXELS[kind]
        out = self.pack(images, tmp_path / "out", store=store, shard_size=12_000)
        found, opened = self.found(out), open_dataset(out)
        for row, source in enumerate(sources(images)):
            image = Image.open(io.BytesIO(source.data)).convert(store.mode)
            expected = image.resize(size(image.size), Image.Resampling.BILINEAR)
            if store.store == "jpeg":
                # Restart markers change no pixel, so the oracle does without them; that they are there is seen below.
                expected = Image.open(io.BytesIO(encoded(expected, quality=store.quality)))
                assert b"\xff\xdd\x00\x04" in found[row].payload
            elif store.store == "coefficients":
                # That the record has the same coefficients, a reader of its own says in tests/codec/native.
                stored = Image.open(io.BytesIO(to_jpeg(found[row].payload)))
                assert (found[row].payload[:4], stored.convert("RGB").tobytes()) == (b"\x89PTC", expected.tobytes())
            elif store.store == "crop-ready":
                stored = Image.open(io.BytesIO(found[row].payload))
                assert (stored.format, stored.convert("RGB").tobytes()) == ("JPEG", expected.tobytes())
                assert b"\xff\xdd\x00\x04" in found[row].payload
            else:
                height, width = expected.height, expected.width
                pixels = np.asarray(expected).reshape(height, width, -1)
                np.testing.assert_array_equal(found[row].pixels, pixels, strict=True)
            image = opened[row][0]
            assert (image.mode, image.size, image.tobytes()) == (store.mode, expected.size, expected.tobytes())
            assert (column(out, "width")[row], column(out, "height")[row]) == expected.size
        assert not verify(out, decode_images=True).problems

    def test_the_same_call_gives_the_same_bytes_whatever_the_number_of_workers(
        self, images: Path, folder: Path, tmp_path: Path
    ) -> None:
        size = shard_bytes(images, PER_SHARD)
        assert tree(self.pack(images, tmp_path / "again", shard_size=size)) == tree(folder)
        assert tree(self.pack(images, tmp_path / "two", shard_size=size, num_workers=2)) == tree(folder)

    def test_a_seed_shuffles_places_and_leaves_rows_in_list_order(self, images: Path, tmp_path: Path) -> None:
        orders = [placed_lines(self.pack(images, tmp_path / str(seed), seed=seed)) for seed in (0, 1)]
        lines = list(range(len(sources(images))))
        assert lines != orders[0] != orders[1] != lines
        assert sorted(orders[0]) == sorted(orders[1]) == lines
        assert column(tmp_path / "0", "line").tolist() == lines
        if self.oracle.format != "lmdb":
            assert [record.line for shard in self.shards(tmp_path / "0") for record in shard] == orders[0]

    def test_without_a_seed_places_are_in_list_order(self, images: Path, tmp_path: Path) -> None:
        out = self.pack(images, tmp_path / "out", seed=None, shard_size=shard_bytes(images, PER_SHARD))
        lines = list(range(len(sources(images))))
        assert placed_lines(out) == [record.line for shard in self.shards(out) for record in shard] == lines

    def test_one_record_is_a_dataset(self, tmp_path: Path) -> None:
        listing = image_set(tmp_path / "images", 1)
        out = self.pack(listing, tmp_path / "out")
        (source,) = sources(listing)
        assert self.found(out)[0].payload == open_dataset(out).record(0) == source.data
        assert len(open_dataset(out)) == len(manifest(out)["shards"]) == 1
        assert not verify(out, decode_images=True).problems

    @pytest.mark.parametrize("store", [StoreOptions(), StoreOptions("raw"), StoreOptions("raw", resize="8x8")], ids=str)
    def test_a_shard_may_be_left_with_no_record(self, tmp_path: Path, store: StoreOptions) -> None:
        folder = tmp_path / "images"
        image_set(folder, 3)
        for name in "abc":
            (folder / f"{name}.jpg").write_bytes(b"<html>" + bytes(500))
        names = ["a.jpg", "b.jpg", "c.jpg", "image 0.jpg", "image 1.jpg", "image 2.jpg"]
        (folder / "train.txt").write_text("".join(f"{name} {i}\n" for i, name in enumerate(names)))
        out = tmp_path / "out"
        self.pack(folder / "train.txt", out, store=store, shard_size=1, seed=None, max_rejects="50%")
        assert [len(shard) for shard in self.shards(out)] == [0, 0, 0, 1, 1, 1]
        assert column(out, "line").tolist() == [3, 4, 5]
        assert [label for _, label in items(open_dataset(out))] == [3, 4, 5]
        assert not verify(out, decode_images=True).problems

    def test_the_path_is_kept_byte_for_byte(self, tmp_path: Path) -> None:
        folder = tmp_path / "images"
        names = [
            "a  b\tc.jpg",
            " leading.jpg",
            "Zoë/図 1.jpg",
            "caf\udce9 \udcff.jpg",
            "line\u2028break\x85.jpg",
            "7 8",
        ]
        for number, name in enumerate(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(encoded(picture(number)))
        listing = folder / "train.txt"
        listing.write_text("".join(f"{name} 1\n" for name in names), errors="surrogateescape")
        out = self.pack(listing, tmp_path / "Zoë's\u2028 packs/out 1")
        opened = open_dataset(out)
        assert [opened.filename(row) for row in range(len(names))] == names
        assert [opened.record(row) for row in range(len(names))] == [(folder / name).read_bytes() for name in names]
        assert not verify(out).problems
