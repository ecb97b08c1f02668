"""Finds images that look alike, among any number of them: by buckets of parts of their hashes, then by correlation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from .hashing import SIDE, VIEWS, Greys, View, hashes, thumbs

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

DISTANCE: Final = 10
"""Most bits of 64 that two hashes may differ in."""
CORRELATION: Final = 0.85
"""The least likeness of the thumbnails of two images."""
_PARTS: Final = 4
_PART_BITS: Final = 16
_REACHES: Final = (1, 0)
"""The most bits of a part that may differ. Two hashes of at most ``4 * reach + 3`` different bits have such a part."""
_MOST_CANDIDATES: Final = 4_000_000_000
"""Pairs of images in common buckets of one view: some minutes."""
_AT_ONCE: Final = 1 << 20


def groups_of_equals(digests: npt.NDArray[np.uint64]) -> Numbers:
    """Number each image by the first one with the same digest, uint64 [images, 2]: int64 [images]."""
    keys = np.ascontiguousarray(digests).view([("high", "<u8"), ("low", "<u8")])[:, 0]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return first[group]


def groups_of_alikes(greys: Greys, on_view: Callable[[int, int], None]) -> tuple[Numbers, int | None]:
    """Number each image by the first one of those that look like it, or like one that does.

    Args:
        greys: uint8 [images, SIDE, SIDE].
        on_view: Called with the number of the view that is compared next, from 1, and that of all.

    Returns:
        int64 [images], and the number of bits up to which all pairs were compared: those of more bits, up to
        `DISTANCE`, were found in part. It is None if there were too many pairs to compare in some view.
    """
    # Those of the same bytes look alike, however many there are.
    first, same = _equal(greys)
    groups, bits = _groups_of_different(greys[first], on_view)
    return first[groups][same], bits


def _equal(greys: Greys) -> tuple[Numbers, Numbers]:
    """Number the first ones of those that are the same, and for each image, which of these it equals."""
    flat = np.ascontiguousarray(greys).reshape(len(greys), SIDE * SIDE)
    _, first, same = np.unique(flat.view(f"V{flat.shape[1]}")[:, 0], return_index=True, return_inverse=True)
    places = np.argsort(first)
    ranks = np.empty_like(places)
    ranks[places] = np.arange(len(places))
    return first[places], ranks[same]


def _groups_of_different(greys: Greys, on_view: Callable[[int, int], None]) -> tuple[Numbers, int | None]:
    groups = np.arange(len(greys))
    whole, whole_thumbs = hashes(greys), thumbs(greys)
    bits: int | None = _bits(_REACHES[0])
    for number, (views, view_thumbs) in enumerate(_all_views(greys), 1):
        on_view(number, len(VIEWS))
        reach = None
        for reach in _REACHES:
            if _candidates(views, whole, reach) <= _MOST_CANDIDATES:
                break
        else:
            return groups, None
        bits = min(bits or 0, _bits(reach))
        for one, other in _close(views, whole, reach):
            # Those that are in one group already need not be compared.
            new = groups[one] != groups[other]
            one, other = one[new], other[new]
            alike = np.einsum("ij,ij->i", view_thumbs[one], whole_thumbs[other]) >= CORRELATION
            groups = _joined(groups, one[alike], other[alike])
    return groups, bits


def _all_views(greys: Greys) -> Iterator[tuple[Hashes, npt.NDArray[np.float32]]]:
    """Yield the hashes and thumbs of each view; a thread makes those of the next one meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        upcoming = None
        for view in VIEWS:
            now, upcoming = upcoming, pool.submit(_seen_as, greys, view)
            if now is not None:
                yield now.result()
        assert upcoming is not None, "there are views"
        yield upcoming.result()


def _seen_as(greys: Greys, view: View) -> tuple[Hashes, npt.NDArray[np.float32]]:
    return hashes(greys, view), thumbs(greys, view)


def _bits(reach: int) -> int:
    return _PARTS * (reach + 1) - 1


def _masks(reach: int) -> list[int]:
    """The changes that a part of a hash may have: every number of `_PART_BITS` with at most `reach` ones."""
    ones = [1 << bit for bit in range(_PART_BITS)]
    return [sum(chosen) for count in range(reach + 1) for chosen in combinations(ones, count)]


def _parts(found: Hashes) -> npt.NDArray[np.uint16]:
    """The parts of each hash, uint16 [parts, images]: of neighbouring bits, which say least about each other."""
    return np.ascontiguousarray(found.astype("<u8").view("<u2").reshape(-1, _PARTS).T).astype(np.uint16)


def _candidates(views: Hashes, whole: Hashes, reach: int) -> int:
    """The number of pairs that `_close` would compare."""
    size, keys = 1 << _PART_BITS, np.arange(1 << _PART_BITS)
    total = 0
    for ours, theirs in zip(_parts(views), _parts(whole), strict=True):
        counts, others = np.bincount(ours, minlength=size), np.bincount(theirs, minlength=size)
        total += sum(int(counts @ others[keys ^ mask]) for mask in _masks(reach))
    return total


def _close(views: Hashes, whole: Hashes, reach: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pairs of images, some more than once: the view of the first has nearly the hash of the second."""
    for ours, theirs in zip(_parts(views), _parts(whole), strict=True):
        by_key, order = np.argsort(ours, kind="stable"), np.argsort(theirs, kind="stable")
        starts = np.searchsorted(theirs[order], np.arange((1 << _PART_BITS) + 1))
        keys, mine, others = ours[by_key].astype(np.int64), views[by_key], whole[order]
        for mask in _masks(reach):
            first = starts[keys ^ mask]
            counts = starts[(keys ^ mask) + 1] - first
            for begin, end in _blocks(counts):
                count = counts[begin:end]
                one = np.repeat(np.arange(begin, end), count)
                other = np.arange(len(one)) + np.repeat(first[begin:end] - (np.cumsum(count) - count), count)
                near = ones(mine[one] ^ others[other]) <= DISTANCE
                one, other = by_key[one[near]], order[other[near]]
                yield one, other


def _blocks(counts: Numbers) -> Iterator[tuple[int, int]]:
    """Yield where blocks begin and end whose counts add up to `_AT_ONCE` or a little more."""
    total = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = total[begin - 1] if begin else 0
        end = min(len(counts), int(np.searchsorted(total, before + _AT_ONCE)) + 1)
        yield begin, end
        begin = end


def ones(numbers: Hashes) -> npt.NDArray[np.uint8]:
    """Count the bits of each number that are set."""
    # numpy has it since version 2.
    if hasattr(np, "bitwise_count"):
        counts: npt.NDArray[np.uint8] = np.bitwise_count(numbers)
    else:
        single = np.unpackbits(np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8), axis=1)
        counts = single.sum(axis=1, dtype=np.uint8)
    return counts


def _joined(groups: Numbers, one: Numbers, other: Numbers) -> Numbers:
    """The groups once those of each pair are one."""
    while len(one):
        least = np.minimum(groups[one], groups[other])
        changed = groups.copy()
        np.minimum.at(changed, groups[one], least)
        np.minimum.at(changed, groups[other], least)
        groups = changed
        while (further := groups[groups]) is not groups and not np.array_equal(further, groups):
            groups = further
        apart = groups[one] != groups[other]
        one, other = one[apart], other[apart]
    return groups
