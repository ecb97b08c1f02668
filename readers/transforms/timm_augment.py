"""timm's RandAugment, AutoAugment, 3-Augment and AugMix: operations, magnitudes and signs, from given random numbers.

An operation is known by two functions of `timm.data.auto_augment`: one that turns a magnitude into an argument, and one
that takes an image and this argument. `LEVELS` and `EFFECTS` have their counterparts under the same names.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._codec.effects.colour import Brightness, Contrast, Saturation
from packtrain._codec.effects.filters import PillowBlur, Sharpness
from packtrain._codec.effects.mixing import Chain, Mix, Overlay
from packtrain._codec.effects.operation import PixelOperation
from packtrain._codec.effects.tones import AutoContrast, Equalize, Invert, Posterize, Solarize, SolarizeAdd
from packtrain._codec.effects.warps import Affine, Rotate
from packtrain._codec.geometry import Operation

from .base import Transform

# The magnitude at which an operation is as strong as timm means it to be.
_FULL: Final = 10.0
_NORMAL: Final = NormalDist()
# Half of the smallest random number that is not 0.
_LEAST: Final = 2.0**-54
_ALL_BITS: Final = 8
_BLUR: Final = (0.1, 2.0)
_LONGEST_CHAIN: Final = 3
"""Most operations in a chain of AugMix whose length is random."""


@dataclass(frozen=True, slots=True)
class AugmentOperation:
    """One of timm's operations, which is applied with a probability and at a random magnitude.

    Attributes:
        effect: One of `EFFECTS`.
        level: One of `LEVELS`; "" if the effect takes no argument.
        p: Probability that it is applied.
        magnitude: Magnitude, or its mean.
        deviation: Standard deviation of the magnitude; infinite if it is uniform from 0 to `magnitude`.
        limit: Greatest magnitude.
        fill: Colour outside the image.
        resamples: Filters for warps to choose from, see `packtrain._codec.effects.warps.Affine`.
        reach: For levels between two bounds, these. For translations, 0 and how far one of full magnitude goes.
    """

    effect: str
    level: str
    p: float
    magnitude: float
    deviation: float
    limit: float
    fill: tuple[int, ...]
    resamples: tuple[int, ...]
    reach: tuple[float, float] = (0.0, 1.0)

    draws: ClassVar[int] = 4

    @property
    def moves(self) -> bool:
        """True if it moves pixels."""
        return self.effect in _WARPS

    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[PixelOperation, ...]:
        """Return the operation for an image, or none.

        Args:
            width: Width of the image in pixels.
            height: Height of the image in pixels.
            random: Uniform in [0, 1) [4]: whether it is applied, its magnitude, its sign, and the choice of a filter
                or a radius.
        """
        applied, strength, sign, choice = random
        if applied >= self.p:
            return ()
        negative = sign > 0.5
        argument = LEVELS[self.level](self._magnitude(strength), negative, self.reach) if self.level else 0.0
        if self.effect in _WARPS:
            resample = self.resamples[int(choice * len(self.resamples))]
            return (_WARPS[self.effect](argument, width, height, resample, self.fill),)
        made = EFFECTS[self.effect](argument, choice)
        return () if made is None else (made,)

    def _magnitude(self, random: float) -> float:
        magnitude = self.magnitude
        if self.deviation == math.inf:
            magnitude *= random
        elif self.deviation > 0:
            magnitude += self.deviation * _NORMAL.inv_cdf(max(random, _LEAST))
        return max(0.0, min(magnitude, self.limit))


class AugmentSequence(Transform):
    """A random choice of operations, one after the other; `_chosen` makes the choice.

    Args:
        operations: All that may be chosen.
        choices: Number of random numbers that the choice takes.
        most: Most operations that are applied to one image.
    """

    def __init__(self, operations: Sequence[AugmentOperation], choices: int, most: int) -> None:
        self.geometric = any(operation.moves for operation in operations)
        self._choices = choices
        self.draws = choices + most * AugmentOperation.draws

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        made: tuple[Operation, ...] = ()
        at = self._choices
        for operation in self._chosen(random[:at]):
            made += operation.operations(width, height, random[at : at + operation.draws])
            at += operation.draws
        return made

    def _chosen(self, random: Sequence[float]) -> Sequence[AugmentOperation]:
        raise NotImplementedError


class TimmRandAugment(AugmentSequence):
    """timm's RandAugment: `layers` operations, chosen at random.

    Args:
        operations: The operations to choose from.
        layers: How many are applied, one after the other.
        weights: None: each has the same probability, and may be chosen several times. Otherwise each is chosen at most
            once, with probabilities in these proportions.
    """

    def __init__(
        self, operations: Sequence[AugmentOperation], layers: int, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(operations, layers, layers)
        self._operations = tuple(operations)
        self._weights = None if weights is None else tuple(weights)

    @override
    def _chosen(self, random: Sequence[float]) -> Sequence[AugmentOperation]:
        if self._weights is None:
            count = len(self._operations)
            return [self._operations[int(number * count)] for number in random]
        return [self._operations[at] for at in _distinct(self._weights, random)]

    def __repr__(self) -> str:
        settings = dict.fromkeys(map(_settings, self._operations))
        names = " ".join(each.effect for each in self._operations)
        weighted = "" if self._weights is None else ", weighted"
        return f"{type(self).__name__}(n={self._choices}{weighted}, {' or '.join(settings)}, ops={names})"


class TimmAutoAugment(AugmentSequence):
    """timm's AutoAugment: one of several sequences of operations, each with the same probability; also 3-Augment.

    Args:
        policy: The sequences.
    """

    def __init__(self, policy: Sequence[Sequence[AugmentOperation]]) -> None:
        super().__init__([each for part in policy for each in part], 1, max(map(len, policy)))
        self._policy = tuple(tuple(part) for part in policy)

    @override
    def _chosen(self, random: Sequence[float]) -> Sequence[AugmentOperation]:
        return self._policy[int(random[0] * len(self._policy))]

    def __repr__(self) -> str:
        parts = " | ".join(" ".join(each.effect for each in part) for part in self._policy)
        return f"{type(self).__name__}({parts})"


class TimmAugMix(Transform):
    """timm's AugMix with weights that are all equally likely (its ``alpha`` is 1).

    Args:
        operations: The operations to choose from.
        width: The number of chains.
        depth: The number of operations in each; 0 for one to three.
        blended: Blend the image with one chain's result after the other, instead of with their mean.
    """

    geometric = True

    def __init__(self, operations: Sequence[AugmentOperation], width: int, depth: int, blended: bool) -> None:
        self._operations: Final = tuple(operations)
        self._width: Final = width
        self._depth: Final = depth
        self._blended: Final = blended
        # A number for its length, then one for each choice, then those of the operations.
        self._draws_of_a_chain: Final = 1 + (depth or _LONGEST_CHAIN) * (1 + AugmentOperation.draws)
        self.draws = 1 + width * (1 + self._draws_of_a_chain)

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
        depth = self._depth or 1 + int(random[0] * _LONGEST_CHAIN)
        most, numbers = self._depth or _LONGEST_CHAIN, AugmentOperation.draws
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


def _distinct(weights: Sequence[float], random: Sequence[float]) -> list[int]:
    """Different places, chosen one after the other by the weights of those that are left."""
    left, chosen = list(weights), list[int]()
    for number in random:
        sums = list(accumulate(left))
        chosen.append(bisect_right([each / sums[-1] for each in sums], number))
        left[chosen[-1]] = 0.0
    return chosen


def _settings(operation: AugmentOperation) -> str:
    # As timm shows them, so that users find what they asked for.
    return f"p={operation.p}, m={operation.magnitude}, mstd={operation.deviation}"


def _signed(value: float, negative: bool) -> float:
    return -value if negative else value


def _between(level: float, reach: tuple[float, float]) -> float:
    low, high = reach
    return max(low, min(high, low + (high - low) * (level / _FULL)))


def _bits(level: float) -> int:
    return int((level / _FULL) * 4)


def _threshold(level: float) -> int:
    return min(256, int((level / _FULL) * 256))


Level = Callable[[float, bool, tuple[float, float]], float]
"""Turns a magnitude, the sign and `AugmentOperation.reach` into an argument, in timm's order of arithmetic."""

