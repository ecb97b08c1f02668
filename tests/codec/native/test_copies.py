"""Laws of all that copies pixels and entries of columns: numpy makes the same of them, and nothing else is written."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.pixels import noise
from hypothesis import given
from hypothesis import strategies as st

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")


def some(seed: int, *shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def framed(offset: int, shape: tuple[int, ...], dtype: Any, fill: Any) -> Any:
    """Returns what `fill` writes into memory at any address; it must not touch what lies beside it."""
    size = int(np.prod(shape))
    room = np.full(size + 64, 77, dtype)
    assert fill(room[offset : offset + size]) is None
    assert (room[:offset] == 77).all() and (room[offset + size :] == 77).all()
    return room[offset : offset + size].reshape(shape)


@given(st.data())
def test_pixels(data: st.DataObject) -> None:
    channels, mirrored = data.draw(st.sampled_from([(1, False), (3, False), (3, True), (4, False)]))
    width, height, past_caches = data.draw(st.tuples(st.integers(1, 70), st.integers(1, 5), st.booleans()))
    around, offset = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 31))
    image = some(width, height + 1, width + around, channels)[1:, around:]
    found = framed(offset, image.shape, np.uint8, partial(_extension.copy_pixels, image, mirrored, past_caches))
    np.testing.assert_array_equal(found, image[:, ::-1] if mirrored else image)


@given(st.data())
def test_numbers_of_a_table(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.uint16, np.uint32, np.uint64]))
    height, width, channels = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 5)))
    planes, around, offset = data.draw(st.booleans()), data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    image = some(width, height + 1, width + around, channels)[1:, around:]
    table = some(height, channels, 256, dtype=dtype)
    expected = np.stack([table[channel][image[..., channel]] for channel in range(channels)], axis=0 if planes else -1)
    found = framed(offset, expected.shape, dtype, partial(_extension.lookup, image, table, planes))
    np.testing.assert_array_equal(found, expected)


@given(
    data=st.data(),
    kind=st.sampled_from(["|u1", "<i2", "<u4", "<i8", "<f4"]),
    shape=st.sampled_from([(), (3,)]),
    sizes=st.lists(st.integers(1, 50), max_size=6),
)
def test_rows(data: st.DataObject, kind: str, shape: tuple[int, ...], sizes: list[int]) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    columns = [random.integers(0, 100, (size, *shape)).astype(kind) for size in sizes]
    chosen = [np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=9)), np.int64) for size in sizes]
    counts = np.array([len(rows) for rows in chosen], np.int64)
    rows = np.concatenate([np.empty(0, np.int64), *chosen])
    out = np.empty((len(rows), *shape), kind)
    _extension.take_rows(columns, counts, rows, out)
    expected = [column[rows] for column, rows in zip(columns, chosen, strict=True)]
    assert out.tobytes() == b"".join(each.tobytes() for each in expected)


@given(st.data())
def test_any_rectangle_with_a_fourth_byte(data: st.DataObject) -> None:
    row, rows = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 6))
    left, top = data.draw(st.integers(0, row - 1)), data.draw(st.integers(0, rows - 1))
    width, height = data.draw(st.integers(1, row - left)), data.draw(st.integers(1, rows - top))
    image = some(row, rows, row, 3)
    # In a buffer of its own, so that a sanitiser sees reads beyond its end.
    found = _extension.rgb_to_rgbx(image.tobytes(), row, left, top, width, height)
    inner = image[top : top + height, left : left + width]
    assert found == np.dstack([inner, np.full_like(inner[..., :1], 255)]).tobytes()


@pytest.mark.parametrize("mirrored", [False, True])
class TestWithoutTheFourthByte:
    @pytest.mark.parametrize("width", range(1, 41))
    def test_all_widths(self, width: int, mirrored: bool) -> None:
        image = some(width, 3, width, 4)
        expected = image[:, ::-1, :3] if mirrored else image[..., :3]
        for source in (image, image.tobytes(), image.data):
            found = framed(width, expected.shape, np.uint8, partial(_extension.rgbx_to_rgb, source, width, 3, mirrored))
            np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX"])
    def test_images_of_pillow(self, mirrored: bool, mode: str) -> None:
        image = noise(3, 37, 11, "RGBA").convert(mode)
        expected, out = np.asarray(image)[..., :3], np.empty((11, 37, 3), np.uint8)
        _, array = image.__arrow_c_array__()
        _extension.rgbx_to_rgb(array, 37, 11, mirrored, out)
        np.testing.assert_array_equal(out, expected[:, ::-1] if mirrored else expected)

    def test_capsules_of_another_kind(self, mirrored: bool) -> None:
        schema, _ = noise(0, 7, 5).__arrow_c_array__()
        with pytest.raises(ValueError, match="PyCapsule"):
            _extension.rgbx_to_rgb(schema, 7, 5, mirrored, bytearray(7 * 5 * 3))
        for image in (noise(0, 7, 4), noise(0, 7, 5, "L"), noise(0, 28, 5, "L"), noise(0, 7, 5).convert("F")):
            _, array = image.__arrow_c_array__()
            with pytest.raises(ValueError, match="4 bytes per pixel"):
                _extension.rgbx_to_rgb(array, 7, 5, mirrored, bytearray(7 * 5 * 3))


def test_what_is_no_memory_is_refused() -> None:
    for image in ("text", None, some(0, 5, 14, 4)[:, ::2]):
        with pytest.raises((TypeError, BufferError, ValueError)):
            _extension.rgbx_to_rgb(image, 7, 5, False, bytearray(7 * 5 * 3))
        with pytest.raises((TypeError, BufferError, ValueError)):
            _extension.rgb_to_rgbx(image, 3, 0, 0, 1, 1)
