"""Chooses a few cases of a test that has many: every value of every `parametrize`, or every pair of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

Case = Mapping[str, tuple[object, ...]]
"""The choices that each `parametrize` above a test made for it."""


def case_of(item: pytest.Function) -> Case:
    """The case that a test is, by the argument names of each `parametrize`; a fixture's parameter has its own name.

    The class that it belongs to is one, too.
    """
    left, case = dict(item.callspec.params), {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
        case[",".join(names)] = tuple(left.pop(name, None) for name in names)
    return case | {name: (value,) for name, value in left.items()} | {"class": (item.cls,)}


def covering(cases: Sequence[Case], strength: int = 1) -> set[int]:
    """The numbers of a few cases in which every value occurs, or every pair of values.

    Args:
        cases: All cases of a test. Values are compared by identity: not all of them can be hashed.
        strength: 1 for every value. 2 for every pair, which finds most of what all combinations find, in a fraction of
            the cases; those of strength 1 are among them.
    """
    values = [[(name, *map(id, value)) for name, value in sorted(case.items())] for case in cases]
    chosen = set[int]()
    for size in range(1, strength + 1):
        tuples = [set(combinations(each, size)) for each in values]
        missing = set().union(*tuples).difference(*(tuples[number] for number in chosen))
        while missing:
            best = max(range(len(tuples)), key=lambda number: len(tuples[number] & missing))
            chosen.add(best)
            missing -= tuples[best]
    return chosen