LEVELS: Final[dict[str, Level]] = {
    "_rotate_level_to_arg": lambda level, negative, reach: _signed((level / _FULL) * 30.0, negative),
    "_enhance_level_to_arg": lambda level, negative, reach: (level / _FULL) * 1.8 + 0.1,
    "_enhance_increasing_level_to_arg": lambda level, negative, reach: max(
        0.1, 1.0 + _signed((level / _FULL) * 0.9, negative)
    ),
    "_minmax_level_to_arg": lambda level, negative, reach: _between(level, reach),
    "_shear_level_to_arg": lambda level, negative, reach: _signed((level / _FULL) * 0.3, negative),
    "_translate_abs_level_to_arg": lambda level, negative, reach: _signed((level / _FULL) * reach[1], negative),
    "_translate_rel_level_to_arg": lambda level, negative, reach: _signed((level / _FULL) * reach[1], negative),
    "_posterize_level_to_arg": lambda level, negative, reach: _bits(level),
    "_posterize_increasing_level_to_arg": lambda level, negative, reach: 4 - _bits(level),
    "_posterize_original_level_to_arg": lambda level, negative, reach: _bits(level) + 4,
    "_solarize_level_to_arg": lambda level, negative, reach: _threshold(level),
    "_solarize_increasing_level_to_arg": lambda level, negative, reach: 256 - _threshold(level),
    "_solarize_add_level_to_arg": lambda level, negative, reach: min(128, int((level / _FULL) * 110)),
}


