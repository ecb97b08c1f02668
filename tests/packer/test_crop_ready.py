"""Laws of store mode crop-ready: what Pillow reads is kept pixel for pixel, what it refuses is refused, as verbatim."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.corpus import decoded, exif, jpegs, mutated, pngs, with_segment
from helpers.fusing import pack_sources, sources
from helpers.jpegparts import parsed
from helpers.jpegs import ARITHMETIC, SAMPLINGS, any_jpeg, written
from helpers.jpegs import picture as coefficients
from helpers.support import encoded, packed, picture, tree
from helpers.support import sources as listed
from PIL import Image, features

from packtrain import open_dataset, verify
from packtrain._codec import native
from packtrain._codec.cut import cut, has_table, has_true_table, without_table
from packtrain._codec.decode import RecordDecoder, ordinary
from packtrain._codec.decoders import decoder
from packtrain._codec.geometry import Box
from packtrain._core.options import StoreOptions
from packtrain._packer.images import StoredImage, store_image
from packtrain._packer.sources import Refused
from packtrain.errors import MissingDependency, PacktrainError, ShardFailed

pytestmark = [
    pytest.mark.skipif(native.extension is None, reason="packtrain was built without its C extension"),
    pytest.mark.filterwarnings("ignore"),  # Pillow warns of most damage
]

JPEG = encoded(picture(0, 70, 50))


def stored(data: bytes, store: str = "crop-ready", *, check: bool = False) -> StoredImage | str:
    """Returns what is stored of a file, or why it is refused."""
    try:
        return store_image(data, StoreOptions(store, check=check))
    except Refused as refusal:
        return str(refusal)


def is_crop_ready(data: bytes) -> bool:
    """True if all of it can be cut, and says so."""
    width, height = Image.open(io.BytesIO(data)).size
    return cut(data, Box(0, 0, width, height)) is not None and has_true_table(data)


def assert_laws(data: bytes, which: object = "") -> bool:
    """Compares with verbatim and with Pillow; says whether the file became something else."""
    image, verbatim = decoded(data), stored(data, "verbatim")
    for check in (False, True):
        ours = stored(data, check=check)
        if image is None or isinstance(ours, str) or isinstance(verbatim, str):
            assert ours == verbatim, which
            continue
        assert ours.header == verbatim.header, which
        kept = decoded(ours.payload)
        assert kept is not None, which
        assert (kept.size, kept.tobytes()) == (image.size, image.tobytes()), which
        assert ours.payload == without_table(data) or is_crop_ready(ours.payload), which
    return image is not None and not isinstance(ours, str) and ours.payload not in (data, without_table(data))


def two_pictures(first: bytes, second: bytes) -> bytes:
    """A JPEG of the first picture, with a table that points behind its end, at a record of the second."""
    record = stored(second)
    assert isinstance(record, StoredImage)
    (body,) = parsed(record.payload).bodies(0xE9)
    place = 4 + int.from_bytes(first[4:6]) if first[2:4] == b"\xff\xe0" else 2
    offsets = struct.unpack_from("<3I", body, 12)
    moved = len(first) + 4 + len(body) - offsets[0]
    table = body[:12] + struct.pack("<3I", *(offset + moved for offset in offsets)) + body[24:]
    marked = first[:place] + b"\xff\xe9" + (len(table) + 2).to_bytes(2) + table + first[place:]
    return marked + record.payload[offsets[0] :]


def transcodable() -> Iterator[tuple[str, bytes]]:
    """JPEGs that have a crop-ready form."""
    random = np.random.default_rng(0)
    for sampling in SAMPLINGS:
        yield sampling, written(coefficients(random, 45, 37, sampling, density=0.3), random)
    for number, data in enumerate(jpegs()):
        yield f"usual kind {number}", data
    if features.check("libjpeg_turbo"):
        yield from ARITHMETIC.items()
    yield "bytes behind the end", JPEG + b"more" * 99
    yield "a JPEG behind the end", JPEG + encoded(picture(1))
    yield "two pictures", encoded(picture(0, 70, 50), "MPO", save_all=True, append_images=[picture(1, 70, 50)])
    yield "broken EXIF", with_segment(JPEG, 0xE1, b"Exif\0\0II*\0" + b"\xff" * 30)
    yield "EXIF that ends early", with_segment(JPEG, 0xE1, exif(6)[:20])
    yield "crop-ready already", store_image(JPEG, StoreOptions()).payload


def kept() -> Iterator[tuple[str, bytes]]:
    """What is stored as it is: Pillow reads it, and it has no crop-ready form or libjpeg warns of it."""
    yield "CMYK", encoded(picture(1, mode="CMYK"))
    cmyk = encoded(picture(1, mode="CMYK"))
    transform = cmyk.index(b"Adobe") + 11
    yield "YCCK", cmyk[:transform] + b"\2" + cmyk[transform + 1 :]
    yield "cut off, with an end", JPEG[: len(JPEG) * 2 // 3] + b"\xff\xd9"
    yield "a row is missing", JPEG[:-200] + JPEG[-100:]
    progressive = encoded(picture(0, 70, 50), progressive=True)
    yield "scans are missing", progressive[: progressive.rindex(b"\xff\xda")] + b"\xff\xd9"
    yield "PNG", encoded(picture(0), "PNG")
    yield "GIF", encoded(picture(0), "GIF")
    for number, data in enumerate(pngs()):
        yield f"PNG {number}", data


TRANSCODABLE, KEPT = dict(transcodable()), dict(kept())
ANY = range(20)
"""Numbers of further JPEGs. They are written by the tests that read them: each takes a while, and collecting none."""
MANY = range(100, 110)


@cache
def any_transcodable(number: int) -> bytes:
    return any_jpeg(np.random.default_rng(number))[1]


class TestFiles:
    @pytest.mark.parametrize("kind", [*TRANSCODABLE, *ANY])
    def test_a_sound_jpeg_becomes_crop_ready(self, kind: str | int) -> None:
        data = any_transcodable(kind) if isinstance(kind, int) else TRANSCODABLE[kind]
        changed = assert_laws(data)
        record = stored(data)
        assert isinstance(record, StoredImage) and is_crop_ready(record.payload)
        assert changed == (kind != "crop-ready already"), "the same in, the same out"
        frame = [each.marker for each in parsed(record.payload).segments if 0xC0 <= each.marker <= 0xC2]
        assert frame in ([0xC0], [0xC1])

    @pytest.mark.parametrize("kind", KEPT)
    def test_what_cannot_be_is_kept_byte_for_byte(self, kind: str) -> None:
        assert decoded(KEPT[kind]) is not None
        assert not assert_laws(KEPT[kind])

    @pytest.mark.parametrize(
        ("seed", "count"),
        [*((seed, 250) for seed in range(4)), *(pytest.param(seed, 5000, marks=pytest.mark.stress) for seed in MANY)],
    )
    def test_mutated_files_meet_the_fate_of_verbatim(self, seed: int, count: int) -> None:
        corpus, changed = [*TRANSCODABLE.values(), *map(any_transcodable, ANY)], 0
        for number in range(count):
            random = np.random.default_rng([seed, number])
            changed += assert_laws(mutated(corpus[random.integers(len(corpus))], random), (seed, number))
        assert count // 20 < changed < count * 19 // 20, "the mutations are too mild or too wild to tell anything"

    def test_exif_and_colour_profile_stay_in_the_record(self) -> None:
        profile = bytes(range(256)) * 300  # two segments
        for orientation in range(1, 9):
            data = encoded(picture(1), exif=exif(orientation), icc_profile=profile, comment=b"x", progressive=True)
            record = stored(data)
            assert isinstance(record, StoredImage) and record.header.orientation == orientation
            source, image = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(record.payload))
            assert image.info["exif"] == source.info["exif"]
            assert image.info["icc_profile"] == profile
            assert image.getexif()[0x0112] == orientation

    def test_check_keeps_the_source_where_a_pixel_differs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other = store_image(encoded(picture(9, 70, 50)), StoreOptions()).payload
        real = native.extension
        assert real is not None
        monkeypatch.setattr(native, "extension", SimpleNamespace(LIBJPEG=real.LIBJPEG, transcode=lambda data: other))
        assert store_image(JPEG, StoreOptions()).payload == other, "nobody looks"
        assert store_image(JPEG, StoreOptions(check=True)).payload == JPEG

    @pytest.mark.parametrize("at", [5, 74], ids=["luma", "chroma"])
    def test_check_looks_at_the_pixels_of_coefficients(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        real = native.extension
        assert real is not None
        record = bytearray(real.coefficient_record(JPEG))
        place = int.from_bytes(record[12:16], "little") + at
        record[place] ^= 7
        assert real.coefficients(record) == real.coefficients(JPEG)
        names = {name: getattr(real, name) for name in ("LIBJPEG", "coefficients", "decode", "transcode")}
        changed = SimpleNamespace(**names, coefficient_record=lambda data: bytes(record))
        monkeypatch.setattr(native, "extension", changed)
        assert stored(JPEG, "coefficients") != stored(JPEG, "coefficients", check=True)
        checked = stored(JPEG, "coefficients", check=True)
        assert isinstance(checked, StoredImage) and checked.payload == JPEG
        assert checked.remarks == ("not stored as coefficients: transcoding would change its pixels",)

    @pytest.mark.parametrize("quality", [40, 95])
    @pytest.mark.parametrize("mode", ["RGB", "L"])
    def test_store_mode_jpeg_writes_crop_ready_records(self, quality: int, mode: str) -> None:
        options = StoreOptions("jpeg", quality=quality, mode=mode, resize="short=40")
        for data in (*list(jpegs())[:8], KEPT["PNG"], KEPT["CMYK"]):
            image = store_image(data, options)
            assert is_crop_ready(image.payload)
            usual = Image.open(io.BytesIO(encoded(picture(1, mode=mode), quality=quality)))
            assert Image.open(io.BytesIO(image.payload)).quantization == usual.quantization  # type: ignore[attr-defined]


class TestDatasets:
    @pytest.fixture(scope="class")
    @classmethod
    def files(cls) -> dict[str, bytes]:
        """Sources of all kinds, one of them with a wrong suffix."""
        return {**dict(sources()), "PNG.jpg": encoded(picture(7), "PNG"), "JPEG.png": encoded(picture(8))}

    def test_all_columns_but_those_of_bytes_are_as_verbatim(self, files: dict[str, bytes], tmp_path: Path) -> None:
        out = pack_sources(tmp_path / "a", StoreOptions(), files)
        other = pack_sources(tmp_path / "b", StoreOptions("verbatim"), files)
        for name in ("line", "width", "height", "orientation", "label", "by_place", "path_bytes"):
            ours, theirs = (np.load(folder / "index" / f"{name}.npy") for folder in (out, other))
            np.testing.assert_array_equal(ours, theirs)
        opened = open_dataset(out)
        for row, data in enumerate(files.values()):
            expected = decoded(data)
            assert expected is not None
            assert opened.image(row).tobytes() == expected.tobytes()
        assert not verify(out, decode_images=True).problems

    def test_packed_again_it_is_the_same_with_and_without_check(self, files: dict[str, bytes], tmp_path: Path) -> None:
        first = pack_sources(tmp_path, StoreOptions(), files)
        listing = tmp_path / "images" / "train.txt"
        assert tree(packed(listing, tmp_path / "again", "tar", store=StoreOptions(), num_workers=2)) == tree(first)
        checked = packed(listing, tmp_path / "checked", "tar", store=StoreOptions(check=True))
        assert tree(checked)["train-000000.tar"] == tree(first)["train-000000.tar"]

    def test_plan_and_manifest_say_what_transcoded(self, tmp_path: Path) -> None:
        out = pack_sources(tmp_path, StoreOptions(), {"a.jpg": JPEG})
        assert native.extension is not None
        encoder = f"transcoder 1 ({native.extension.LIBJPEG})"
        assert json.loads((out / "plan.json").read_bytes())["encoder"] == encoder
        assert json.loads((out / "manifest.json").read_bytes())["written_by"].endswith(encoder)

    def test_a_node_that_transcodes_otherwise_does_not_take_part(
        self, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = native.extension
        assert real is not None

        def interrupted(data: Any) -> bytes:
            if len(data) > 500:  # all but the JPEG by which packing tries the transcoder
                raise MemoryError
            return real.transcode(data)

        patched = SimpleNamespace(LIBJPEG=real.LIBJPEG, transcode=interrupted)
        monkeypatch.setattr(native, "extension", patched)
        with pytest.raises((PacktrainError, MemoryError)):
            packed(images, tmp_path / "out", "tar", store=StoreOptions())
        assert (tmp_path / "out" / "plan.json").exists()
        for other, error in (
            (None, MissingDependency),
            (SimpleNamespace(LIBJPEG="libjpeg 6b", transcode=real.transcode), PacktrainError),
        ):
            monkeypatch.setattr(native, "extension", other)
            with pytest.raises(error, match=r"C extension|libjpeg 6b") as caught:
                packed(images, tmp_path / "out", "tar", store=StoreOptions())
            assert not isinstance(caught.value, ShardFailed) or "libjpeg 6b" in str(caught.value)
        monkeypatch.setattr(native, "extension", real)
        packed(images, tmp_path / "undisturbed", "tar", store=StoreOptions())
        packed(images, tmp_path / "out", "tar", store=StoreOptions())
        assert tree(tmp_path / "out") == tree(tmp_path / "undisturbed")

    def test_verify_names_records_whose_tables_do_not_fit(
        self, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a checksum that is right: they were written so. One names places that are none, the other a picture."""
        real = native.extension
        assert real is not None
        records: list[bytearray] = []

        def spoilt(data: bytes) -> bytes:
            record = bytearray(real.transcode(data))
            if len(data) > 500:  # not the JPEG by which packing tries the transcoder
                records.append(record)
                if len(records) == 3:
                    record[record.index(b"packtrain\0") + 28] ^= 1
                if len(records) == 5:
                    return two_pictures(data, encoded(picture(9, 33, 20)))
            return bytes(record)

        monkeypatch.setattr(native, "extension", SimpleNamespace(LIBJPEG=real.LIBJPEG, transcode=spoilt))
        out = packed(images, tmp_path / "out", "tar", store=StoreOptions(), seed=None)
        monkeypatch.undo()
        opened = open_dataset(out)
        lying = [row for row in range(12) if has_table(opened.record(row)) and not has_true_table(opened.record(row))]
        assert any(cut(opened.record(row), Box(0, 0, 1, 1)) is None for row in lying)
        assert not verify(out).problems
        problems = verify(out, decode_images=True).problems
        assert [(each.row, each.line, each.file) for each in problems] == [(n, n, "train-000000.tar") for n in lying]
        assert len(lying) == 2
        for row, problem in zip(lying, problems, strict=True):
            assert problem.message.endswith("its table of restart intervals does not fit it")
            assert f"row {row} (line {row}, 'image {row}.jpg')" in problem.message
            expected = decoded(listed(images)[row].data)
            assert expected is not None
            assert opened.image(row).tobytes() == expected.tobytes(), "it is the JPEG that it is"
            assert open_dataset(out, [lambda image: image.size])[row][0] == expected.size

    @pytest.mark.parametrize("store", ["crop-ready", "verbatim"])
    def test_a_file_with_a_table_of_its_own_has_one_picture(self, tmp_path: Path, store: str) -> None:
        """The table names another picture, smaller or larger, behind the end of the first."""
        files = {}
        for number, size in enumerate([(70, 50), (33, 20), (300, 200)]):
            files[f"{number}.jpg"] = two_pictures(JPEG, encoded(picture(9, *size)))
            files[f"kept {number}.jpg"] = two_pictures(KEPT["CMYK"], encoded(picture(9, *size)))
        assert all(map(has_table, files.values()))
        out = pack_sources(tmp_path, StoreOptions(store, check=True), files)
        assert not verify(out, decode_images=True).problems
        opened = open_dataset(out)
        decoding, box = RecordDecoder(opened.store.manifest.store, decoder()), Box(5, 3, 20, 15)
        for row, data in enumerate(files.values()):
            expected = decoded(data)
            assert expected is not None
            assert opened.image(row).tobytes() == expected.tobytes()
            record = opened.store.field("image").image(row)
            assert record is not None
            part = ordinary(decoding.region(record, box))
            assert part.tobytes() == expected.crop((5, 3, 25, 18)).tobytes()
            assert store == "verbatim" or has_table(record.data) == has_true_table(record.data)
