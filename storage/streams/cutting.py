"""Bounds of the chunks of a dataset, the same for a cache and for a copy on a local disk.

The bounds of chunks are in the state of a loader, so this must never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

ENOUGH: Final = 12 << 20
"""A chunk ends with the record that makes it this large."""
MOST: Final = 16 << 20
"""A chunk is not larger than this, unless it is one record."""
APART: Final = 16 << 10
"""Bytes between two records of a chunk that are stored with them: headers of tar, pages of LMDB. More is left out."""


def space_of(offsets: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return the bytes that the records of a shard take up in files of chunks.

    Headers of tar count, since they are stored, too: without them, chunks of tiny records would be many times larger.

    Args:
        offsets: Where the fields of each record begin in the shard, [fields, records].
        sizes: Their sizes; 0 or less for those that are missing, [fields, records].

    Returns:
        For each record its fields, and before each of these what is stored with it, int64 [records].
    """
    start, size = (np.asarray(values, np.int64).ravel() for values in (offsets, sizes))
    there = np.flatnonzero(size > 0)
    order = there[np.argsort(start[there], kind="stable")]
    before = np.zeros(len(order), np.int64)
    before[1:] = start[order][1:] - (start + size)[order][:-1]
    before[(before < 0) | (before > APART)] = 0
    space = np.zeros(len(size), np.int64)
    space[order] = size[order] + before
    total: npt.NDArray[np.int64] = space.reshape(sizes.shape).sum(0)
    return total


def chunk_starts(sizes: npt.NDArray[np.integer]) -> list[int]:
    """Cuts the records of a shard into chunks of whole records, of 12 to 16 MiB if the records are small.

    Args:
        sizes: How many bytes each record takes up by `space_of`, in the order of the places, [records].

    Returns:
        The number of the first record of each chunk.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = list[int]()
    start = begin = before = 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, begin + ENOUGH)) + 1
        if stop > len(sizes) or (ends[stop - 1] > begin + MOST and stop - 1 > start):
            stop -= 1
        rest = stop == len(sizes) and starts and ends[-1] <= before + MOST
        if not rest:
            starts.append(start)
            before = begin
        start, begin = stop, int(ends[stop - 1])
    return starts


def chunk_bounds(sizes: Iterable[npt.NDArray[np.integer]]) -> npt.NDArray[np.int64]:
    """The bounds of all chunks of a dataset: places, int64 [chunks + 1].

    Args:
        sizes: For each shard, how many bytes each of its records takes up by `space_of`, in the order of the places.
    """
    pieces, first = [], 0
    for each in sizes:
        pieces.append(np.array(chunk_starts(each), np.int64) + first)
        first += len(each)
    return np.concatenate([*pieces, np.array([first], np.int64)])