def _affine(
    resample: int, fill: tuple[int, ...], b: float = 0.0, c: float = 0.0, d: float = 0.0, f: float = 0.0
) -> Affine:
    return Affine((1.0, b, c, d, 1.0, f), resample, fill)


_WARPS: Final[dict[str, Callable[[float, int, int, int, tuple[int, ...]], PixelOperation]]] = {
    "rotate": lambda degrees, width, height, resample, fill: Rotate(degrees, resample, fill=fill),
    "shear_x": lambda factor, width, height, resample, fill: _affine(resample, fill, b=factor),
    "shear_y": lambda factor, width, height, resample, fill: _affine(resample, fill, d=factor),
    "translate_x_abs": lambda pixels, width, height, resample, fill: _affine(resample, fill, c=pixels),
    "translate_y_abs": lambda pixels, width, height, resample, fill: _affine(resample, fill, f=pixels),
    "translate_x_rel": lambda share, width, height, resample, fill: _affine(resample, fill, c=share * width),
    "translate_y_rel": lambda share, width, height, resample, fill: _affine(resample, fill, f=share * height),
}


def _posterized(bits: float) -> PixelOperation | None:
    # Beyond a magnitude of 10 fewer than no bits are asked for.
    return None if bits >= _ALL_BITS else Posterize(max(0, int(bits)))


def _blurred(most: float, choice: float) -> PixelOperation:
    low, high = _BLUR
    return PillowBlur(low + (high * most - low) * choice)


EFFECTS: Final[dict[str, Callable[[float, float], PixelOperation | None]]] = {
    "auto_contrast": lambda argument, choice: AutoContrast(),
    "invert": lambda argument, choice: Invert(),
    "equalize": lambda argument, choice: Equalize(),
    "solarize": lambda threshold, choice: Solarize(threshold),
    "solarize_add": lambda amount, choice: SolarizeAdd(int(amount)),
    "posterize": lambda bits, choice: _posterized(bits),
    "contrast": lambda factor, choice: Contrast(factor),
    "color": lambda factor, choice: Saturation(factor),
    "brightness": lambda factor, choice: Brightness(factor),
    "sharpness": lambda factor, choice: Sharpness(factor),
    "desaturate": lambda factor, choice: Saturation(min(1.0, max(0.0, 1.0 - factor))),
    "gaussian_blur": lambda radius, choice: PillowBlur(radius),
    "gaussian_blur_rand": _blurred,
}

KNOWN_EFFECTS: Final = {*EFFECTS, *_WARPS}
"""Names of all effects of `AugmentOperation`."""


def _weights(random: Sequence[float]) -> npt.NDArray[np.float32]:
    """Positive numbers whose sum is 1, all such equally likely: Dirichlet's distribution with parameters of 1."""
    found = [-math.log1p(-max(number, _LEAST)) for number in random]
    return (np.array(found) / sum(found)).astype(np.float32)


def _shares(weights: npt.NDArray[np.float32], share: np.float32) -> tuple[float, ...]:
    """Return the share of each blend that gives the last image these weights, in timm's arithmetic."""
    left, shares = 1.0, list[float]()
    for weight in (weights * share)[::-1]:
        shares.append(weight / left)
        left *= 1 - shares[-1]
    return tuple(np.array(shares[::-1], np.float32).tolist())
