"""Laws of the conversion between three and four bytes per pixel: what numpy makes of the same pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from helpers.pixels import noise
from hypothesis import given
from hypothesis import strategies as st

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

Pixels = npt.NDArray[np.uint8]


def some(seed: int, *shape: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def widened(image: Pixels, left: int, top: int, width: int, height: int) -> Pixels:
    """The oracle of `rgb_to_rgbx`."""
    inner = image[top : top + height, left : left + width]
    return np.concatenate([inner, np.full_like(inner[..., :1], 255)], -1)


def narrowed(image: object, width: int, height: int, mirrored: bool) -> Pixels:
    """The output of `rgbx_to_rgb`, between two rows that it must not touch."""
    room = np.full((height + 2, width, 3), 77, np.uint8)
    out = room[1:-1]
    assert _extension.rgbx_to_rgb(image, width, height, mirrored, out) is None
    assert (room[0] == 77).all() and (room[-1] == 77).all()
    return out


class TestWidening:
    @pytest.mark.parametrize("width", range(1, 41))
    def test_all_widths(self, width: int) -> None:
        image = some(width, 3, width, 3)
        found = _extension.rgb_to_rgbx(image, width, 0, 0, width, 3)
        assert found == widened(image, 0, 0, width, 3).tobytes()

    @given(st.data())
    def test_any_rectangle(self, data: st.DataObject) -> None:
        row, rows = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 6))
        left, top = data.draw(st.integers(0, row - 1)), data.draw(st.integers(0, rows - 1))
        width, height = data.draw(st.integers(1, row - left)), data.draw(st.integers(1, rows - top))
        image = some(row, rows, row, 3)
        # In a buffer of its own, so that a sanitiser sees reads beyond its end.
        found = _extension.rgb_to_rgbx(image.tobytes(), row, left, top, width, height)
        assert found == widened(image, left, top, width, height).tobytes()

    def test_other_objects(self) -> None:
        with pytest.raises(TypeError):
            _extension.rgb_to_rgbx("text", 1, 0, 0, 1, 1)
        with pytest.raises((BufferError, ValueError)):
            _extension.rgb_to_rgbx(some(0, 4, 6, 3)[:, ::2], 3, 0, 0, 1, 1)


@pytest.mark.parametrize("mirrored", [False, True])
class TestNarrowing:
    @pytest.mark.parametrize("width", range(1, 41))
    def test_all_widths(self, width: int, mirrored: bool) -> None:
        image = some(width, 3, width, 4)
        expected = image[:, ::-1, :3] if mirrored else image[..., :3]
        for source in (image, image.tobytes(), image.data):
            np.testing.assert_array_equal(narrowed(source, width, 3, mirrored), expected)

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX"])
    def test_images_of_pillow(self, mirrored: bool, mode: str) -> None:
        image = noise(3, 37, 11, "RGBA").convert(mode)
        expected = np.asarray(image)[..., :3]
        _, array = image.__arrow_c_array__()
        np.testing.assert_array_equal(narrowed(array, 37, 11, mirrored), expected[:, ::-1] if mirrored else expected)

    def test_images_of_pillow_of_another_kind(self, mirrored: bool) -> None:
        for image in (noise(0, 7, 4), noise(0, 7, 5, "L"), noise(0, 28, 5, "L"), noise(0, 7, 5).convert("F")):
            _, array = image.__arrow_c_array__()
            with pytest.raises(ValueError, match="4 bytes per pixel"):
                _extension.rgbx_to_rgb(array, 7, 5, mirrored, bytearray(7 * 5 * 3))

    def test_other_capsules(self, mirrored: bool) -> None:
        schema, _ = noise(0, 7, 5).__arrow_c_array__()
        with pytest.raises(ValueError, match="PyCapsule"):
            _extension.rgbx_to_rgb(schema, 7, 5, mirrored, bytearray(7 * 5 * 3))

    def test_other_objects(self, mirrored: bool) -> None:
        for out in (bytes(7 * 5 * 3), "text", np.zeros((5, 14, 3), np.uint8)[:, ::2]):
            with pytest.raises((TypeError, BufferError, ValueError)):
                _extension.rgbx_to_rgb(some(0, 5, 7, 4), 7, 5, mirrored, out)
        for image in ("text", None, some(0, 5, 14, 4)[:, ::2]):
            with pytest.raises((TypeError, BufferError, ValueError)):
                _extension.rgbx_to_rgb(image, 7, 5, mirrored, bytearray(7 * 5 * 3))
