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


@pytest.mark.parametrize(
    ("image", "table", "size", "why"),
    [
        (some(0, 5, 7), some(0, 3, 256, dtype=np.uint32), 105, "dense rows"),
        (some(0, 5, 14, 3)[:, ::2], some(0, 3, 256, dtype=np.uint32), 105, "dense rows"),
        (some(0, 5, 7, 3)[..., ::-1], some(0, 3, 256, dtype=np.uint32), 105, "dense rows"),
        (some(0, 5, 7, 0), some(0, 3, 256, dtype=np.uint32), 105, "dense rows"),
        (some(0, 5, 7, 3), some(0, 3, 256), 105, "table"),
        (some(0, 5, 7, 3), some(0, 3, 255, dtype=np.uint32), 105, "table"),
        (some(0, 5, 7, 3), some(0, 1, 256, dtype=np.uint32), 105, "table"),
        (some(0, 5, 7, 3), some(0, 3, 256, dtype=np.uint32), 104, "output has a different size"),
        (some(0, 5, 7, 3), some(0, 3, 256, dtype=np.uint32), 106, "output has a different size"),
        (some(0, 5, 7, 3), some(0, 3, 256, dtype=np.uint32), 0, "output has a different size"),
    ],
)
@pytest.mark.parametrize("planes", [False, True])
def test_what_is_refused(image: Any, table: Any, size: int, why: str, planes: bool) -> None:
    with pytest.raises(ValueError, match=why):
        _extension.lookup(image, table, planes, np.empty(size, np.uint32))


def test_unaligned_numbers_are_refused() -> None:
    image, table, room = some(0, 5, 7, 3), some(0, 3, 256, dtype=np.uint32), bytearray(4 * 105 + 1)
    offset = 1 if np.frombuffer(room, np.uint8).ctypes.data % 4 == 0 else 0
    with pytest.raises(ValueError, match="not aligned"):
        _extension.lookup(image, table, True, memoryview(room)[offset : offset + 4 * 105])
