"""Laws of copying pixels: the same pixels in the same place, mirrored or not, and nothing beside them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")


def some(seed: int, *shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@given(st.data())
def test_any_rectangle_at_any_address(data: st.DataObject) -> None:
    channels, mirrored = data.draw(st.sampled_from([(1, False), (3, False), (3, True), (4, False)]))
    width, height, past_caches = (
        data.draw(st.integers(1, 70)),
        data.draw(st.integers(1, 5)),
        data.draw(st.booleans()),
    )
    around, offset = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 31))
    image = some(width, height + 1, width + around, channels)[1:, around:]
    room = np.full(height * width * channels + 64, 77, np.uint8)
    end = len(room) - 64 + offset
    assert _extension.copy_pixels(image, mirrored, past_caches, room[offset:end]) is None
    expected = image[:, ::-1] if mirrored else image
    np.testing.assert_array_equal(room[offset:end].reshape(image.shape), expected)
    assert (room[:offset] == 77).all() and (room[end:] == 77).all()


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize(("offset", "is_refused"), [(-105, False), (-104, True), (0, True), (104, True), (105, False)])
def test_an_image_is_not_copied_into_its_own_memory(offset: int, is_refused: bool, step: int) -> None:
    room = some(0, 315)
    image, out = room[105:210].reshape(5, 7, 3)[::step], room[105 + offset : 210 + offset]
    expected = image.tobytes()
    for past_caches in (False, True):
        if is_refused:
            with pytest.raises(ValueError, match="overlap"):
                _extension.copy_pixels(image, False, past_caches, out)
        else:
            _extension.copy_pixels(image, False, past_caches, out)
            assert out.tobytes() == expected
