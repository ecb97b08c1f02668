"""Laws of what is opened at all: which formats, and how many pixels. They hold for parts of images, too."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.support import encoded, picture
from PIL import Image, UnidentifiedImageError, features

from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.geometry import Box
from packtrain._codec.native import extension
from packtrain._codec.pillow import FORMATS, misfit, open_image, pixel_limit, set_pixel_limit
from packtrain._core.options import StoreOptions
from packtrain._packer.images import store_image

WIDTH, HEIGHT = 160, 120
JPEG = encoded(picture(1, WIDTH, HEIGHT))
STORES = ("verbatim", "crop-ready", "coefficients") if extension is not None else ("verbatim",)
BOX = Box(40, 30, 20, 20)


def readings(store: str, name: str) -> list[Callable[[], object]]:
    """The ways to decode a part of a record, or all of it."""
    record = store_image(JPEG, StoreOptions(store)).payload
    image = EncodedImage(memoryview(record), WIDTH, HEIGHT)
    records = RecordDecoder(StoreOptions(store), decoder(name))
    return [
        lambda: records.image(image),
        lambda: records.region(image, BOX),
        lambda: records.region(image, image.box, 2),
        lambda: records.rgb(image, BOX) is None and records.region(image, BOX),
        lambda: records.rgb(image, image.box) is None and records.region(image, image.box),
    ]


@pytest.mark.parametrize("name", ["pillow", "auto"])
@pytest.mark.parametrize("store", STORES)
def test_a_lowered_limit_holds_for_whole_images_and_for_parts(
    store: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for read in readings(store, name):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", WIDTH * HEIGHT)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read()
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", WIDTH * HEIGHT - 1)
        with pytest.warns(Image.DecompressionBombWarning, match="pixels"):
            read()
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", WIDTH * HEIGHT // 2 - 1)
        with pytest.raises(Image.DecompressionBombError, match="pixels"):
            read()
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
        read()


def test_the_limit_is_pillows_own(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from packtrain._codec.pillow import pixel_limit; before = pixel_limit(); import sys\n"
    code += "assert 'PIL.Image' not in sys.modules; from PIL import Image; print(before, Image.MAX_IMAGE_PIXELS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours, theirs = done.stdout.split()
    assert ours == theirs
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    assert pixel_limit() == 5
    set_pixel_limit(None)
    assert Image.MAX_IMAGE_PIXELS is None


@pytest.mark.filterwarnings("ignore:image file could not be identified")
@pytest.mark.parametrize("kind", FORMATS)
def test_formats_that_people_train_on_are_opened(kind: str) -> None:
    feature = {"WEBP": "webp", "AVIF": "avif", "JPEG2000": "jpg_2000"}.get(kind)
    if feature in features.get_supported_modules() + features.get_supported_codecs() or feature is None:
        assert open_image(encoded(picture(1), kind)).format == kind
    elif kind == "WEBP":
        with pytest.raises(UnidentifiedImageError, match="a file of format WEBP, which the Pillow that is installed"):
            open_image(b"RIFF\x0c\0\0\0WEBPVP8 " + bytes(20))
    else:
        pytest.skip(f"this Pillow was built without {kind}")


@pytest.mark.parametrize("kind", ["EPS", "PCX", "SGI", "DDS", "ICO"])
def test_all_others_are_refused_by_name(kind: str) -> None:
    data = encoded(picture(1, 32, 32), kind)
    assert Image.open(io.BytesIO(data)).format == kind, "Pillow itself would open it"
    with pytest.raises(UnidentifiedImageError, match=f"a file of format {kind}, .*: convert it to PNG or JPEG"):
        open_image(data)


def test_no_file_runs_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An EPS file named .jpg is a program, which Pillow hands to Ghostscript."""
    ran = tmp_path / "ran"
    script = tmp_path / "gs"
    script.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    data = encoded(picture(1), "EPS")
    for name in ("pillow", "auto"):
        with pytest.raises(UnidentifiedImageError):
            decoder(name).decode(data, "RGB")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"%PDF-1.4", "format PDF"),
        (b"<svg xmlns=", "format SVG"),
        (b"\0\0\0\x18ftypheic", "format HEIC"),
        (b"", "not an image that Pillow knows"),
        (b"\0", "not an image that Pillow knows"),
        (b"<!DOCTYPE html>", "not an image that Pillow knows"),
        (bytes(100), "not an image that Pillow knows"),
    ],
)
def test_a_file_that_is_no_image_is_named_if_possible(start: bytes, said: str) -> None:
    with pytest.raises(UnidentifiedImageError, match=said):
        open_image(start)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_refused_without_another_error(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(20):
        with pytest.raises(UnidentifiedImageError):
            open_image(b"\x01" + random.bytes(int(random.integers(1, 200))))


def test_pixels_of_eight_bits_fit() -> None:
    assert [misfit(Image.new(mode, (1, 1))) for mode in ("1", "L", "P", "RGB", "CMYK")] == [None] * 5
