"""Makes torchvision decide as given numbers say, instead of drawing its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest
import torch


@contextmanager
def dice(numbers: Sequence[float]) -> Iterator[list[float]]:
    """While it is open, whatever torchvision draws is made of `numbers`, uniform in [0, 1), in their order.

    Yields the numbers that are left.
    """
    left = list(numbers)

    def taken(size: Any) -> list[float]:
        count = 1
        for side in (size,) if isinstance(size, int) else size:
            count *= side
        return [left.pop(0) for _ in range(count)]

    def rand(size: Any) -> torch.Tensor:
        shape = (size,) if isinstance(size, int) else size
        return torch.tensor(taken(size), dtype=torch.float64).reshape(shape)

    def randint(low: int, *arguments: Any, size: Any = None, dtype: Any = None) -> torch.Tensor:
        high, size = (
            arguments if len(arguments) == 2 else (*arguments, size) if size is not None else (None, *arguments)
        )
        low, high = (0, low) if high is None else (low, high)
        return torch.tensor([low + int(number * (high - low)) for number in taken(size)]).reshape(size)

    def uniform(tensor: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
        return torch.tensor([float(low) + (float(high) - float(low)) * left.pop(0)], dtype=torch.float64)

    def order(count: int) -> list[int]:
        keys = taken(count)
        return sorted(range(count), key=keys.__getitem__)

    def chosen(weights: Sequence[float]) -> int:
        place, bounds = left.pop(0) * sum(weights), list(accumulate(weights))
        return next(at for at, bound in enumerate(bounds) if place < bound)

    def shuffle(items: list[int]) -> None:
        items[:] = [items[at] for at in order(len(items))]

    def choices(items: Sequence[Any], weights: Sequence[float] | None = None) -> list[Any]:
        return [items[chosen(weights or [1] * len(items))]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", rand)
        patch.setattr(torch, "randint", randint)
        patch.setattr(torch, "randperm", lambda count: torch.tensor(order(count)))
        patch.setattr(torch, "multinomial", lambda weights, count: torch.tensor(chosen(weights.tolist())))
        patch.setattr(torch.Tensor, "uniform_", uniform)
        patch.setattr(random, "shuffle", shuffle)
        patch.setattr(random, "choices", choices)
        yield left
