"""A stand-in for Python's module `random` that gives prepared numbers, to make libraries decide as our numbers say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class Scripted:
    """Stands in for `random`; each number is uniform in [0, 1).

    Args:
        uniform: What `random` and `uniform` are made of, in order.
        whole: What `randint` is made of, in order.
        chosen: What every `choice` is made of.
    """

    def __init__(self, uniform: Iterable[float], whole: Iterable[float] = (), chosen: float = 0.0) -> None:
        self._uniform: Iterator[float] = iter(uniform)
        self._whole: Iterator[float] = iter(whole)
        self._chosen = chosen

    def random(self) -> float:
        return next(self._uniform)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * next(self._uniform)

    def randint(self, least: int, most: int) -> int:
        return least + int(next(self._whole) * (most - least + 1))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self._chosen * len(options))]
