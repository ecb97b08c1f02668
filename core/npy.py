"""The header of an `.npy` file, version 1.0, always 128 bytes long.

numpy's own writer has changed its padding between releases, so files that must be reproducible byte for byte cannot
depend on it. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import functools
from typing import Final

HEADER_BYTES: Final = 128


@functools.lru_cache(maxsize=1024)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Returns the header of a C-ordered array.

    Args:
        dtype: numpy type string, such as ``"<i8"`` or ``"|u1"``.
        shape: Shape of the array.

    >>> len(npy_header("<i8", (10, 3)))
    128
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    room = HEADER_BYTES - 10
    if len(text) >= room:
        raise ValueError(f"shape {shape} does not fit a {HEADER_BYTES}-byte .npy header")
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"
