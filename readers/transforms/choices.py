"""Transforms that apply others at random: some of them, or all in a random order."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

from packtrain._codec.geometry import Operation, size_after
from packtrain._core.arguments import items, number, unexpected
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from . import arguments
from .base import Transform, parameters_of


class Chain(Transform):
    """Transforms one after the other, as a single one."""

    def __init__(self, transforms: Iterable[Transform]) -> None:
        self.transforms: Final = tuple(transforms)
        self.geometric = any(transform.geometric for transform in self.transforms)
        self.draws = sum(transform.draws for transform in self.transforms)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        return operations_of(self.transforms, width, height, random)

    @override
    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.transforms))}]"


class _Choice(Chain):
    """A choice among several transforms.

    Args:
        transforms: packtrain's transforms, and lists or `Compose` of them.

    Raises:
        UsageError: There are none, or one of them is not packtrain's.
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        given = items("transforms", transforms, "a list of transforms")
        if not given:
            raise UsageError(f"{type(self).__name__} needs at least one transform")
        super().__init__(map(self._single, given))

    def _single(self, given: Any) -> Transform:
        if isinstance(given, Transform):
            return given
        # A `Compose`, which cannot be imported here, as it takes these transforms itself.
        parts = getattr(given, "given", given)
        if isinstance(parts, list | tuple):
            return joined([*map(self._single, parts)])
        name = type(self).__name__
        raise UsageError(
            f"{name}: {given!r} is not one of packtrain's transforms: take {name} from torchvision.transforms, which "
            "calls any others"
        )

    @override
    def __repr__(self) -> str:
        options = [f", {name}={getattr(self, name)}" for name in parameters_of(type(self))[1:]]
        return f"{type(self).__name__}({super().__repr__()}{''.join(options)})"


class RandomApply(_Choice):
    """Applies all of `transforms`, one after the other, with probability `p`; otherwise none.

    Args:
        transforms: packtrain's transforms, and lists or `Compose` of them.
        p: The probability.

    Raises:
        UsageError: There are no transforms, one of them is not packtrain's, or `p` is not a probability.
    """

    def __init__(self, transforms: Iterable[Any], p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p: Final = arguments.probability("p", p)
        self.draws += 1

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        return super().operations(width, height, random[1:]) if random[0] < self.p else ()


class RandomChoice(_Choice):
    """Applies one of `transforms`.

    Args:
        transforms: packtrain's transforms, and lists or `Compose` of them, of which each counts as one.
        p: Weight of each, in any unit; None for equal ones.

    Raises:
        UsageError: There are no transforms, one of them is not packtrain's, or `p` are not their weights.
    """

    def __init__(self, transforms: Iterable[Any], p: Sequence[float] | None = None) -> None:
        super().__init__(transforms)
        self.p: Final = p
        count = len(self.transforms)
        expected = f"a weight, 0 or more, for each of the {count} transforms, not all of them 0"
        weights = [number("p", weight, 0, 1e300, expected) for weight in items("p", p or [1.0] * count, expected)]
        if len(weights) != count or not sum(weights) > 0:
            raise unexpected("p", p, expected)
        total = sum(weights)
        # A rounded sum must not leave a gap below 1.
        last = max(at for at, weight in enumerate(weights) if weight)
        self._bounds: Final = [bound / total for bound in accumulate(weights)][:last]
        # Only one of them takes numbers.
        self.draws = 1 + max(transform.draws for transform in self.transforms)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        chosen = self.transforms[bisect(self._bounds, random[0])]
        return chosen.operations(width, height, random[1 : 1 + chosen.draws])


class RandomOrder(_Choice):
    """Applies all of `transforms` in a random order.

    Args:
        transforms: packtrain's transforms, and lists or `Compose` of them, of which each counts as one.

    Raises:
        UsageError: There are no transforms, or one of them is not packtrain's.
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        super().__init__(transforms)
        self.draws += len(self.transforms)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        order = permutation(random[: len(self.transforms)])
        return operations_of([self.transforms[at] for at in order], width, height, random[len(order) :])


def joined(transforms: Sequence[Transform]) -> Transform:
    """Transforms one after the other, as a single one."""
    return transforms[0] if len(transforms) == 1 else Chain(transforms)


def permutation(random: Sequence[float]) -> list[int]:
    """A random order of the numbers from 0 on, as many as there are random numbers; every order is equally likely."""
    return sorted(range(len(random)), key=random.__getitem__)


def operations_of(
    transforms: Iterable[Transform], width: int, height: int, random: Sequence[float]
) -> tuple[Operation, ...]:
    """The operations of transforms one after the other; takes and raises what `Transform.operations` does.

    Each takes its random numbers in turn.
    """
    done: tuple[Operation, ...] = ()
    for transform in transforms:
        operations = transform.operations(width, height, random[: transform.draws])
        if transform.geometric:
            width, height = size_after(operations, width, height)
        random = random[transform.draws :]
        done += operations
    return done
