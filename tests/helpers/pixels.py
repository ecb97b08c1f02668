"""Pictures in which a change of any pixel shows, and their exact comparison."""

from __future__ import annotations

import numpy as np
from PIL import Image


def noise(seed: int, width: int, height: int, mode: str = "RGB") -> Image.Image:
    """An image of independent random pixels; `mode` must have one byte per letter of its name."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, len(mode)), np.uint8)
    return Image.frombytes(mode, (width, height), values.tobytes())


def assert_same(ours: Image.Image, theirs: Image.Image) -> None:
    """Asserts that two images have the same mode, size and pixels."""
    assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
