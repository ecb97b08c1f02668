"""Laws of what happens to pixels: size and orientation. Formats play no part here."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import pytest
from helpers.corpus import exif
from helpers.support import encoded, picture
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from packtrain._core.options import ResizeRule, StoreOptions
from packtrain._packer.images import StoredImage, store_image

SIDES = st.integers(1, 3000)


def pixels(stored: StoredImage, mode: str = "RGB") -> Image.Image:
    """The picture in a raw record."""
    return Image.frombytes(mode, (stored.header.width, stored.header.height), stored.payload)


@given(SIDES, SIDES, st.integers(1, 3000))
@example(1, 3000, 2)
@example(500, 375, 256)
def test_one_side_becomes_what_is_asked_for_and_the_other_follows(width: int, height: int, side: int) -> None:
    for rule, old in (("short", min(width, height)), ("long", max(width, height))):
        new_width, new_height = ResizeRule.parse(f"{rule}={side}").output_size(width, height)
        if old <= side:
            assert (new_width, new_height) == (width, height), "nothing is enlarged"
            continue
        scale = Fraction(side, old)
        assert new_width == max(1, int(width * scale))
        assert new_height == max(1, int(height * scale))
        assert side == (min if rule == "short" else max)(new_width, new_height)


@given(SIDES, SIDES)
def test_an_exact_size_is_the_size(width: int, height: int) -> None:
    assert ResizeRule.parse("320x200").output_size(width, height) == (320, 200)


@pytest.mark.parametrize("text", ["50x20", "40x30", "50x30"])
def test_an_exact_size_may_share_a_side_with_the_picture(text: str) -> None:
    stored = store_image(encoded(picture(1, 50, 30)), StoreOptions("raw", resize=text))
    width, height = map(int, text.split("x"))
    assert (stored.header.width, stored.header.height, len(stored.payload)) == (width, height, 3 * width * height)


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (61, 61), (33, 97)])
@pytest.mark.parametrize("side", [20, 31, 32])
def test_resizing_is_torchvisions(size: tuple[int, int], side: int, torchvision: Any) -> None:
    data = encoded(picture(1, *size))
    image = Image.open(io.BytesIO(data)).convert("RGB")
    for text, transform in {
        f"short={side}": torchvision.transforms.Resize(side),
        f"{side}x17": torchvision.transforms.Resize((17, side)),
    }.items():
        expected = transform(image)
        stored = pixels(store_image(data, StoreOptions("raw", resize=text)))
        assert (stored.size, stored.tobytes()) == (expected.size, expected.tobytes())


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", range(1, 9))
class TestOrientation:
    @pytest.fixture
    def data(self, orientation: int, order: str) -> bytes:
        return encoded(picture(orientation, 50, 30), exif=exif(orientation, order))

    def test_it_is_recorded_and_otherwise_ignored(self, data: bytes, orientation: int) -> None:
        for store in (StoreOptions(), StoreOptions(check=True), StoreOptions("jpeg"), StoreOptions("raw")):
            stored = store_image(data, store)
            assert stored.header.orientation == orientation
            assert (stored.header.width, stored.header.height) == (50, 30)
        assert pixels(stored).tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()

    @pytest.mark.parametrize("mode", ["RGB", "L"])
    def test_applied_it_gives_what_pillow_makes_upright(self, data: bytes, orientation: int, mode: str) -> None:
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode)
        stored = store_image(data, StoreOptions("raw", mode=mode, orientation="apply"))
        assert stored.header.orientation == orientation
        assert (pixels(stored, mode).size, stored.payload) == (expected.size, expected.tobytes())

    def test_a_resize_sees_the_upright_picture(self, data: bytes, orientation: int) -> None:
        stored = store_image(data, StoreOptions("raw", resize="40x10", orientation="apply"))
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        assert stored.payload == upright.resize((40, 10), Image.Resampling.BILINEAR).tobytes()

    def test_a_new_jpeg_is_upright_for_every_reader(self, data: bytes, orientation: int) -> None:
        stored = Image.open(io.BytesIO(store_image(data, StoreOptions("jpeg", orientation="apply")).payload))
        assert stored.size == ((30, 50) if orientation > 4 else (50, 30))
        assert 0x0112 not in stored.getexif()


def test_a_tiff_file_which_pillow_turns_itself_is_not_turned_twice() -> None:
    tags = Image.Exif()
    tags[0x0112] = 6
    data = encoded(picture(1, 50, 30), "TIFF", exif=tags)
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    for orientation in ("ignore", "apply"):
        stored = store_image(data, StoreOptions("raw", orientation=orientation))
        assert (pixels(stored).size, stored.payload) == (expected.size, expected.tobytes())


@pytest.mark.parametrize("quality", [1, 50, 100])
def test_quality_is_pillows(quality: int) -> None:
    data = encoded(picture(1, 64, 64))
    stored = store_image(data, StoreOptions("jpeg", quality=quality)).payload
    again = encoded(Image.open(io.BytesIO(data)).convert("RGB"), quality=quality)
    theirs: Any = Image.open(io.BytesIO(again))
    ours: Any = Image.open(io.BytesIO(stored))
    assert ours.quantization == theirs.quantization
    assert ours.tobytes() == theirs.tobytes()
