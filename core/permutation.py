"""A keyed bijection on [0, n): a shuffle that needs no memory.

A Feistel network permutes the smallest even number of bits that covers n. Values that fall outside [0, n) go through it
again until they fall inside (cycle walking: Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002), so
the mapping remains a bijection. The round function is the finaliser of splitmix64. The mapping is part of the on-disk
contract (a plan states only the seed) and must never change.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .keys import MASK64, STEP, finalised, finalised_arrays

_ROUNDS: Final = 8


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
        self._keys = [finalised(seed + step * STEP & MASK64) for step in range(1, _ROUNDS + 1)]

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._n:
            raise IndexError(f"{index} is outside [0, {self._n})")
        half, mask = self._half_bits, (1 << self._half_bits) - 1
        while True:
            left, right = index >> half, index & mask
            for key in self._keys:
                left, right = right, left ^ (finalised(right ^ key) & mask)
            index = left << half | right
            if index < self._n:
                return index

    def range(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Returns elements start, start + 1, ..., stop - 1 of the permutation, int64 [stop - start]."""
        if not 0 <= start <= stop <= self._n:
            raise IndexError(f"[{start}, {stop}) is outside [0, {self._n})")
        keys = np.array(self._keys, np.uint64)
        return _permuted(np.arange(start, stop, dtype=np.uint64), np.uint64(self._n), np.uint64(self._half_bits), keys)


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
        steps = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(STEP)
        self._keys = finalised_arrays(seeds[None] + steps[:, None])

    def at(self, which: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return element ``indices[i]`` of permutation ``which[i]`` for each i; all int64 [n]."""
        return _permuted(indices.astype(np.uint64), self._sizes[which], self._half_bits[which], self._keys[:, which])


def _permuted(
    values: npt.NDArray[np.uint64],
    sizes: Any,
    half_bits: Any,
    keys: npt.NDArray[np.uint64],
) -> npt.NDArray[np.int64]:
    """Return the images of `values` [n], which is overwritten.

    Args:
        values: Elements of the ranges.
        sizes: Size of the range of each, uint64 [n], or of all, a scalar.
        half_bits: Half the number of bits that cover the range, likewise.
        keys: The keys of each round, [rounds, n] or [rounds].
    """
    result, pending = values, np.arange(len(values))
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    while len(pending):
        left, right = values >> half_bits, values & mask
        for key in keys:
            left, right = right, left ^ (finalised_arrays(right ^ key) & mask)
        values = left << half_bits | right
        result[pending] = values
        outside = values >= sizes
        pending, values = pending[outside], values[outside]
        if keys.ndim > 1:
            sizes, half_bits, mask, keys = sizes[outside], half_bits[outside], mask[outside], keys[:, outside]
    return result.astype(np.int64)
