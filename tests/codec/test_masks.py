"""Laws of masks: values as they stand in the file, moved as torchvision moves a `tv_tensors.Mask`."""

from __future__ import annotations

import struct
import zlib
from typing import Any, get_args

import numpy as np
import pytest
from helpers.support import encoded, picture
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from packtrain._codec import native
from packtrain._codec.geometry import FILTERS, Box, Crop, Flip, Operation, Pad, PadMode, Scale, size_after
from packtrain._codec.masks import Mask, decode_png, map_mask, png_header
from packtrain.errors import UsageError
from packtrain.transforms import (
    CenterCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    Resize,
)

SIDES = st.integers(1, 48)
SEEDS = st.integers(0, 2**32 - 1)
MARGINS = st.integers(0, 12)
DTYPES = st.sampled_from(["u1", "i4"])
BOXES = st.builds(Box, st.integers(-20, 50), st.integers(-20, 50), SIDES, SIDES)
CROPS = st.builds(Crop, BOXES)
FLIPS = st.builds(Flip, st.booleans())
SCALES = st.builds(Scale, SIDES, SIDES, st.sampled_from(sorted(set(FILTERS.values()))))
PADS = st.builds(Pad, MARGINS, MARGINS, MARGINS, MARGINS, st.integers(0, 255), st.sampled_from(get_args(PadMode)))
CHAINS = st.lists(CROPS | FLIPS | SCALES | PADS, max_size=5)


def random_mask(seed: int, width: int, height: int, dtype: str = "u1") -> Mask:
    most = 256 if dtype == "u1" else 1 << 16
    return np.random.default_rng(seed).integers(0, most, (height, width)).astype(dtype)


