"""Laws of `unfilter`: it never reads or writes outside what it was given. tests/codec/test_masks.py compares values."""

from __future__ import annotations

import numpy as np
import pytest

from packtrain._codec.native import extension


def test_sizes_that_do_not_fit_are_refused() -> None:
    assert extension is not None
    out = np.full((3, 4), 7, np.uint8)
    for rows, width in ((15, 4), (14, 4), (16, 4), (15, 3), (15, 0), (15, -1), (0, 4), (15, 1 << 62), (0, -1)):
        if (rows, width) != (15, 4):
            with pytest.raises(ValueError, match="one byte per pixel"):
                extension.unfilter(bytes(rows), width, out)
    assert (out == 7).all()
    extension.unfilter(bytes(15), 4, out)
    assert (out == 0).all()


def test_unknown_filters_are_refused() -> None:
    assert extension is not None
    for number in range(5, 256):
        with pytest.raises(ValueError, match="unknown filter"):
            extension.unfilter(bytes([0, 1, number, 1]), 1, np.empty((2, 1), np.uint8))
