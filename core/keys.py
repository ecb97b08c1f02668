"""Keys: integers mixed into one of 64 bits, from which orders and random numbers are made.

The generator is splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). Plans on
disk and every saved state of a loader rely on what these functions return, so that must never change.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

MASK64: Final = (1 << 64) - 1
STEP: Final = 0x9E3779B97F4A7C15
"""The number that splitmix64 adds to its state before each number that it gives."""
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def finalised(state: int) -> int:
    """Return the number that splitmix64 makes of a state; both are below 2**64."""
    state = (state ^ state >> 30) * _FIRST & MASK64
    state = (state ^ state >> 27) * _SECOND & MASK64
    return state ^ state >> 31


def finalised_arrays(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return `finalised` of every element."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))


def mixed(*values: int) -> int:
    """Mix integers into one of 64 bits that depends on each of them and on their order.

    Only the low 64 bits of each value are used. With all values but one fixed, different values of that one give
    different results.
    """
    state = 0
    for value in values:
        state = finalised((state ^ (value & MASK64)) + STEP & MASK64)
    return state


def mixed_arrays(*values: int | npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return `mixed` for every element of the arguments, which are broadcast together; one must be an array."""
    state = np.zeros(np.broadcast_shapes(*(np.shape(value) for value in values)), np.uint64)
    for value in values:
        bits = np.uint64(value & MASK64) if isinstance(value, int) else value.astype(np.uint64)
        state = finalised_arrays((state ^ bits) + np.uint64(STEP))
    return state
