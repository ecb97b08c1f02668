"""The crc32c of a whole from the crc32c of its parts, so that parts can be read in any order."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Castagnoli's polynomial without its highest term, bits reflected: x^0 is the highest bit, as in every crc32c.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31
_X_TO_THE_8TH: Final = 1 << 23


def combine(first: int, second: int, second_bytes: int) -> int:
    """Checksum of two strings one after the other.

    As zlib's ``crc32_combine`` by Mark Adler: what follows shifts the first remainder by so many bytes, which is a
    multiplication modulo the polynomial; the inversions at start and end of a crc32c cancel out.

    Args:
        first: crc32c of the first string.
        second: crc32c of the second string.
        second_bytes: Length of the second string.

    Returns:
        crc32c of the first string followed by the second.
    """
    return _multiply(_shift(second_bytes), first) ^ second


@lru_cache(maxsize=64)  # pieces of a file are all of one length, but for the last
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
