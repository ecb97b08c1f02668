"""The end of a pipeline: what makes a float tensor of bytes, and what follows on tensors.

A loader leaves these steps to the device, if there is one, so that only bytes travel. Steps that change each value by
itself are one pass over the bytes, through a table that is computed with the steps themselves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from packtrain._codec.pillow import require_pillow
from packtrain._core.arguments import flag, items, unexpected
from packtrain._core.errors import UsageError

from . import arguments

if TYPE_CHECKING:
    import torch

_ATTEMPTS: Final = 10
# Noise takes its values from a table, by this many random bits each.
_NOISE_BITS: Final = 16
_PER_RAW: Final = 64 // _NOISE_BITS


class FinishingStep(ABC):
    """A step on the tensor of an image."""

    @property
    @abstractmethod
    def draws(self) -> int:
        """Number of random numbers that it takes; the same for every image."""

    @abstractmethod
    def finish(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        """Runs the step on one image.

        Args:
            image: [channels, height, width]; may be overwritten. On any device, where nothing may wait for its values.
            random: Uniform in [0, 1), Python floats [draws].

        Raises:
            UsageError: It cannot be applied to such an image.
        """

    def __call__(self, image: Any) -> torch.Tensor:
        """The step on a PIL image or a tensor, with random numbers from torch's default generator."""
        import torch

        if isinstance(image, torch.Tensor):
            pixels = image.clone()
        elif isinstance(image, require_pillow().Image):
            pixels = tensor_of(image)
        else:
            raise TypeError(
                f"expected a PIL image or a tensor, got {type(image).__module__}.{type(image).__qualname__}"
            )
        return self.finish(pixels, torch.rand(self.draws, dtype=torch.float64).tolist() if self.draws else ())


