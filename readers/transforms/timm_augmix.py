"""timm's AugMix: chains of its operations, from given random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._codec.effects.mixing import Chain, Mix, Overlay
from packtrain._codec.geometry import Operation

from .base import Transform
from .timm_augment import AugmentOperation

# Of a chain whose length is random.
_LONGEST: Final = 3
# Half of the smallest random number that is not 0.
_LEAST: Final = 2.0**-54


class TimmAugMix(Transform):
    """timm's AugMix with weights that are all equally likely (its ``alpha`` is 1).

    Args:
        operations: The operations to choose from.
        width: The number of chains.
        depth: The number of operations in each; 0 for one to three.
        blended: Blend the image with one chain's result after the other, instead of with their mean.
    """

    geometric: Final = True

    def __init__(self, operations: Sequence[AugmentOperation], width: int, depth: int, blended: bool) -> None:
        self._operations: Final = tuple(operations)
        self._width: Final = width
        self._depth: Final = depth
        self._blended: Final = blended
        # A number for its length, then one for each choice, then those of the operations.
        self._draws_of_a_chain: Final = 1 + (depth or _LONGEST) * (1 + AugmentOperation.draws)

    @property
    @override
    def draws(self) -> int:
        return 1 + self._width * (1 + self._draws_of_a_chain)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        share = np.float32(random[0])
        weights = _weights(random[1 : 1 + self._width])
        first, step = 1 + self._width, self._draws_of_a_chain
        chains = tuple(
            self._chain(width, height, random[at : at + step]) for at in range(first, first + self._width * step, step)
        )
        if self._blended:
            return (Overlay(chains, _shares(weights, share)),)
        return (Mix(chains, tuple(weights.tolist()), float(share)),)

    def _chain(self, width: int, height: int, random: Sequence[float]) -> Chain:
        depth = self._depth or 1 + int(random[0] * _LONGEST)
        most, numbers = self._depth or _LONGEST, AugmentOperation.draws
        made: Chain = ()
        for at in range(depth):
            operation = self._operations[int(random[1 + at] * len(self._operations))]
            start = 1 + most + at * numbers
            made += operation.operations(width, height, random[start : start + numbers])
        return made

    def __repr__(self) -> str:
        names = " ".join(each.effect for each in self._operations)
        blended = ", blended" if self._blended else ""
        return f"{type(self).__name__}(width={self._width}, depth={self._depth or -1}{blended}, ops={names})"


def _weights(random: Sequence[float]) -> npt.NDArray[np.float32]:
    """Positive numbers whose sum is 1, all such equally likely: Dirichlet's distribution with parameters of 1."""
    found = [-math.log1p(-max(number, _LEAST)) for number in random]
    return (np.array(found) / sum(found)).astype(np.float32)


def _shares(weights: npt.NDArray[np.float32], share: np.float32) -> tuple[float, ...]:
    """What each blend must take so that the last image has these weights, in timm's arithmetic."""
    left, shares = 1.0, list[float]()
    for weight in (weights * share)[::-1]:
        shares.append(weight / left)
        left *= 1 - shares[-1]
    return tuple(np.array(shares[::-1], np.float32).tolist())
