"""Hashes of texts, by which rows are split. What they are is specified for ever: docs/format-splits.md."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.native import extension
from packtrain._core.keys import STEP, finalised_arrays, mixed_arrays

_WORD: Final = 8
_AT_ONCE: Final = 1 << 15
"""As many as a processor's cache holds, with their texts."""


def key_hashes(
    offsets: npt.NDArray[np.int64], texts: npt.NDArray[np.uint8], seed: int, number: int
) -> npt.NDArray[np.uint64]:
    """The hash of each text: `keys.mixed` of the seed, the number, its length and its words, uint64 [n].

    A word is eight bytes, little-endian, of which the last one ends with zeros.

    Args:
        offsets: Where the texts begin, and where the last one ends, int64 [n + 1].
        texts: Their bytes, uint8.
        seed: Any number of 64 bits.
        number: Tells texts of one kind from those of another.
    """
    hashes = np.empty(len(offsets) - 1, np.uint64)
    if extension is not None:
        bounds = np.ascontiguousarray(offsets, np.int64)
        extension.hash_keys(bounds, np.ascontiguousarray(texts), seed, number, hashes)
        return hashes
    for start in range(0, len(hashes), _AT_ONCE):
        bounds = offsets[start : start + _AT_ONCE + 1].astype(np.int64)
        # Each word can be read as a whole, the last one, too.
        data = np.concatenate([texts[bounds[0] : bounds[-1]], np.zeros(_WORD, np.uint8)])
        hashes[start : start + _AT_ONCE] = _hashed(bounds - bounds[0], data, (seed, number))
    return hashes


def _hashed(
    bounds: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], seeds: tuple[int, int]
) -> npt.NDArray[np.uint64]:
    words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
    starts, lengths = bounds[:-1], np.diff(bounds)
    hashes = mixed_arrays(*seeds, lengths)
    for at in range(0, int(lengths.max(initial=0)), _WORD):
        there = lengths > at
        # Most texts are about as long as each other.
        rows = slice(None) if there.all() else np.flatnonzero(there)
        unused = np.maximum(at + _WORD - lengths[rows], 0).astype(np.uint64) * np.uint64(_WORD)
        word = words[starts[rows] + at] << unused >> unused
        hashes[rows] = finalised_arrays((hashes[rows] ^ word) + np.uint64(STEP))
    return hashes


def all_differ(hashes: npt.NDArray[np.uint64]) -> bool:
    """True if no two hashes, uint64 [n], are the same."""
    if extension is not None:
        return not extension.has_repeats(np.ascontiguousarray(hashes))
    ascending = np.sort(hashes)
    return not (ascending[1:] == ascending[:-1]).any()
