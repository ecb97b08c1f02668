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
from typing import Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.effects.colour import Brightness, Contrast, Saturation
from packtrain._codec.effects.filters import PillowBlur, Sharpness
from packtrain._codec.effects.mixing import Chain, Mix, Overlay
from packtrain._codec.effects.operation import PixelOperation
from packtrain._codec.effects.tones import AutoContrast, Equalize, Invert, Posterize, Solarize, SolarizeAdd
from packtrain._codec.effects.warps import Affine, Rotate
from packtrain._codec.geometry import Operation
from packtrain._core.overriding import override

from .base import Transform
from .choices import operations_of

# The magnitude at which an operation is as strong as timm means it to be.
_FULL: Final = 10.0
_NORMAL: Final = NormalDist()
# Half of the smallest random number that is not 0.
_LEAST: Final = 2.0**-54
_ALL_BITS: Final = 8
_BLUR: Final = (0.1, 2.0)
_LONGEST_CHAIN: Final = 3
"""Most operations in a chain of AugMix whose length is random."""


@dataclass(frozen=True, slots=True, repr=False)
class AugmentOperation(Transform):
    """One of timm's operations, which is applied with a probability and at a random magnitude.

    Its random numbers say whether it is applied, its magnitude, its sign, and the choice of a filter or a radius.

    Attributes:
        geometric: True if the effect is one of `WARPS`.
        effect: One of `EFFECTS` or `WARPS`.
        level: One of `LEVELS`; "" if the effect takes no argument.
        p: Probability that it is applied.
        magnitude: Magnitude, or its mean.
        deviation: Standard deviation of the magnitude; infinite if it is uniform from 0 to `magnitude`.
        limit: Greatest magnitude.
        fill: Colour outside the image.
        resamples: Filters for warps to choose from, see `packtrain._codec.effects.warps.Affine`.
        reach: For levels between two bounds, these. For translations, 0 and how far one of full magnitude goes.
    """

    geometric: bool
    effect: str
    level: str
    p: float
    magnitude: float
    deviation: float
    limit: float
    fill: tuple[int, ...]
    resamples: tuple[int, ...]
    reach: tuple[float, float] = (0.0, 1.0)

    draws = 4

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[PixelOperation, ...]:
        applied, strength, sign, choice = random
        if applied >= self.p:
            return ()
        argument = 0.0
        if self.level:
            share = self._magnitude(strength) / _FULL
            argument = LEVELS[self.level](share, -1 if sign > 0.5 else 1, *self.reach)
        if self.geometric:
            resample = self.resamples[int(choice * len(self.resamples))]
            return (WARPS[self.effect](argument, width, height, resample, self.fill),)
        made = EFFECTS[self.effect](argument, choice)
        return () if made is None else (made,)

    def _magnitude(self, random: float) -> float:
        magnitude = self.magnitude
        if self.deviation == math.inf:
            magnitude *= random
        elif self.deviation > 0:
            magnitude += self.deviation * _NORMAL.inv_cdf(max(random, _LEAST))
        return max(0.0, min(magnitude, self.limit))

    def __repr__(self) -> str:
        # As timm shows it, so that users find what they asked for.
        return f"{self.effect}(p={self.p}, m={self.magnitude}, mstd={self.deviation})"


class TimmRandAugment(Transform):
    """timm's RandAugment: `layers` operations, chosen at random.

    Args:
        ops: The operations to choose from.
        layers: How many are applied, one after the other.
        weights: None: each has the same probability, and may be chosen several times. Otherwise each is chosen at most
            once, with probabilities in these proportions.
    """

    def __init__(self, ops: Sequence[AugmentOperation], layers: int, weights: Sequence[float] | None = None) -> None:
        self.ops: Final = tuple(ops)
        self.layers: Final = layers
        self.weights: Final = weights
        self.geometric = any(operation.geometric for operation in ops)
        self.draws = layers * (1 + AugmentOperation.draws)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        choices = random[: self.layers]
        if self.weights is None:
            chosen = [int(number * len(self.ops)) for number in choices]
        else:
            chosen = _distinct(self.weights, choices)
        return operations_of([self.ops[at] for at in chosen], width, height, random[self.layers :])


