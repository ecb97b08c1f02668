"""Keys: integers mixed into one of 64 bits, from which orders and random numbers are made.

Every saved state of a loader relies on what these functions return for given arguments, so it must never change.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_MASK64: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def mixed(*values: int) -> int:
    """Mixes integers into one of 64 bits that depends on each of them and on their order (splitmix64 after every one).

    Only the low 64 bits of each value are used. With all values but one fixed, different values of that one give
    different results.
    """
    state = 0
    for value in values:
        state = (state ^ (value & _MASK64)) + _STEP & _MASK64
        state = (state ^ state >> 30) * _FIRST & _MASK64
        state = (state ^ state >> 27) * _SECOND & _MASK64
        state ^= state >> 31
    return state


def mixed_arrays(*values: int | npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """`mixed` for every element of its arguments, which are broadcast together; at least one must be an array.

    Returns:
        uint64, in the shape of the arrays.
    """
    shape = np.broadcast_shapes(*(np.shape(value) for value in values))
    state = np.zeros(shape, np.uint64)
    for value in values:
        bits = np.uint64(value & _MASK64) if isinstance(value, int) else value.astype(np.uint64)
        state = (state ^ bits) + np.uint64(_STEP)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
        state ^= state >> np.uint64(31)
    return state
