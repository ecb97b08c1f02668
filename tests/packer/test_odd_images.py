"""Laws of images that are sound but odd: each is stored or refused with a reason, in every store mode, and none stops
the run. And what is said of records that are stored in another way than asked for."""

from __future__ import annotations

import io
import itertools
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from helpers.corpus import chunk, exif, jpegs, mutated, pngs, wide_grey, with_segment
from helpers.support import encoded, image_set, packed, picture
from PIL import Image, PngImagePlugin

from packtrain import PackOptions, open_dataset, pack
from packtrain._codec import native
from packtrain._codec.cut import has_table
from packtrain._core.manifest import Manifest
from packtrain._core.options import StoreOptions
from packtrain._core.store_modes import STORE_MODES
from packtrain._packer import images as storing
from packtrain._packer.images import store_image
from packtrain._packer.rejects import read_rejects
from packtrain._packer.sources import Refused

EXTENSION = pytest.mark.skipif(native.extension is None, reason="packtrain was built without its C extension")
PHOTO: Final = picture(1, 60, 44)
OPTIONS: Final = (
    StoreOptions("verbatim"),
    StoreOptions("verbatim", mode="L", check=True),
    *([StoreOptions(), StoreOptions(check=True, mode="L")] if native.extension is not None else []),
    StoreOptions("jpeg"),
    StoreOptions("jpeg", resize="short=8", orientation="apply"),
    StoreOptions("jpeg", resize="5x7", mode="L", quality=1),
    StoreOptions("raw", resize="long=9"),
    StoreOptions("raw", mode="L", orientation="apply"),
)


