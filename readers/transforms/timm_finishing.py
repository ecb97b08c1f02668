"""timm's random erasing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._core.arguments import choice

from . import arguments
from .finishing import FinishingStep

if TYPE_CHECKING:
    import torch

_ATTEMPTS: Final = 10
# Whether anything is erased, and how many rectangles.
_COMMON: Final = 2
# Area and ratio of each attempt, the place, and the seed of the noise.
_PER_RECTANGLE: Final = 2 * _ATTEMPTS + 3


class Erased(NamedTuple):
    """A rectangle that is erased, in pixels, and the seed of its noise, a number in [0, 1)."""

    top: int
    left: int
    height: int
    width: int
    seed: float


class TimmRandomErasing(FinishingStep):
    """Replaces random rectangles of an image that has been normalised.

    Args:
        p: Probability that anything is erased.
        area: Least and greatest area of all rectangles together, relative to that of the image.
        log_aspect: Least and greatest logarithm of a rectangle's height / width; it is uniform.
        mode: ``"const"``: by 0. ``"rand"``: each by a colour of its own, normally distributed in every channel.
            ``"pixel"``: each pixel and channel by a number of its own, normally distributed.
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
        self.p: Final = arguments.probability("p", p)
        self.area: Final = arguments.bounds("area", area, zero=True)
        self.log_aspect: Final = log_aspect
        self.mode: Final = choice("mode", mode, ("const", "rand", "pixel"))
        self.count: Final = arguments.integers("count", count, (2,), least=1)

    @property
    @override
    def draws(self) -> int:
        return _COMMON + self.count[1] * _PER_RECTANGLE

    @override
    def finish(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        channels, height, width = image.shape
        for top, left, tall, wide, seed in self.rectangles(width, height, random):
            part = image[:, top : top + tall, left : left + wide]
            if self.mode == "const":
                part.zero_()
            else:
                shape = (channels, tall, wide) if self.mode == "pixel" else (channels, 1, 1)
                part.copy_(part.new_tensor(noise(shape, seed)).expand(part.shape))
        return image

    def rectangles(self, width: int, height: int, random: Sequence[float]) -> list[Erased]:
        """What is erased of an image of `width` x `height` pixels.

        Args:
            width: Width of the image in pixels.
            height: Height of the image in pixels.
            random: The numbers that `finish` takes.
        """
        if random[0] >= self.p:
            return []
        least, most = self.count
        count = least + int(random[1] * (most - least + 1))
        starts = range(_COMMON, _COMMON + count * _PER_RECTANGLE, _PER_RECTANGLE)
        found = (self._rectangle(width, height, count, random[start : start + _PER_RECTANGLE]) for start in starts)
        return [rectangle for rectangle in found if rectangle is not None]

    def _rectangle(self, width: int, height: int, count: int, random: Sequence[float]) -> Erased | None:
        (least, most), (low, high) = self.area, self.log_aspect
        for attempt in range(0, 2 * _ATTEMPTS, 2):
            area = (least + (most - least) * random[attempt]) * (width * height) / count
            aspect = math.exp(low + (high - low) * random[attempt + 1])
            tall, wide = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if wide < width and tall < height:
                top, left = int(random[-3] * (height - tall + 1)), int(random[-2] * (width - wide + 1))
                return Erased(top, left, tall, wide, random[-1])
        return None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p={self.p}, mode={self.mode}, count={self.count})"


def noise(shape: tuple[int, ...], seed: float) -> npt.NDArray[np.float32]:
    """Normally distributed numbers, always the same for one seed, a number in [0, 1).

    Saved states of loaders rely on them. So they are made of what numpy keeps stable for ever, the raw numbers of a bit
    generator, by the transformation of Box and Muller.
    """
    count = math.prod(shape)
    pairs = (count + 1) // 2
    raw = np.random.Philox(key=int(seed * 2**53)).random_raw(2 * pairs).reshape(2, pairs)
    uniform = (raw >> np.uint64(11)) * 2.0**-53
    # 1 minus a number in [0, 1) is never 0.
    radius, angle = np.sqrt(-2.0 * np.log(1.0 - uniform[0])), 2.0 * math.pi * uniform[1]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].reshape(shape).astype(np.float32)
