"""A keyed bijection on [0, n): a shuffle that needs no memory.

A Feistel network permutes the smallest even number of bits that covers n. Values that fall outside [0, n) go through it
again until they fall inside (cycle walking), so the mapping remains a bijection. The round function is the finaliser of
splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). Cycle walking: Black and
Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002. The mapping is part of the on-disk contract (a plan states
only the seed) and must never change.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_ROUNDS: Final = 8
_MASK64: Final = (1 << 64) - 1


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _mix_array(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Permutation:
    """The permutation of [0, n) that belongs to `seed`.

    Args:
        n: Size of the range, at least 1, below 2**62.
        seed: Any integer; only its lowest 64 bits are used.

    >>> p = Permutation(5, seed=0)
    >>> sorted(p[i] for i in range(5))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, n: int, seed: int) -> None:
        if not 1 <= n < 1 << 62:
            raise ValueError(f"n must be in [1, 2**62), got {n}")
        self._n = n
        self._half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
        state = seed & _MASK64
        keys = []
        for _ in range(_ROUNDS):
            state = (state + 0x9E3779B97F4A7C15) & _MASK64
            keys.append(_mix(state))
        self._keys = keys

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._n:
            raise IndexError(f"{index} is outside [0, {self._n})")
        half, mask = self._half_bits, (1 << self._half_bits) - 1
        while True:
            left, right = index >> half, index & mask
            for key in self._keys:
                left, right = right, left ^ (_mix(right ^ key) & mask)
            index = left << half | right
            if index < self._n:
                return index

    def range(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Returns elements start, start + 1, ..., stop - 1 of the permutation, int64 [stop - start]."""
        if not 0 <= start <= stop <= self._n:
            raise IndexError(f"[{start}, {stop}) is outside [0, {self._n})")
        half, mask = np.uint64(self._half_bits), np.uint64((1 << self._half_bits) - 1)
        result = np.arange(start, stop, dtype=np.uint64)
        pending = np.arange(len(result))
        while len(pending):
            values = result[pending]
            left, right = values >> half, values & mask
            for key in self._keys:
                left, right = right, left ^ (_mix_array(right ^ np.uint64(key)) & mask)
            result[pending] = left << half | right
            pending = pending[result[pending] >= self._n]
        return result.astype(np.int64)


class Permutations:
    """Several permutations at once: what `Permutation` gives for each, computed together.

    Args:
        sizes: The size of the range of each, at least 1 and below 2**53, int64 [permutations].
        seeds: The seed of each, uint64 [permutations].
    """

    def __init__(self, sizes: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64]) -> None:
        self._sizes = sizes.astype(np.uint64)
        # A float64 holds these numbers exactly, and its exponent is their number of bits.
        bits = np.frexp((sizes - 1).astype(np.float64))[1]
        self._half_bits = np.maximum(1, (bits + 1) // 2).astype(np.uint64)
        steps = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._keys = _mix_array(seeds[None] + steps[:, None])

    def at(self, which: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Element ``indices[i]`` of permutation ``which[i]`` for each i; all int64 [n]."""
        result = indices.astype(np.uint64)
        pending, sizes, keys = np.arange(len(result)), self._sizes[which], self._keys[:, which]
        half = self._half_bits[which]
        mask = (np.uint64(1) << half) - np.uint64(1)
        values = result
        while len(pending):
            left, right = values >> half, values & mask
            for key in keys:
                left, right = right, left ^ (_mix_array(right ^ key) & mask)
            values = left << half | right
            result[pending] = values
            outside = values >= sizes
            pending, values, sizes, keys = pending[outside], values[outside], sizes[outside], keys[:, outside]
            half, mask = half[outside], mask[outside]
        return result.astype(np.int64)
