"""Laws of masks: class indices are kept as the PNG has them, and follow their image as torchvision moves a Mask."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from helpers.corpus import png_of
from helpers.support import encoded, import_torchvision, picture
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packtrain._core.options import ResizeRule, StoreOptions
from packtrain._core.schema import Field
from packtrain._packer.images import store_image
from packtrain._packer.listing import Encoded
from packtrain._packer.masks import Frame, rewrites_masks, store_mask
from packtrain._packer.sources import Refused

GREY, PALETTE = 0, 3
EXIF = {1: None, 2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM"} | {
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def png(values: np.ndarray[Any, Any], depth: int, colour: int = GREY) -> bytes:
    """A PNG with these values in `depth` bits each."""
    height, width = values.shape
    bits = ((values[..., None].astype(np.int64) >> np.arange(depth)[::-1]) & 1).astype(np.uint8).reshape(height, -1)
    lines = b"".join(b"\0" + row.tobytes() for row in np.packbits(bits, axis=1))
    palette = np.random.default_rng(0).bytes(3 << depth) if colour == PALETTE else b""
    return png_of(width, height, depth, colour, lines, palette)


def indices(seed: int, depth: int, width: int = 11, height: int = 7) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 1 << depth, (height, width), np.uint16)


def field(encoding: str = "png", dtype: str = "|u1") -> Field:
    return Field("seg", "mask", encoding=encoding, dtype=dtype)


def values(payload: bytes | memoryview, field: Field, width: int, height: int) -> np.ndarray[Any, Any]:
    """The pixels of a record, by Pillow for PNGs that Pillow wrote."""
    if field.encoding == "raw":
        return np.frombuffer(payload, field.dtype).reshape(height, width)
    return np.asarray(Image.open(io.BytesIO(bytes(payload)))).astype(field.dtype)


DEPTHS = [(depth, GREY) for depth in (1, 2, 4, 8, 16)] + [(depth, PALETTE) for depth in (1, 2, 4, 8)]


@pytest.mark.parametrize(("depth", "colour"), DEPTHS)
class TestIndices:
    def test_raw_masks_hold_the_values_of_the_file(self, depth: int, colour: int) -> None:
        dtype = "<u2" if depth > 8 else "|u1"
        stored = store_mask(png(indices(3, depth), depth, colour), field("raw", dtype), Frame())
        found = np.frombuffer(stored.payload, dtype).reshape(stored.shape)
        np.testing.assert_array_equal(found, indices(3, depth))

    def test_png_masks_are_the_file_itself(self, depth: int, colour: int) -> None:
        data = png(indices(4, depth), depth, colour)
        assert store_mask(data, field(dtype="<u2"), Frame((11, 7))) == Encoded(data, "png", (7, 11), frame=(11, 7))

    def test_png_masks_that_change_size_hold_values_of_the_file(self, depth: int, colour: int) -> None:
        source, wide = indices(5, depth), field(dtype="<u2" if depth > 8 else "|u1")
        stored = store_mask(png(source, depth, colour), wide, Frame((11, 7), 1, ResizeRule.parse("22x14")))
        found = values(stored.payload, wide, *stored.frame)
        np.testing.assert_array_equal(found, source.repeat(2, 0).repeat(2, 1))


def test_narrow_masks_fit_a_wide_field_and_not_the_other_way_round() -> None:
    narrow, wide = png(indices(0, 4), 4), png(indices(0, 16), 16)
    stored = store_mask(narrow, field("raw", "<u2"), Frame())
    assert np.frombuffer(stored.payload, "<u2").tolist() == indices(0, 4).ravel().tolist()
    with pytest.raises(Refused, match=r"class indices have 16 bits.*field 8.*--dtype seg=uint16"):
        store_mask(wide, field(), Frame())


@given(
    orientation=st.sampled_from(sorted(EXIF)),
    resize=st.none() | st.sampled_from(["short=5", "long=6", "9x4", "17x31", "11x7"]),
    size=st.tuples(st.integers(5, 40), st.integers(5, 40)),
    encoding=st.sampled_from(["png", "raw"]),
    depth=st.sampled_from([8, 16]),
)
def test_a_mask_follows_its_image_as_torchvision_moves_a_mask(
    orientation: int, resize: str | None, size: tuple[int, int], encoding: str, depth: int
) -> None:
    torchvision = import_torchvision()
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import InterpolationMode, functional

    del torchvision
    width, height = size
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = StoreOptions("raw", resize=resize, orientation="apply")
    image = store_image(encoded(picture(1, width, height), exif=exif.tobytes()), options)
    source = indices(7, depth, width, height)
    wide = field(encoding, "<u2" if depth > 8 else "|u1")
    stored = store_mask(png(source, depth), wide, Frame.of(image, options))
    assert stored.frame == (image.header.width, image.header.height)

    upright = Image.fromarray(source.astype(np.int32))
    if (method := EXIF[orientation]) is not None:
        upright = upright.transpose(Image.Transpose[method])
    mask = tv_tensors.Mask(torch.from_numpy(np.array(upright, np.int32)))
    expected = functional.resize(mask, list(stored.shape), InterpolationMode.NEAREST)
    np.testing.assert_array_equal(values(stored.payload, wide, *stored.frame), expected.numpy())


@pytest.mark.parametrize("orientation", EXIF)
def test_a_mask_is_turned_as_pillow_turns_an_image(orientation: int) -> None:
    source, method = indices(3, 8), EXIF[orientation]
    stored = store_mask(png(source, 8), field("raw"), Frame(orientation=orientation))
    image = Image.fromarray(source.astype(np.uint8))
    upright = image if method is None else image.transpose(Image.Transpose[method])
    np.testing.assert_array_equal(values(stored.payload, field("raw"), *stored.frame), np.asarray(upright))


def test_a_mask_of_another_size_than_its_image_is_refused_with_both_sizes() -> None:
    with pytest.raises(Refused, match="it has 11 x 7 pixels, and its image 11 x 8"):
        store_mask(png(indices(0, 8), 8), field(), Frame((11, 8)))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_colours_are_no_class_indices(mode: str) -> None:
    with pytest.raises(Refused, match=r"its pixels are colours.*Save the index of each pixel's class as a PNG, grey"):
        store_mask(encoded(picture(0).convert(mode), "PNG"), field(), Frame())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encoded(picture(0, mode="L")), "a JPEG, whose compression changes class indices"),
        (encoded(picture(0, mode="L"), "BMP"), r"no PNG file; it begins with b'BM"),
        (b"", "no PNG file"),
        (b"\x89PNG\r\n\x1a\n", "no PNG file"),
    ],
    ids=["jpeg", "bmp", "empty", "cut"],
)
def test_other_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(Refused, match=message):
        store_mask(data, field(), Frame())


@settings(max_examples=2 * settings().max_examples)
@given(at=st.integers(0, 10**6), bits=st.integers(1, 255), cut=st.booleans())
def test_a_broken_png_is_refused_or_taken_for_what_it_says(at: int, bits: int, cut: bool) -> None:
    data = bytearray(png(indices(1, 8, 40, 30), 8))
    if cut:
        del data[at % len(data) :]
    else:
        data[at % len(data)] ^= bits
    try:
        stored = store_mask(bytes(data), field(), Frame())
    except Refused:
        return
    assert stored.payload == bytes(data)


def test_masks_are_rewritten_only_where_images_are() -> None:
    assert not rewrites_masks(StoreOptions())
    assert not rewrites_masks(StoreOptions("raw"))
    assert rewrites_masks(StoreOptions("raw", resize="8x8"))
    assert rewrites_masks(StoreOptions("jpeg", orientation="apply"))