class PointwiseStep(FinishingStep):
    """A step that changes each value by itself, in a way that depends on nothing but the value and its channel."""

    draws: Final = 0

    @abstractmethod
    def convert(self, values: torch.Tensor) -> torch.Tensor:
        """Runs the step on values of any number of images, [..., channels, height, width], which it leaves as they are.

        Raises:
            UsageError: It cannot be applied to such values.
        """

    @override
    def finish(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        return self.convert(image)


class PILToTensor(PointwiseStep):
    """Makes a tensor of the image, uint8; that is what packtrain's transforms give anyway."""

    @override
    def convert(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ToImage(PILToTensor):
    """The same as `PILToTensor`: a plain tensor in place of torchvision's ``tv_tensors.Image``."""


class ToPureTensor(PILToTensor):
    """Does nothing: all tensors are plain ones."""


class _Parametric(PointwiseStep):
    """A step whose attributes are its parameters."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


class ToTensor(PILToTensor):
    """Makes floats in [0, 1] of bytes: torch's default dtype, float32 unless that was changed."""

    @override
    def convert(self, values: torch.Tensor) -> torch.Tensor:
        import torch

        if values.dtype != torch.uint8:
            raise UsageError(f"ToTensor is for bytes, but gets {values.dtype}: leave it out, or put it first")
        return values.to(torch.get_default_dtype()).div(255)


class ConvertImageDtype(_Parametric):
    """Converts to another dtype and scales: floats are in [0, 1], integers in the range of their dtype.

    As ``torchvision.transforms.ConvertImageDtype``; that of v2, and ``ToDtype(scale=True)``, round differently.

    Args:
        dtype: The dtype.

    Raises:
        UsageError: `dtype` is none.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype: Final = _dtype(dtype)

    @override
    def convert(self, values: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype
        if values.dtype == dtype:
            return values
        if values.is_floating_point():
            return _rounded(values, dtype)
        if dtype.is_floating_point:
            return values.to(dtype) / float(_largest(values.dtype))
        most, wanted = _largest(values.dtype), _largest(dtype)
        if most > wanted:
            return values.div((most + 1) // (wanted + 1), rounding_mode="floor").to(dtype)
        return values.to(dtype) * ((wanted + 1) // (most + 1))


class ToDtype(_Parametric):
    """Converts to another dtype, as ``torchvision.transforms.v2.ToDtype``.

    Args:
        dtype: The dtype.
        scale: Scale the values: floats are in [0, 1], integers in the range of their dtype.

    Raises:
        UsageError: `dtype` is none.
    """

    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        self.dtype: Final = _dtype(dtype)
        self.scale: Final = flag("scale", scale)

    @override
    def convert(self, values: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype
        if values.dtype == dtype or not self.scale:
            return values.to(dtype)
        if values.is_floating_point():
            return _rounded(values, dtype)
        if dtype.is_floating_point:
            return values.to(dtype).mul(1.0 / _largest(values.dtype))
        bits = _largest(dtype).bit_length() - _largest(values.dtype).bit_length()
        return values.bitwise_right_shift(-bits).to(dtype) if bits < 0 else values.to(dtype).bitwise_left_shift(bits)


class Normalize(_Parametric):
    """Subtracts the mean of each channel and divides by its standard deviation.

    Args:
        mean: Mean of each channel, or a list of one for all channels.
        std: Standard deviation of each channel, likewise.
        inplace: As torchvision's; without effect, since the result is always a tensor of its own.

    Raises:
        UsageError: `mean` or `std` are not numbers, or one of `std` is 0.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean: Final = _numbers("mean", mean)
        self.std: Final = _numbers("std", std)
        self.inplace: Final = flag("inplace", inplace)
        if 0 in self.std:
            raise unexpected("std", std, "numbers other than 0")

    @override
    def convert(self, values: torch.Tensor) -> torch.Tensor:
        import torch

        if not values.is_floating_point():
            raise UsageError(
                f"Normalize is for floats, but gets {values.dtype}: put ToTensor() or ToDtype in front of it"
            )
        channels = values.shape[-3]
        if not {len(self.mean), len(self.std)} <= {1, channels}:
            raise UsageError(f"mean={self.mean}, std={self.std}: the images have {channels} channels")
        mean, std = (
            torch.as_tensor(found, dtype=values.dtype).to(values.device)[:, None, None]
            for found in (self.mean, self.std)
        )
        return values.sub(mean).div_(std)


class RandomErasing(FinishingStep):
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

    # Whether at all, area and ratio of each attempt, the place, and the seed of the noise.
    draws: Final = 1 + 2 * _ATTEMPTS + 2 + 1

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | Literal["random"] = 0,
        inplace: bool = False,
    ) -> None:
        self.p: Final = arguments.probability("p", p)
        self.scale: Final = arguments.bounds("scale", scale, zero=True)
        if self.scale[1] > 1:
            raise unexpected("scale", scale, "(least, greatest), both from 0 to 1")
        self.ratio: Final = arguments.bounds("ratio", ratio, zero=False)
        self.value: Final = value if value == "random" else _numbers("value", value)
        self.inplace: Final = flag("inplace", inplace)

    def rectangle(self, width: int, height: int, random: Sequence[float]) -> tuple[int, int, int, int] | None:
        """Left, top, width and height of what is replaced in an image of this size; None if nothing is.

        Args:
            width: Width of the image in pixels.
            height: Height of the image in pixels.
            random: The numbers that `finish` takes.
        """
        if random[0] >= self.p:
            return None
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(1, 1 + 2 * _ATTEMPTS, 2):
            area = width * height * (self.scale[0] + (self.scale[1] - self.scale[0]) * random[attempt])
            ratio = math.exp(low + (high - low) * random[attempt + 1])
            tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if tall < height and wide < width:
                top, left = int(random[-3] * (height - tall + 1)), int(random[-2] * (width - wide + 1))
                return left, top, wide, tall
        return None

    @override
    def finish(self, image: torch.Tensor, random: Sequence[float]) -> torch.Tensor:
        import torch

        channels, height, width = image.shape
        if self.value != "random" and len(self.value) not in (1, channels):
            raise UsageError(f"value={self.value}: expected one number, or one for each of the {channels} channels")
        found = self.rectangle(width, height, random)
        if found is None:
            return image
        left, top, wide, tall = found
        part = image[:, top : top + tall, left : left + wide]
        if self.value == "random":
            # Converted here: what other devices make of negative numbers as bytes is undefined.
            part.copy_(torch.from_numpy(noise((channels, tall, wide), random[-1])).to(image.dtype))
        else:
            # Numbers, not a tensor, which a device would have to fetch.
            values = _as(image.dtype, self.value)
            for plane, value in zip(part if len(values) > 1 else (part,), values, strict=True):
                plane.fill_(value)
        return image

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        value = self.value if isinstance(self.value, str) or len(self.value) > 1 else self.value[0]
        return f"{type(self).__name__}(p={self.p}, scale={self.scale}, ratio={self.ratio}, value={value!r})"


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


def tensor_of(image: Any) -> torch.Tensor:
    """The pixels of a PIL image, uint8 [channels, height, width]."""
    import torch

    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)


def _dtype(dtype: torch.dtype) -> torch.dtype:
    import torch

    if not isinstance(dtype, torch.dtype):
        raise unexpected("dtype", dtype, "a torch.dtype")
    return dtype


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """One number or several, as floats."""
    expected = "a number, or one for each channel"
    try:
        found = tuple(map(float, items(name, value, expected) if isinstance(value, Iterable) else (value,)))
    except (TypeError, ValueError):
        found = ()
    if not found or isinstance(value, str):
        raise unexpected(name, value, expected)
    return found


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


def _largest(dtype: torch.dtype) -> int:
    import torch

    return torch.iinfo(dtype).max


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floats in [0, 1] as another dtype, scaled as torchvision does it."""
    import torch

    if dtype.is_floating_point:
        return values.to(dtype)
    if dtype == torch.int64 or (dtype == torch.int32 and values.dtype == torch.float32):
        raise UsageError(f"{values.dtype} cannot be converted to {dtype}, which has more digits")
    return values.mul(_largest(dtype) + 1.0 - 1e-3).to(dtype)