class TimmAugMix(Transform):
    """timm's AugMix with weights that are all equally likely (its ``alpha`` is 1).

    Args:
        ops: The operations to choose from.
        width: The number of chains.
        depth: The number of operations in each; 0 for one to three.
        blended: Blend the image with one chain's result after the other, instead of with their mean.
    """

    geometric = True

    def __init__(self, ops: Sequence[AugmentOperation], width: int, depth: int, blended: bool) -> None:
        self.ops: Final = tuple(ops)
        self.width: Final = width
        self.depth: Final = depth
        self.blended: Final = blended
        # A number for its length, then one for each choice, then those of the operations.
        self._draws_of_a_chain: Final = 1 + (depth or _LONGEST_CHAIN) * (1 + AugmentOperation.draws)
        self.draws = 1 + width * (1 + self._draws_of_a_chain)

    @override
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        share = np.float32(random[0])
        weights = _weights(random[1 : 1 + self.width])
        first, step = 1 + self.width, self._draws_of_a_chain
        chains = tuple(
            self._chain(width, height, random[at : at + step]) for at in range(first, first + self.width * step, step)
        )
        if self.blended:
            return (Overlay(chains, _shares(weights, share)),)
        return (Mix(chains, tuple(weights.tolist()), float(share)),)

    def _chain(self, width: int, height: int, random: Sequence[float]) -> Chain:
        depth = self.depth or 1 + int(random[0] * _LONGEST_CHAIN)
        most, numbers = self.depth or _LONGEST_CHAIN, AugmentOperation.draws
        made: Chain = ()
        for at in range(depth):
            operation = self.ops[int(random[1 + at] * len(self.ops))]
            start = 1 + most + at * numbers
            made += operation.operations(width, height, random[start : start + numbers])
        return made


def _distinct(weights: Sequence[float], random: Sequence[float]) -> list[int]:
    """Different places, chosen one after the other by the weights of those that are left."""
    left, chosen = list(weights), list[int]()
    for number in random:
        sums = list(accumulate(left))
        chosen.append(bisect_right([each / sums[-1] for each in sums], number))
        left[chosen[-1]] = 0.0
    return chosen


def _bits(share: float) -> int:
    return int(share * 4)


def _threshold(share: float) -> int:
    return min(256, int(share * 256))


Level = Callable[[float, int, float, float], float]
"""Turns a magnitude into an argument, in timm's order of arithmetic.

It takes the share of the full magnitude, the sign, 1 or -1, and `AugmentOperation.reach`.
"""

LEVELS: Final[dict[str, Level]] = {
    "_rotate_level_to_arg": lambda share, sign, low, high: sign * (share * 30.0),
    "_enhance_level_to_arg": lambda share, sign, low, high: share * 1.8 + 0.1,
    "_enhance_increasing_level_to_arg": lambda share, sign, low, high: max(0.1, 1.0 + sign * (share * 0.9)),
    "_minmax_level_to_arg": lambda share, sign, low, high: max(low, min(high, low + (high - low) * share)),
    "_shear_level_to_arg": lambda share, sign, low, high: sign * (share * 0.3),
    "_translate_abs_level_to_arg": lambda share, sign, low, high: sign * (share * high),
    "_translate_rel_level_to_arg": lambda share, sign, low, high: sign * (share * high),
    "_posterize_level_to_arg": lambda share, sign, low, high: _bits(share),
    "_posterize_increasing_level_to_arg": lambda share, sign, low, high: 4 - _bits(share),
    "_posterize_original_level_to_arg": lambda share, sign, low, high: _bits(share) + 4,
    "_solarize_level_to_arg": lambda share, sign, low, high: _threshold(share),
    "_solarize_increasing_level_to_arg": lambda share, sign, low, high: 256 - _threshold(share),
    "_solarize_add_level_to_arg": lambda share, sign, low, high: min(128, int(share * 110)),
}


def _affine(
    resample: int, fill: tuple[int, ...], b: float = 0.0, c: float = 0.0, d: float = 0.0, f: float = 0.0
) -> Affine:
    return Affine((1.0, b, c, d, 1.0, f), resample, fill)


WARPS: Final[dict[str, Callable[[float, int, int, int, tuple[int, ...]], PixelOperation]]] = {
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
