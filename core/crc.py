"""Combines the crc32c of parts into the crc32c of the whole, so that the parts can be read in any order."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Castagnoli's polynomial without its highest term, with reflected bits: x^0 is the highest bit, as in any crc32c.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31
_X_TO_THE_8TH: Final = 1 << 23


def combine(first: int, second: int, second_bytes: int) -> int:
    """Returns the checksum of two strings one after the other.

    The method is that of zlib's ``crc32_combine`` by Mark Adler. The second string shifts the remainder of the first by
    its length, which is a multiplication modulo the polynomial. The inversions at start and end of a crc32c cancel out.

    Args:
        first: crc32c of the first string.
        second: crc32c of the second string.
        second_bytes: Length of the second string in bytes.

    Returns:
        crc32c of the first string followed by the second.
    """
    return _multiply(_shift(second_bytes), first) ^ second


@lru_cache(maxsize=64)  # all pieces of a file except the last have the same length
def _shift(count: int) -> int:
    power, square = _ONE, _X_TO_THE_8TH
    while count:
        if count & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        count >>= 1
    return power


def _multiply(a: int, b: int) -> int:
    product = 0
    bit = _ONE
    while bit:
        if a & bit:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
        bit >>= 1
    return product
