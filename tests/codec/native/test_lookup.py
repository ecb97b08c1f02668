"""Laws of looking pixels up: each byte becomes the number of its channel's table, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

_extension = pytest.importorskip("packtrain._codec.native._extension", reason="packtrain's C extension is not built")

TYPES = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def some(seed: int, *shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@given(st.data())
def test_any_rectangle_at_any_address(data: st.DataObject) -> None:
    dtype = TYPES[data.draw(st.sampled_from(sorted(TYPES)))]
    height, width, channels = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    planes, around, offset = data.draw(st.booleans()), data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    image, table = (
        some(width, height + 1, width + around, channels)[1:, around:],
        some(height, channels, 256, dtype=dtype),
    )
    room = np.full(height * width * channels + 20, 77, dtype)
    end = len(room) - 20 + offset
    assert _extension.lookup(image, table, planes, room[offset:end]) is None
    expected = np.stack([table[channel][image[..., channel]] for channel in range(channels)], axis=0 if planes else -1)
    np.testing.assert_array_equal(room[offset:end].reshape(expected.shape), expected)
    assert (room[:offset] == 77).all() and (room[end:] == 77).all()
