"""Random erasing, torchvision's and timm's: both find rectangles in the same way, and put different things there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from packtrain._codec.geometry import Box
from packtrain._core.arguments import choice, flag, unexpected
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from . import arguments
from .base import uniform
from .tensor_steps import FinishingStep

if TYPE_CHECKING:
    import torch

_ATTEMPTS: Final = 10
# Area and ratio of each attempt, the place, and the seed of the noise.
_PER_RECTANGLE: Final = 2 * _ATTEMPTS + 3
# Noise takes its values from a table, by this many random bits each.
_NOISE_BITS: Final = 16
_PER_RAW: Final = 64 // _NOISE_BITS


class _Erasing(FinishingStep):
    """Finds the rectangles of an image in which something is replaced.

    Args:
        p: Probability that anything is replaced.
        area: Least and greatest area of all rectangles together, relative to that of the image.
        log_ratio: Least and greatest logarithm of a rectangle's height / width; it is uniform.
        count: Least and greatest number of rectangles.
    """

    def __init__(
        self, p: float, area: tuple[float, float], log_ratio: tuple[float, float], count: tuple[int, ...] = (1, 1)
    ) -> None:
        self.p: Final = arguments.probability("p", p)
        self.count: Final = count
        self._area: Final = area
        self._log_ratio: Final = log_ratio
        # The first ones decide whether anything is replaced, and how many rectangles.
        self._first: Final = 1 + (count[0] < count[1])
        self.draws = self._first + count[1] * _PER_RECTANGLE

    def rectangles(self, width: int, height: int, random: Sequence[float]) -> list[tuple[Box, float]]:
        """Return the rectangles of an image of this size, each with the seed of its noise.

        Args:
            width: Width of the image in pixels.
            height: Height of the image in pixels.
            random: The numbers that `finish` takes.
        """
        if random[0] >= self.p:
            return []
        least, most = self.count
        count = least + int(random[1] * (most - least + 1)) if least < most else least
        found = []
        for start in range(self._first, self._first + count * _PER_RECTANGLE, _PER_RECTANGLE):
            its = random[start : start + _PER_RECTANGLE]
            for attempt in range(0, 2 * _ATTEMPTS, 2):
                pixels = width * height * uniform(self._area, its[attempt]) / count
                ratio = math.exp(uniform(self._log_ratio, its[attempt + 1]))
                tall, wide = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
                # Smaller than the image on both axes; without such a rectangle, nothing is replaced.
                if tall < height and wide < width:
                    top, left = int(its[-3] * (height - tall + 1)), int(its[-2] * (width - wide + 1))
                    found.append((Box(left, top, wide, tall), its[-1]))
                    break
        return found


class RandomErasing(_Erasing):
    """Replaces a random rectangle of the image, with torchvision's parameters and distribution.

    Args:
        p: Probability that anything is replaced.
        scale: Least and greatest area of the rectangle, relative to that of the image.
        ratio: Least and greatest height / width of the rectangle; its logarithm is uniform.
        value: What it is filled with: a number, one for each channel, or ``"random"`` for normally distributed noise.
        inplace: As torchvision's; without effect.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | Literal["random"] = 0,
        inplace: bool = False,
    ) -> None:
        self.scale: Final = arguments.bounds("scale", scale, zero=True)
        if self.scale[1] > 1:
            raise unexpected("scale", scale, "(least, greatest), both from 0 to 1")
        self.ratio: Final = arguments.bounds("ratio", ratio, zero=False)
        self.value: Final = value if value == "random" else arguments.numbers("value", value)
        self.inplace: Final = flag("inplace", inplace)
        super().__init__(p, self.scale, (math.log(self.ratio[0]), math.log(self.ratio[1])))

    @override
    def finish(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        channels, height, width = image.shape
        if self.value != "random" and len(self.value) not in (1, channels):
            raise UsageError(f"value={self.value}: expected one number, or one for each of the {channels} channels")
        for rectangle, seed in self.rectangles(width, height, random):
            part = _part(image, rectangle)
            if self.value == "random":
                _fill_with_noise(part, part.shape, seed)
                continue
            # Numbers, not a tensor, which a device would have to fetch.
            values = _as(image.dtype, self.value)
            for plane, value in zip(part if len(values) > 1 else (part,), values, strict=True):
                plane.fill_(value)
        return image


class TimmRandomErasing(_Erasing):
    """Replaces random rectangles of an image that has been normalised, with timm's parameters and distribution.

    Args:
        p: Probability that anything is erased.
        area: Least and greatest area of all rectangles together, relative to that of the image.
        log_aspect: Least and greatest logarithm of a rectangle's height / width; it is uniform.
        mode: What a rectangle is filled with. ``"const"``: 0. ``"rand"``: one random colour. ``"pixel"``: a random
            colour for each pixel. Random colours are normally distributed in every channel.
        count: Least and greatest number of rectangles.

    Raises:
        UsageError: A parameter is out of its range.
    """

    def __init__(
        self,
        p: float = 0.5,
        area: Sequence[float] = (0.02, 1 / 3),
        log_aspect: tuple[float, float] = (math.log(0.3), math.log(1 / 0.3)),
        mode: str = "const",
        count: tuple[int, int] = (1, 1),
    ) -> None:
        self.area: Final = arguments.bounds("area", area, zero=True)
        self.log_aspect: Final = log_aspect
        self.mode: Final = choice("mode", mode, ("const", "rand", "pixel"))
        super().__init__(p, self.area, log_aspect, arguments.integers("count", count, (2,), least=1))

    @override
    def finish(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        channels, height, width = image.shape
        for rectangle, seed in self.rectangles(width, height, random):
            part = _part(image, rectangle)
            if self.mode == "const":
                part.zero_()
            else:
                _fill_with_noise(part, part.shape if self.mode == "pixel" else (channels, 1, 1), seed)
        return image


def _part(image: torch.Tensor, box: Box) -> torch.Tensor:
    left, top, width, height = box
    return image[:, top : top + height, left : left + width]


def _fill_with_noise(part: torch.Tensor, shape: tuple[int, ...], seed: float) -> None:
    """Fills part of an image with noise of this shape, which is repeated where it has only one row or column."""
    import torch

    # Converted here: what other devices make of negative numbers as bytes is undefined.
    part.copy_(torch.from_numpy(noise(shape, seed)).to(part.dtype))


def noise(shape: tuple[int, ...], seed: float) -> npt.NDArray[np.float32]:
    """Normally distributed numbers, always the same for one seed, a number in [0, 1).

    Saved states of loaders rely on them. So they are made of what numpy keeps stable for ever, the raw numbers of a bit
    generator: 16 bits of these choose one of as many equally likely values.
    """
    count = math.prod(shape)
    raw = np.random.Philox(key=int(seed * 2**53)).random_raw(-(-count // _PER_RAW))
    # Little-endian everywhere, so that other machines draw the same.
    found: npt.NDArray[np.float32] = _quantiles()[raw.astype("<u8", copy=False).view("<u2")[:count]]
    return found.reshape(shape)


@cache
def _quantiles() -> npt.NDArray[np.float32]:
    """The values of noise: the normal distribution in 65,536 equally likely parts, the middle of each."""
    # Imported only here: few pipelines need it.
    from statistics import NormalDist

    half = 1 << _NOISE_BITS - 1
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse(0.5 + (number + 0.5) / (2 * half)) for number in range(half)])
    # Without the tails of the outermost parts, the mean of the squares is a little less than 1.
    upper /= math.sqrt(math.fsum((upper**2).tolist()) / half)
    return np.concatenate([-upper[::-1], upper]).astype(np.float32)


def _as(dtype: torch.dtype, values: Sequence[float]) -> list[float]:
    """Values as torchvision assigns them to a tensor of this dtype: from one of torch's default dtype.

    Computed without tensors, which would be queued on a device.
    """
    import torch

    if torch.get_default_dtype() != torch.float64:
        values = [float(np.float32(value)) for value in values]
    if dtype.is_floating_point:
        return list(values)
    limits = torch.iinfo(dtype)
    return [(int(value) - limits.min) % (limits.max - limits.min + 1) + limits.min for value in values]
