"""The header of an `.npy` file, version 1.0: 128 bytes, or 64 more as often as it takes.

numpy's own writer has changed its padding between releases, so files that must be reproducible byte for byte cannot
depend on it. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import functools
from typing import Final

HEADER_BYTES: Final = 128
"""Length of nearly every header: of all whose shape takes fewer than some 60 characters."""
_STEP: Final = 64


@functools.lru_cache(maxsize=1024)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Returns the header of a C-ordered array.

    Args:
        dtype: numpy type string, such as ``"<i8"`` or ``"|u1"``.
        shape: Shape of the array.

    >>> len(npy_header("<i8", (10, 3))), len(npy_header("<c16", (1 << 40,) * 8))
    (128, 192)
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    # Magic, version and length come before the text, and a line feed ends it.
    size = max(HEADER_BYTES, -(-(len(text) + 11) // _STEP) * _STEP)
    return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.ljust(size - 11) + b"\n"
