"""Pictures in which every pixel shows, and their comparison bit for bit."""

from __future__ import annotations

import numpy as np
from PIL import Image


def noise(seed: int, width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Independent pixels, of a mode with one byte for each letter of its name."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, len(mode)), np.uint8)
    return Image.frombytes(mode, (width, height), values.tobytes())


def assert_same(ours: Image.Image, theirs: Image.Image) -> None:
    """Two images have the same mode, size and pixels."""
    assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
