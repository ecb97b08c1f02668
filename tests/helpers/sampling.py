"""Which cases of a test `make test` runs when it does not run all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def covering(cases: Sequence[Mapping[str, object]]) -> set[int]:
    """The numbers of a few cases in which every value of every parameter occurs, though not every combination.

    Args:
        cases: The parameters of each case, by name. Values are compared by identity: not all of them can be hashed.
    """
    values = [{(name, id(value)) for name, value in case.items()} for case in cases]
    missing, chosen = set[tuple[str, int]]().union(*values), set[int]()
    while missing:
        best = max(range(len(values)), key=lambda number: len(values[number] & missing))
        chosen.add(best)
        missing -= values[best]
    return chosen
