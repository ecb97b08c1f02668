"""The header of an `.npy` file, usually version 1.0: 128 bytes, or 64 more as often as it takes.

numpy's own writer has changed its padding between releases, so files that must be reproducible byte for byte cannot
depend on it. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

HEADER_BYTES: Final = 128
"""Length of nearly every header: of all whose shape takes fewer than some 60 characters."""
_STEP: Final = 64
_MOST_SHORT: Final = (1 << 16) - 2 * _STEP


@functools.lru_cache(maxsize=1024)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Returns the header of a C-ordered array.

    Args:
        dtype: numpy type string, such as ``"<i8"`` or ``"|u1"``.
        shape: Shape of the array.

    >>> len(npy_header("<i8", (10, 3))), len(npy_header("<c16", (1 << 40,) * 8))
    (128, 192)
    """
    return _header(repr(dtype), shape)


@functools.lru_cache(maxsize=1024)
def table_header(dtype: np.dtype[np.void], rows: int) -> bytes:
    """Returns the header of an array of rows with named columns, [rows]; in version 2.0 if it needs 64 KiB or more.

    >>> table_header(np.dtype([("number", "<i8"), ("label", "<f4")], align=True), 3)[10:94]
    b"{'descr': [('number', '<i8'), ('label', '<f4'), ('', '|V4')], 'fortran_order': False"
    """
    return _header(repr(dtype.descr), (rows,))


def _header(described: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': {described}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    width = 2 if len(text) < _MOST_SHORT else 4
    start = 8 + width
    # Magic, version and length come before the text, and a line feed ends it.
    size = max(HEADER_BYTES, -(-(len(text) + start + 1) // _STEP) * _STEP)
    version = b"\x01\x00" if width == 2 else b"\x02\x00"
    return b"\x93NUMPY" + version + (size - start).to_bytes(width, "little") + text.ljust(size - start - 1) + b"\n"
