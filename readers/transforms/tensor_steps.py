"""The end of a pipeline: what makes a float tensor of bytes, and what follows on tensors.

A loader leaves these steps to the device, if there is one, so that only bytes travel. Steps that change each value by
itself are one pass over the bytes, through a table that is computed with the steps themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from packtrain._codec.pillow import is_picture
from packtrain._core.arguments import flag, unexpected
from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from .arguments import for_unit_range, numbers
from .base import shown

if TYPE_CHECKING:
    import torch


class FinishingStep(ABC):
    """A step on the tensor of an image."""

    draws: int
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
        elif is_picture(image):
            pixels = tensor_of(image)
        else:
            raise TypeError(
                f"expected a PIL image or a tensor, got {type(image).__module__}.{type(image).__qualname__}"
            )
        return self.finish(pixels, torch.rand(self.draws, dtype=torch.float64).tolist() if self.draws else ())

    # A step is nothing but its class and its parameters, which are its attributes.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return shown(self)


class PointwiseStep(FinishingStep):
    """A step that changes each value by itself, in a way that depends on nothing but the value and its channel."""

    draws = 0

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


class ToImage(PILToTensor):
    """The same as `PILToTensor`: a plain tensor in place of torchvision's ``tv_tensors.Image``."""


class ToPureTensor(PILToTensor):
    """Does nothing: all tensors are plain ones."""


class ToTensor(PILToTensor):
    """Makes floats in [0, 1] of bytes: torch's default dtype, float32 unless that was changed."""

    @override
    def convert(self, values: torch.Tensor) -> torch.Tensor:
        import torch

        if values.dtype != torch.uint8:
            raise UsageError(f"ToTensor is for bytes, but gets {values.dtype}: leave it out, or put it first")
        return values.to(torch.get_default_dtype()).div(255)


class ConvertImageDtype(PointwiseStep):
    """Converts to another dtype and scales: floats are in [0, 1], integers in the range of their dtype.

    As ``torchvision.transforms.ConvertImageDtype``; that of v2, and ``ToDtype(scale=True)``, round differently.

    Args:
        dtype: The dtype.

    Raises:
        UsageError: `dtype` is none, or has no range to scale to.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype: Final = _scalable(_dtype(dtype))

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


class ToDtype(PointwiseStep):
    """Converts to another dtype, as ``torchvision.transforms.v2.ToDtype``.

    Args:
        dtype: The dtype.
        scale: Scale the values: floats are in [0, 1], integers in the range of their dtype.

    Raises:
        UsageError: `dtype` is none, or has no range to scale to.
    """

    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        self.scale: Final = flag("scale", scale)
        self.dtype: Final = _scalable(_dtype(dtype)) if scale else _dtype(dtype)

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


class Normalize(PointwiseStep):
    """Subtracts the mean of each channel and divides by its standard deviation.

    Args:
        mean: Mean of each channel, or a list of one for all channels.
        std: Standard deviation of each channel, likewise.
        inplace: As torchvision's; without effect, since the result is always a tensor of its own.

    Raises:
        UsageError: `mean` or `std` are not numbers, or one of `std` is 0.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean: Final = numbers("mean", mean)
        self.std: Final = numbers("std", std)
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
            raise UsageError(
                f"mean={self.mean}, std={self.std}: the images have {channels} channel{'s' * (channels != 1)}"
            )
        mean, std = (
            torch.as_tensor(found, dtype=values.dtype).to(values.device)[:, None, None]
            for found in (self.mean, self.std)
        )
        return values.sub(mean).div_(std)


def check_statistics(steps: Iterable[object]) -> None:
    """Checks that images in [0, 1] are not normalised with the statistics of bytes.

    Args:
        steps: A pipeline from the beginning. Anything but a `FinishingStep` may give values of any range.

    Raises:
        UsageError: They are.
    """
    scaling: FinishingStep | None = None
    for step in steps:
        if isinstance(step, Normalize):
            if scaling is not None:
                name = type(scaling).__name__
                for_unit_range(step.mean, step.std, f"{name} has scaled the images to [0, 1] before Normalize")
            scaling = None
        elif isinstance(step, ToTensor | ConvertImageDtype) or (isinstance(step, ToDtype) and step.scale):
            scaling = step if isinstance(step, ToTensor) or step.dtype.is_floating_point else None
        elif not isinstance(step, FinishingStep):
            scaling = None


def tensor_of(image: Any) -> torch.Tensor:
    """The pixels of a PIL image, uint8 [channels, height, width]."""
    import torch

    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)


def _dtype(dtype: torch.dtype) -> torch.dtype:
    import torch

    if not isinstance(dtype, torch.dtype):
        raise unexpected("dtype", dtype, "a torch.dtype")
    return dtype


def _scalable(dtype: torch.dtype) -> torch.dtype:
    """The dtype, if images can be scaled to its range."""
    if not dtype.is_floating_point:
        try:
            _largest(dtype)
        except TypeError:
            raise unexpected("dtype", dtype, "one of floats or integers, as values are scaled to its range") from None
    return dtype


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
