"""The header of an `.npy` file. We write version 1.0 where we can: 128 bytes, or 64 more as often as it takes.

numpy's own writer has changed its padding between releases, so files that must be reproducible byte for byte cannot
depend on it. Its reader hands the text to Python's parser, which before Python 3.11.9 and 3.12.3 raises SystemError now
and then when several threads parse at once (https://github.com/python/cpython/issues/106905).
Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import functools
import math
import re
from typing import Final, NamedTuple

import numpy as np

from .manifest import HEADER_BYTES
from .typed import MOST

LONGEST_HEADER: Final = 10_000
"""Longer headers are refused, as by numpy."""
_STEP: Final = 64
_MOST_SHORT: Final = (1 << 16) - 2 * _STEP
_MAGIC: Final = b"\x93NUMPY"
# Width in bytes of the field that says how long the header is, by the version of the format.
_LENGTHS: Final = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
_SIZE: Final = "(?:0|[1-9][0-9]{0,18})"
_DESCRIPTION: Final = re.compile(
    r"\{'descr': '([<>|][a-z][0-9]{1,2})', 'fortran_order': (True|False), "
    rf"'shape': \(({_SIZE}, ?|{_SIZE}(?:, ?{_SIZE})+,?|)\), ?\}} *\n"
)


class NpyHeader(NamedTuple):
    """The header of an array of numbers.

    Attributes:
        dtype: Their type, of either byte order.
        fortran: True if the first size varies fastest.
        shape: Shape of the array.
        bytes: Length of the header, and so where the values begin.
    """

    dtype: np.dtype[np.generic]
    fortran: bool
    shape: tuple[int, ...]
    bytes: int


def parse_npy_header(head: bytes | memoryview) -> NpyHeader:
    """Parses the header of an array of numbers, spelt as numpy and other common writers spell it.

    Args:
        head: The first `LONGEST_HEADER` bytes of the file or more of it, or all of it.

    Raises:
        ValueError: It is no `.npy` file, or its header says something else.
    """
    width = _LENGTHS.get(bytes(head[6:8])) if bytes(head[:6]) == _MAGIC else None
    if width is None:
        raise ValueError(f"it is no .npy file; it begins with {bytes(head[:16])!r}")
    start = 8 + width
    end = start + int.from_bytes(head[8:start], "little")
    if end > min(len(head), LONGEST_HEADER):
        raise ValueError(f"its .npy header is said to end at byte {end}")
    return NpyHeader(*_described(bytes(head[start:end])), end)


@functools.lru_cache(maxsize=1024)
def _described(header: bytes) -> tuple[np.dtype[np.generic], bool, tuple[int, ...]]:
    found = _DESCRIPTION.fullmatch(header.decode("latin-1"))
    if found is None:
        raise ValueError(f"its .npy header is {header[:200]!r}")
    name, fortran, sizes = found.groups()
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    try:
        dtype: np.dtype[np.generic] = np.dtype(name)
    except TypeError as error:
        raise ValueError(f"its .npy header names the type {name!r}") from error
    # numpy makes no array of larger ones, not even without a value.
    if dtype.itemsize * math.prod(max(size, 1) for size in shape) > MOST:
        raise ValueError(f"its .npy header says shape {list(shape)}, which is too large")
    return dtype, fortran == "True", shape


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