def odd_images() -> Iterator[tuple[str, bytes]]:
    """Images that Pillow writes or reads, and hardly anybody expects."""
    for width, height in ((1, 1), (1, 2), (2, 1), (1, 3000), (65500, 1), (1, 65500)):
        yield f"JPEG of {width} x {height}", encoded(picture(1, width, height))
    for width, height in ((1, 1), (65501, 2), (2, 65501), (70000, 1)):
        yield f"PNG of {width} x {height}", encoded(picture(1, width, height), "PNG")
    yield "CMYK", encoded(PHOTO.convert("CMYK"))
    yield "CMYK, progressive", encoded(PHOTO.convert("CMYK"), progressive=True)
    yield "JPEG stored as RGB", encoded(PHOTO, keep_rgb=True)
    yield "16 bits", encoded(wide_grey(), "PNG")
    yield "animated GIF", encoded(PHOTO, "GIF", save_all=True, append_images=[PHOTO.rotate(90), PHOTO])
    yield "animated PNG", encoded(PHOTO, "PNG", save_all=True, append_images=[PHOTO.rotate(90), PHOTO])
    yield "two pictures", encoded(PHOTO, "MPO", save_all=True, append_images=[PHOTO])
    yield "two pages", encoded(PHOTO, "TIFF", save_all=True, append_images=[PHOTO])
    yield "transparent GIF", encoded(PHOTO.convert("P"), "GIF", transparency=0)
    bomb = PngImagePlugin.PngInfo()
    bomb.add_text("bomb", "0" * (3 << 20), zip=True)
    yield "PNG with a text that unpacks to megabytes", encoded(PHOTO, "PNG", pnginfo=bomb)
    packed = zlib.compress(bytes(70 << 20), 1)
    for kind in ("iCCP", "zTXt", "iTXt"):
        body = b"a\0" + (b"\1\0\0\0" if kind == "iTXt" else b"\0") + packed
        at = (png := encoded(PHOTO, "PNG")).index(b"IDAT") - 4
        yield f"PNG with {kind} of 70 MB", png[:at] + chunk(kind.encode(), body) + png[at:]
    yield "JPEG with 65,000 bytes of EXIF", with_segment(encoded(PHOTO), 0xE1, exif(6) + bytes(65000))
    tags = Image.Exif()
    tags[0x9286] = "x" * 200_000
    yield "PNG with 200,000 bytes of EXIF", encoded(PHOTO, "PNG", exif=tags)
    yield "JPEG with 500 comments", with_many_segments(encoded(PHOTO), 0xFE, b"x" * 1000, 500)
    yield (
        "JPEG with 40 ICC segments that lack one",
        with_many_segments(encoded(PHOTO), 0xE2, b"ICC_PROFILE\0\1\3aa", 40),
    )
    yield "JPEG of 12 bits", encoded(PHOTO).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc1\x00\x11\x0c")
    yield "lossless JPEG", encoded(PHOTO).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc3\x00\x11\x08")
    yield (
        "TIFF of a strange compression",
        encoded(PHOTO, "TIFF").replace(b"\3\1\3\0\1\0\0\0\1", b"\3\1\3\0\1\0\0\0\x77"),
    )
    yield (
        "TIFF that claims many pixels",
        encoded(PHOTO, "TIFF").replace(struct.pack("<I", 60), struct.pack("<I", 1 << 30)),
    )
    yield "BMP of negative height", (bmp := encoded(PHOTO, "BMP"))[:22] + struct.pack("<i", -44) + bmp[26:]
    yield "PPM that ends", encoded(PHOTO, "PPM")[:-1]
    yield "PGM of many levels", b"P5 3 2 1000\n" + bytes(12)
    for number, (start, data) in enumerate(
        itertools.product((0, 1, 20), (*itertools.islice(jpegs(), 4), *itertools.islice(pngs(), 3)))
    ):
        yield f"truncated {number}", data[: len(data) // 2 + start]


def with_many_segments(jpeg: bytes, marker: int, body: bytes, count: int) -> bytes:
    return jpeg[:2] + (struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body) * count + jpeg[2:]


ODD: Final = dict(odd_images())


def assert_stored_or_refused(data: bytes, which: object) -> None:
    for options in OPTIONS:
        try:
            stored = store_image(data, options)
        except Refused:
            continue
        width, height = stored.header.width, stored.header.height
        if options.store == "raw":
            assert len(stored.payload) == width * height * options.channels, (which, options)
        else:
            assert Image.open(io.BytesIO(stored.payload)).convert("RGB").size == (width, height), (which, options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
def test_an_odd_image_is_stored_or_refused_in_every_store_mode(name: str) -> None:
    assert_stored_or_refused(ODD[name], name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("seed", "count"), [(7, 150), *(pytest.param(seed, 3000, marks=pytest.mark.stress) for seed in range(5))]
)
def test_damaged_images_are_stored_or_refused_in_every_store_mode(seed: int, count: int) -> None:
    corpus = [*jpegs(), *pngs(), *(encoded(PHOTO, kind) for kind in ("GIF", "BMP", "TIFF", "PPM"))]
    for number in range(count):
        random = np.random.default_rng([seed, number])
        assert_stored_or_refused(mutated(corpus[random.integers(len(corpus))], random), (seed, number))


@pytest.mark.parametrize("size", [(65501, 2), (2, 65501)])
def test_a_picture_too_long_for_a_jpeg_does_not_stop_the_others(tmp_path: Path, size: tuple[int, int]) -> None:
    listing = image_set(tmp_path / "images", 2)
    (tmp_path / "images" / "long.png").write_bytes(encoded(Image.new("RGB", size), "PNG"))
    with listing.open("a") as file:
        file.write("long.png 1\n")
    out = packed(listing, tmp_path / "out", "tar", max_rejects="1", store=StoreOptions("jpeg"))
    (reject,) = read_rejects(out, Manifest.load(out))
    assert reject.path == "long.png"
    assert reject.reason == (
        f"{size[0]} x {size[1]} pixels do not fit into a JPEG, whose sides have at most 65500: resize it, or use store "
        "mode raw"
    )
    packed(listing, tmp_path / "smaller", "tar", store=StoreOptions("jpeg", resize="long=500"))


@pytest.mark.parametrize("step", ["resize", "save", "transpose", "convert", "load"])
@pytest.mark.parametrize("error", [ValueError("odd"), OSError("encoder error -2"), SystemError("tile"), KeyError(7)])
def test_whatever_pillow_raises_on_one_image_is_a_reject(
    step: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **options: Any) -> None:
        raise error

    data = encoded(PHOTO, exif=exif(6))
    monkeypatch.setattr(Image.Image, step, failing)
    if step == "load":
        monkeypatch.setattr("PIL.ImageFile.ImageFile.load", failing)
    with pytest.raises(Refused, match=type(error).__name__):
        store_image(data, StoreOptions("jpeg", resize="8x8", orientation="apply"))


class TestRemarks:
    """The messages about records that readers cannot cut, and about palettes."""

    @pytest.fixture
    def listing(self, tmp_path: Path) -> Path:
        """Three JPEGs, two in CMYK, one PNG, one GIF with a palette."""
        listing = image_set(tmp_path / "images", 3)
        odd = {"a.jpg": ODD["CMYK"], "b.jpg": ODD["CMYK, progressive"], "c.png": encoded(PHOTO, "PNG")}
        odd["d.gif"] = encoded(PHOTO.convert("P"), "GIF")
        for name, data in odd.items():
            (tmp_path / "images" / name).write_bytes(data)
        with listing.open("a") as file:
            file.writelines(f"{name} 0\n" for name in odd)
        return listing

    @EXTENSION
    @pytest.mark.parametrize("workers", [1, 2])
    def test_records_that_are_not_crop_ready_are_counted_by_reason(
        self, listing: Path, tmp_path: Path, workers: int
    ) -> None:
        options = PackOptions("tar", StoreOptions(mode="L"), shard_size=1)
        report = pack(listing, tmp_path / "out", options, num_workers=workers)
        assert report.remarks == {
            "not crop-ready: the colour space is not grey, YCbCr or RGB": 2,
            "not crop-ready: not a JPEG (png)": 1,
            "not crop-ready: not a JPEG (gif)": 1,
            "a palette image: mode L is the grey of its colours, not its indices": 1,
        }
        assert next(iter(report.remarks.values())) == 2, "the commonest first"
        opened = open_dataset(tmp_path / "out")
        assert sum(not has_table(opened.record(row)) for row in range(len(opened))) == 4
        assert pack(listing, tmp_path / "out", options).remarks == {}, "it counts what it packs"

    @EXTENSION
    def test_records_that_are_no_coefficients_are_counted_by_reason(self, listing: Path, tmp_path: Path) -> None:
        remarks = pack(listing, tmp_path / "out", PackOptions("tar", StoreOptions("coefficients"))).remarks
        assert remarks["not stored as coefficients: the colour space is not grey, YCbCr or RGB"] == 2
        assert remarks["not stored as coefficients: not a JPEG (png)"] == 1

    @EXTENSION
    def test_the_command_says_so(self, listing: Path, tmp_path: Path) -> None:
        from click.testing import CliRunner

        from packtrain._cli.pack_cmd import command

        arguments = [str(listing), str(tmp_path / "out"), "--format", "tar", "--workers", "1"]
        said = CliRunner().invoke(command, arguments, catch_exceptions=False).output
        assert "2 record(s): not crop-ready: the colour space is not grey, YCbCr or RGB\n" in said
        assert "1 record(s): not crop-ready: not a JPEG (png)\n" in said
        arguments[1] = str(tmp_path / "again")
        report = json.loads(CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).stdout)
        assert report["remarks"]["not crop-ready: not a JPEG (gif)"] == 1

    def test_images_as_asked_for_need_no_remark(self, images: Path, tmp_path: Path) -> None:
        for store in ("verbatim", "raw", *(["crop-ready", "jpeg"] if native.extension is not None else [])):
            report = pack(images, tmp_path / store, PackOptions("tar", StoreOptions(store)))
            assert report.remarks == {}, store

    @EXTENSION
    def test_reasons_of_libjpeg_count_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = native.extension
        assert real is not None
        reasons = set()
        for number in (3, 50):
            whole = encoded(PHOTO)
            at = whole.index(b"\xff\xdb")
            reasons.add(storing.transcoded(whole[:at] + bytes(number) + whole[at:], STORE_MODES["crop-ready"])[1])
        assert reasons == {"libjpeg: Corrupt JPEG data: N extraneous bytes before marker N"}
