"""Decides which side of a split each row goes to. docs/format-splits.md specifies it for ever.

A *group* is all rows that have a key in common, and what is known of a group is the hash of its key. The sides are
filled one after the other, each from the groups that are still on none, in the order of their hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._core.versions import NO_SIDE, WHOLE, Split

from .key_hashes import all_differ

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Sides = npt.NDArray[np.uint8]
_FIRST_TRY: Final = 1.25
_NEXT_TRY: Final = 4


class JoinedSides(Exception):
    """A group has rows on two sides.

    Attributes:
        rows: Two rows on different sides, and a row on none that joins them; -1 if there is none.
    """

    def __init__(self, one: int, other: int, joining: int) -> None:
        super().__init__(one, other, joining)
        self.rows: Final = one, other, joining


@dataclass(frozen=True)
class _Share:
    """A side that is filled.

    Attributes:
        side: Its number.
        part: How much of the rows it gets that no side before it has: so much
        whole: of so much.
    """

    side: int
    part: int
    whole: int


def sides_of(keys: Sequence[Hashes], classes: Counts, recorded: Sides, split: Split) -> Sides:
    """The side of each row, uint8 [rows]; a row that is on one stays there.

    Args:
        keys: For each kind of key, the hash of each row's, uint64 [rows].
        classes: The class of each row, int64 [rows], from 0; all 0 to count them together.
        recorded: The side that each row is on, `NO_SIDE` for none, uint8 [rows].
        split: How to split.

    Raises:
        JoinedSides: A group has rows on two sides.
    """
    groups = keys[0] if len(keys) == 1 else _joined(keys)
    single = all_differ(groups)
    sides = recorded.copy() if single else _inherited(groups, recorded)
    new = np.flatnonzero(sides == NO_SIDE)
    if len(new) == len(sides):
        return _filled(groups, classes, single, classes, sides, split)
    if len(new):
        sides[new] = _filled(groups[new], classes[new], single, classes, sides, split)
    return sides


def _joined(keys: Sequence[Hashes]) -> Hashes:
    """For each row the least hash of all keys that it is connected with, by rows that have a key in common."""
    values, nodes = np.unique(np.concatenate(keys), return_inverse=True)
    ends = nodes.reshape(len(keys), -1)
    least = np.arange(len(values))
    while True:
        before = least.copy()
        of_row = least[ends].min(axis=0)
        for end in ends:
            # Of the tree that a key is in, the root is joined.
            np.minimum.at(least, before[end], of_row)
        while not np.array_equal(shorter := least[least], least):
            least = shorter
        if np.array_equal(least, before):
            of_rows: Hashes = values[least[ends[0]]]
            return of_rows


def _inherited(groups: Hashes, recorded: Sides) -> Sides:
    """The sides of all rows that have one, or of whose group another row has one."""
    values, numbers = np.unique(groups, return_inverse=True)
    known = np.flatnonzero(recorded != NO_SIDE)
    of_group = np.full(len(values), NO_SIDE, np.uint8)
    of_group[numbers[known]] = recorded[known]
    sides = of_group[numbers]
    other = known[sides[known] != recorded[known]]
    if len(other):
        in_group = np.flatnonzero(numbers == numbers[other[0]])
        one = in_group[(recorded[in_group] != NO_SIDE) & (recorded[in_group] != recorded[other[0]])][0]
        joining = in_group[recorded[in_group] == NO_SIDE]
        first, second = sorted((int(one), int(other[0])))
        raise JoinedSides(first, second, int(joining[0]) if len(joining) else -1)
    return sides


def _filled(groups: Hashes, classes: Counts, single: bool, all_classes: Counts, sides: Sides, split: Split) -> Sides:
    """The sides of the rows that are on none yet.

    Args:
        groups: The hashes of their groups.
        classes: Their classes.
        single: True if no two rows are in the same group.
        all_classes: The classes of all rows, int64 [rows].
        sides: The sides of all rows.
        split: How to split.
    """
    shared = np.zeros(len(groups), bool)
    if not single:
        _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        shared = sizes[numbers] > 1
    shares, rest = _shares(split)
    count = int(all_classes.max()) + 1
    held = np.zeros((len(split.names), count), np.int64)
    if len(classes) < len(all_classes):
        for side in range(len(held)):
            held[side] = np.bincount(all_classes[sides == side], minlength=count)
    free = np.bincount(classes, minlength=count)
    first = np.full(count, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, classes, groups)
    # Of a class without groups of several rows, the rows with the lowest hashes are taken.
    by_group = np.zeros(count, bool)
    by_group[classes[shared]] = True
    chosen = np.full(len(groups), rest, np.uint8)
    grouped = np.flatnonzero(by_group[classes]) if by_group.any() else np.empty(0, np.int64)
    pool = _groups_of(groups[grouped], classes[grouped])
    bounds = [np.zeros(count, np.int64)]
    for share in shares:
        left = free + held[[each.side for each in shares[shares.index(share) :]] + [rest]].sum(axis=0)
        room = np.maximum(free - (0 if split.folds else held[rest] == 0), 0)
        need = _needed(share, left, held[share.side], room, first)
        taken = np.where(by_group, 0, need)
        bounds.append(bounds[-1] + taken)
        found, pool = _taken_groups(pool, np.where(by_group, need, 0), room)
        rows = grouped[np.isin(groups[grouped], np.array(found, np.uint64))]
        chosen[rows] = share.side
        taken += np.bincount(classes[rows], minlength=count)
        held[share.side] += taken
        free -= taken
    rows, ranks = _lowest(groups, classes, bounds[-1])
    for share, start, stop in zip(shares, bounds, bounds[1:], strict=False):
        of_class = classes[rows]
        chosen[rows[(ranks >= start[of_class]) & (ranks < stop[of_class])]] = share.side
    return chosen


def _shares(split: Split) -> tuple[list[_Share], int]:
    """The sides that are filled, in order, and the one that gets the rest."""
    if split.folds:
        return [_Share(fold, 1, split.folds - fold) for fold in range(split.folds - 1)], split.folds - 1
    return [_Share(1, split.val, WHOLE), _Share(2, split.test, WHOLE - split.val)], 0


def _needed(share: _Share, rows: Counts, held: Counts, room: Counts, first: Hashes) -> Counts:
    """The number of further rows of each class that a side is to get; all int64 [classes], `first` uint64 [classes].

    Args:
        share: The side.
        rows: Rows of each class that are on no earlier side.
        held: Those of them that are on this one.
        room: How many more may be taken.
        first: The lowest hash of a row of each class that is on no side.
    """
    least, remainder = np.divmod(rows * share.part, share.whole)
    quota = np.maximum(least, held)
    seats = (2 * int(rows.sum()) * share.part + share.whole) // (2 * share.whole) - int(quota.sum())
    able = np.flatnonzero((remainder > 0) & (held <= least) & (room > least - held))
    ordered = able[np.lexsort((able, first[able], -remainder[able]))]
    quota[ordered[: max(seats, 0)]] += 1
    return np.minimum(quota - held, room)


_Groups = list[tuple[int, list[tuple[int, int]]]]
"""Hash, and how many rows of each class."""


def _groups_of(groups: Hashes, classes: Counts) -> _Groups:
    """The groups of some rows, by their hashes."""
    order = np.lexsort((classes, groups))
    groups, classes = groups[order], classes[order]
    starts = np.ones(len(groups), bool)
    starts[1:] = (groups[1:] != groups[:-1]) | (classes[1:] != classes[:-1])
    begins = np.flatnonzero(starts)
    found: _Groups = []
    counts = np.diff(begins, append=len(groups)).tolist()
    for group, of_class, rows in zip(groups[begins].tolist(), classes[begins].tolist(), counts, strict=True):
        if not found or found[-1][0] != group:
            found.append((group, []))
        found[-1][1].append((of_class, rows))
    return found


def _taken_groups(pool: _Groups, needed: Counts, most: Counts) -> tuple[list[int], _Groups]:
    """The hashes of the groups that bring a side nearer to what it needs, and the other groups.

    Args:
        pool: The groups, by their hashes.
        needed: Rows of each class that it needs, int64 [classes].
        most: How many of each may be taken.
    """
    need, room, wanting = needed.tolist(), most.tolist(), int(np.count_nonzero(needed))
    taken: list[int] = []
    left: _Groups = []
    for at, (group, counts) in enumerate(pool):
        if wanting <= 0:
            return taken, left + pool[at:]
        nearer = sum(abs(need[each]) - abs(need[each] - rows) for each, rows in counts)
        if nearer <= 0 or any(rows > room[each] for each, rows in counts):
            left.append((group, counts))
            continue
        taken.append(group)
        for each, rows in counts:
            wanting -= need[each] > 0 >= need[each] - rows
            need[each] -= rows
            room[each] -= rows
    return taken, left


def _lowest(hashes: Hashes, classes: Counts, wanted: Counts) -> tuple[Counts, Counts]:
    """So many rows of each class with the lowest hashes, which differ; and the place of each in its class, from 0."""
    rows, ranks = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    there = np.bincount(classes, minlength=len(wanted))
    waiting = wanted > 0
    short = np.uint16 if len(wanted) <= 1 << 16 else np.int64
    part = _FIRST_TRY * wanted.sum() / max(len(hashes), 1)
    while waiting.any():
        # Most rows have higher hashes than any that is taken, and are never sorted.
        some = waiting[classes]
        if part < 1:
            some &= hashes < np.uint64(part * 2**64)
        found = np.flatnonzero(some)
        found = found[np.argsort(hashes[found])]
        # numpy sorts short numbers in a time that grows with their count alone.
        found = found[np.argsort(classes[found].astype(short), kind="stable")]
        of_class = classes[found]
        counts = np.bincount(of_class, minlength=len(wanted))
        rank = np.arange(len(found)) - (np.cumsum(counts) - counts)[of_class]
        ready = waiting & ((counts >= wanted) | (counts == there))
        taken = ready[of_class] & (rank < wanted[of_class])
        rows.append(found[taken])
        ranks.append(rank[taken])
        waiting &= ~ready
        part *= _NEXT_TRY
    return np.concatenate(rows), np.concatenate(ranks)