def filtered(lines: Any, filters: Any) -> bytes:
    """The rows of a PNG with one byte per pixel, filtered as https://www.w3.org/TR/png-3/#9Filters says."""
    result, above = bytearray(), [0] * lines.shape[1]
    for line, number in zip(lines.tolist(), filters, strict=True):
        result.append(number)
        for x, value in enumerate(line):
            left, corner = (line[x - 1], above[x - 1]) if x else (0, 0)
            estimate = left + above[x] - corner
            nearest = min((left, above[x], corner), key=lambda side: abs(estimate - side))
            result.append((value - (0, left, above[x], (left + above[x]) // 2, nearest)[number]) % 256)
        above = line
    return bytes(result)


def png_of(values: Any, depth: int, color: int, filters: Any = None) -> bytes:
    """A PNG file of one channel, written without Pillow."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = values.shape
    bits = (values[..., None] >> np.arange(depth - 1, -1, -1)) & 1
    lines = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    data = filtered(lines, [0] * height if filters is None else filters)
    palette = chunk(b"PLTE", bytes(range(3)) * (1 << depth)) if color == 3 else b""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            palette,
            chunk(b"IDAT", zlib.compress(data)),
            chunk(b"IEND", b""),
        )
    )


@given(
    st.sampled_from([(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (1, 3), (2, 3), (4, 3), (8, 3)]),
    st.integers(1, 20),
    st.integers(1, 9),
    SEEDS,
)
def test_values_are_those_in_the_file(form: tuple[int, int], width: int, height: int, seed: int) -> None:
    depth, color = form
    values = np.random.default_rng(seed).integers(0, 1 << depth, (height, width))
    data = png_of(values, depth, color)
    header, mask = png_header(data), decode_png(data)
    assert header == (width, height, depth, color == 3)
    assert header.dtype == ("<u2" if depth == 16 else "|u1")
    assert mask.dtype == (np.int32 if depth == 16 else np.uint8)
    np.testing.assert_array_equal(mask, values)


@pytest.mark.parametrize("with_extension", [True, False])
@given(st.sampled_from([0, 3]), SIDES, SIDES, SEEDS, st.data())
def test_rows_may_be_filtered_in_any_way(
    with_extension: bool, color: int, width: int, height: int, seed: int, data: st.DataObject
) -> None:
    values = random_mask(seed, width, height)
    filters = data.draw(st.lists(st.integers(0, 4), min_size=height, max_size=height))
    file = png_of(values, 8, color, filters)
    with pytest.MonkeyPatch.context() as patch:
        if not with_extension:
            patch.setattr(native, "extension", None)
        np.testing.assert_array_equal(decode_png(file), values, strict=True)


@given(SIDES, SIDES, SEEDS, st.data())
def test_damage_means_the_same_with_the_extension_and_without(
    width: int, height: int, seed: int, data: st.DataObject
) -> None:
    """Either the same values, or an error."""
    file = bytearray(png_of(random_mask(seed, width, height), 8, 0, [seed % 5] * height))
    place = data.draw(st.integers(0, len(file) - 1))
    file[place] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del file[place:]
    found: list[Mask | None] = []
    for extension in (native.extension, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "extension", extension)
            try:
                found.append(decode_png(bytes(file)))
            except Exception:
                found.append(None)
    ours, pillows = found
    assert (ours is None) == (pillows is None)
    if ours is not None and pillows is not None:
        np.testing.assert_array_equal(ours, pillows)


def test_colours_and_other_files_are_refused() -> None:
    for data in (encoded(picture(1), "PNG"), encoded(picture(1).convert("RGBA"), "PNG")):
        with pytest.raises(ValueError, match="one channel"):
            decode_png(data)
    for data in (encoded(picture(1, mode="L"), "JPEG"), b"", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(ValueError, match="no PNG file"):
            decode_png(data)


def test_a_mask_without_rows_is_refused() -> None:
    rows = png_of(np.zeros((1, 5), np.uint8), 8, 0)
    header = rows[12:20] + bytes(4) + rows[24:29]
    pixels = zlib.compress(b"")
    chunk = struct.pack(">I", len(pixels)) + b"IDAT" + pixels + struct.pack(">I", zlib.crc32(b"IDAT" + pixels))
    end = b"\0\0\0\0IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    with pytest.raises(OSError, match="cannot make sense"):
        decode_png(rows[:12] + header + struct.pack(">I", zlib.crc32(header)) + chunk + end)


@pytest.mark.parametrize(("depth", "colour"), [(8, 2), (16, 0), (2, 0), (8, 0)])
def test_a_second_header_is_refused(depth: int, colour: int) -> None:
    data = png_of(random_mask(1, 4, 4), 8, 0)
    body = struct.pack(">IIBBBBB", 4, 4, depth, colour, 0, 0, 0)
    second = struct.pack(">I", len(body)) + b"IHDR" + body + struct.pack(">I", zlib.crc32(b"IHDR" + body))
    with pytest.raises(ValueError, match="two PNG headers"):
        decode_png(data[:33] + second + data[33:])


def torchvisions(torchvision: Any, mask: Mask, operations: list[Operation]) -> Any:
    """The operations on a `tv_tensors.Mask`, by torchvision's functions."""
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    value = tv_tensors.Mask(torch.from_numpy(mask))
    for operation in operations:
        if isinstance(operation, Crop):
            left, top, width, height = operation.box
            value = functional.crop(value, top, left, height, width)
        elif isinstance(operation, Scale):
            value = functional.resize(value, [operation.height, operation.width], interpolation="nearest")
        elif isinstance(operation, Flip):
            value = functional.hflip(value) if operation.horizontal else functional.vflip(value)
        else:
            assert isinstance(operation, Pad)
            value = functional.pad(value, [*operation[:4]], operation.fill, operation.mode)
    assert isinstance(value, tv_tensors.Mask)
    return value.numpy()


def assume_torch_can(operations: list[Operation], width: int, height: int) -> None:
    """torch reflects no more than there is; torchvision's crop of a tensor has another size if all of it is outside."""
    for operation in operations:
        if isinstance(operation, Crop):
            left, top, wide, high = operation.box
            assume(left < width and top < height and left + wide > 0 and top + high > 0)
        if isinstance(operation, Pad) and operation.mode in ("reflect", "symmetric"):
            longest = 1 if operation.mode == "reflect" else 0
            assume(max(operation.left, operation.right) <= width - longest)
            assume(max(operation.top, operation.bottom) <= height - longest)
        width, height = operation.size_after(width, height)


@given(CHAINS, SIDES, SIDES, DTYPES, SEEDS)
@example([Pad(3, 0, 0, 0, 7), Crop(Box(-2, -2, 30, 30)), Flip(True), Pad(0, 4, 0, 1, 9)], 20, 10, "u1", 1)
@example([Pad(3, 2, 0, 0, 7), Pad(3, 4, 5, 6, 0, "symmetric"), Pad(0, 4, 2, 1, 9)], 20, 10, "u1", 1)
@settings(max_examples=2 * settings().max_examples)
def test_chains_are_torchvisions(
    torchvision: Any, operations: list[Operation], width: int, height: int, dtype: str, seed: int
) -> None:
    assume_torch_can(operations, width, height)
    mask = random_mask(seed, width, height, dtype)
    ours = map_mask(mask, operations)
    assert ours.dtype == mask.dtype
    assert ours.shape[::-1] == size_after(operations, width, height)
    np.testing.assert_array_equal(ours, torchvisions(torchvision, mask, operations))


@given(st.integers(1, 4000), st.integers(1, 4000))
@settings(max_examples=2 * settings().max_examples)
@example(500, 224)
@example(2048, 2047)
@example(4000, 3999)
def test_each_side_is_resized_as_by_torchvision(torchvision: Any, source: int, target: int) -> None:
    mask = np.arange(source, dtype=np.int32)[None]
    scale = Scale(target, 1, FILTERS["bilinear"])
    np.testing.assert_array_equal(map_mask(mask, [scale]), torchvisions(torchvision, mask, [scale]))


def test_torchvisions_own_transforms_give_the_same(torchvision: Any) -> None:
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    mask = random_mask(3, 53, 37)
    for ours, theirs in (
        (Resize(20), v2.Resize(20)),
        (Resize((20, 70)), v2.Resize((20, 70))),
        (CenterCrop((50, 21)), v2.CenterCrop((50, 21))),
        (RandomHorizontalFlip(1.0), v2.RandomHorizontalFlip(1.0)),
        (RandomVerticalFlip(1.0), v2.RandomVerticalFlip(1.0)),
    ):
        expected = theirs(tv_tensors.Mask(torch.from_numpy(mask))).numpy()
        np.testing.assert_array_equal(map_mask(mask, ours.operations(53, 37, [0.0])), expected)


def test_the_result_goes_where_it_is_wanted() -> None:
    mask, crop = random_mask(1, 20, 10), [Crop(Box(2, 3, 5, 4))]
    into = np.zeros((4, 5), np.uint8)
    assert map_mask(mask, crop, into) is into
    np.testing.assert_array_equal(into, mask[3:7, 2:7])
    for unfit in (np.zeros((5, 4), np.uint8), np.zeros((4, 5), np.int32)):
        assert map_mask(mask, crop, unfit) is not unfit
        assert not unfit.any()
    unchanged = map_mask(mask, [])
    assert unchanged is not mask
    np.testing.assert_array_equal(unchanged, mask)


@pytest.mark.parametrize("fill", [(1, 2, 3), 256, -1])
def test_a_fill_that_a_mask_cannot_hold_is_an_error(fill: Any) -> None:
    with pytest.raises(UsageError, match="for a mask"):
        map_mask(random_mask(1, 4, 4), [Pad(1, 1, 1, 1, fill)])
    assert map_mask(random_mask(1, 4, 4), [Pad(1, 1, 1, 1, (255,))])[0, 0] == 255
