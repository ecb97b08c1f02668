"""Laws of pixels that are not RGB: each of Pillow's modes is stored with the pixels of `convert`, or refused."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from helpers.corpus import wide_grey
from helpers.support import encoded, packed, picture
from PIL import Image

from packtrain import Loader, open_dataset, pack, verify
from packtrain._codec.native import extension
from packtrain._core.options import PIXEL_MODES, StoreOptions
from packtrain._core.store_modes import STORE_MODES
from packtrain._packer import images
from packtrain._packer.images import PALETTE_REMARK, store_image
from packtrain._packer.options import PackOptions
from packtrain._packer.sources import Refused

SIZE: Final = (24, 16)
FITTING: Final = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
REFUSED: Final = {
    "I": "whole numbers of up to 32 bits.*: convert it to 8 bits first",
    "I;16": "16 bits wide.*: convert it to 8 bits first.* or store its numbers in a field of arrays$",
    "I;16B": "16 bits wide.*: convert it to 8 bits first",
    "I;16L": "16 bits wide.*: convert it to 8 bits first",
    "I;16N": "16 bits wide.*: convert it to 8 bits first",
    "F": "floating-point numbers.*: convert it to 8 bits first",
    "LAB": r"colour space L\*a\*b\*.*: convert it to RGB first",
    "La": "Pillow refuses it: ValueError: conversion from La",
}
STORES: Final = [store for store in STORE_MODES if store != "crop-ready" or extension is not None]


def in_mode(mode: str) -> Image.Image:
    """A picture of this mode."""
    if mode == "RGBa":
        return picture(1, *SIZE, "RGBA").convert("RGBa")
    if mode == "La":
        return picture(1, *SIZE, "LA").convert("La")
    if mode == "LAB":
        return Image.frombytes("LAB", SIZE, picture(1, *SIZE).tobytes())
    if mode == "PA":
        return picture(1, *SIZE, "P").convert("PA")
    if mode.startswith("I;"):
        return Image.frombytes(mode, SIZE, np.arange(SIZE[0] * SIZE[1], dtype="<u2").tobytes())
    return picture(1, *SIZE).convert("L").convert(mode) if mode in ("I", "F") else picture(1, *SIZE, mode)


@pytest.mark.parametrize("wanted", PIXEL_MODES)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("mode", [*FITTING, *REFUSED])
def test_every_mode_is_what_convert_gives_or_refused(
    mode: str, store: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever file it may come from: only some of these modes can be written to a file."""
    image = in_mode(mode)
    assert image.mode == mode

    def opened(data: bytes) -> Image.Image:
        copy = image.copy()
        copy.format = "PNG"
        return copy

    monkeypatch.setattr(images, "open_image", opened)
    if mode in REFUSED:
        with pytest.raises(Refused, match=REFUSED[mode]):
            store_image(b"a file", StoreOptions(store, mode=wanted))
        return
    stored = store_image(b"a file", StoreOptions(store, mode=wanted))
    palette = wanted == "L" and mode in ("P", "PA")
    assert (PALETTE_REMARK in stored.remarks) == palette
    if store == "raw":
        assert stored.payload == image.convert(wanted).tobytes()
    elif store == "jpeg":
        monkeypatch.undo()
        theirs = Image.open(io.BytesIO(encoded(image.convert(wanted), quality=90)))
        assert Image.open(io.BytesIO(stored.payload)).tobytes() == theirs.tobytes()
    else:
        assert stored.payload == b"a file"


def test_a_field_of_arrays_keeps_the_numbers_of_an_image_of_16_bits(tmp_path: Path) -> None:
    numbers = np.asarray(wide_grey())
    pack([{"depth": numbers, "label": 0}], tmp_path / "out")
    loader = Loader(open_dataset(tmp_path / "out", fields=("depth",)), 1)
    (batch,) = (each.depth for each in loader)
    assert batch.numpy().dtype == numbers.dtype == np.uint16
    assert np.array_equal(batch.numpy()[0], numbers)


def test_verify_names_a_record_whose_pixels_readers_would_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that was packed when such files were not refused yet."""
    (tmp_path / "a.png").write_bytes(encoded(wide_grey(), "PNG"))
    (tmp_path / "train.txt").write_text("a.png 0\n")
    with monkeypatch.context() as patch:
        patch.setattr(images, "misfit", lambda image: None)
        out = packed(tmp_path / "train.txt", tmp_path / "out", "tar")
    (problem,) = verify(out, decode_images=True).problems
    assert "'a.png'" in problem.message and "16 bits wide" in problem.message
    expected = Image.open(tmp_path / "a.png").convert("RGB")
    assert open_dataset(out).image(0).tobytes() == expected.tobytes(), "it is still read as Pillow reads it"


class TestLimits:
    """Pillow's limit on the number of pixels."""

    @pytest.fixture(params=["a JPEG", "a PNG"])
    def data(self, request: Any) -> bytes:
        return encoded(picture(1, 60, 50), "JPEG" if request.param == "a JPEG" else "PNG")

    @pytest.mark.parametrize("store", STORES)
    def test_an_image_of_more_than_twice_the_limit_is_refused(
        self, data: bytes, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60 * 50 // 2 - 1)
        with pytest.raises(Refused, match="Pillow refuses it: DecompressionBombError"):
            store_image(data, StoreOptions(store))
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60 * 50 // 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store_image(data, StoreOptions(store))
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
        store_image(data, StoreOptions(store))

    @pytest.mark.complete
    def test_the_limit_holds_in_worker_processes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(2):
            (tmp_path / f"{number}.png").write_bytes(encoded(picture(number, 60, 50), "PNG"))
        (tmp_path / "train.txt").write_text("0.png 0\n1.png 0\n")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        options = PackOptions("tar", StoreOptions("verbatim"), shard_size=1)
        with pytest.raises(Exception, match="DecompressionBombError"):
            pack(tmp_path / "train.txt", tmp_path / "out", options, num_workers=2, max_rejects="1")
