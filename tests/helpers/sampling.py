"""Which cases of a test `make test` runs when it does not run all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

Case = Mapping[str, tuple[object, ...]]
"""What each `parametrize` above a test chose for it."""


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


def covering(cases: Sequence[Case]) -> set[int]:
    """The numbers of a few cases in which every value occurs, though not every combination.

    Args:
        cases: All cases of a test. Values are compared by identity: not all of them can be hashed.
    """
    values = [{(name, *map(id, value)) for name, value in case.items()} for case in cases]
    missing, chosen = set[tuple[object, ...]]().union(*values), set[int]()
    while missing:
        best = max(range(len(values)), key=lambda number: len(values[number] & missing))
        chosen.add(best)
        missing -= values[best]
    return chosen
