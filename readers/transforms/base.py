"""Transforms: functions of an image's size and some random numbers that give operations."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from packtrain._codec.geometry import Operation, apply
from packtrain._codec.pillow import is_picture

if TYPE_CHECKING:
    from PIL.Image import Image


class Transform(ABC):
    """A transform of packtrain: operations that depend on the image's size and on `draws` random numbers.

    Called with a PIL image, it draws them from torch's default generator, which a ``DataLoader`` seeds in every worker.
    """

    geometric: bool
    """True if the transform moves pixels: the image's size may change, and which part of the source is needed.

    False if it changes nothing but values.
    """
    draws: int
    """Number of random numbers that `operations` takes; the same for every image."""

    @abstractmethod
    def operations(self, width: int, height: int, random: Sequence[float]) -> tuple[Operation, ...]:
        """The operations for one image.

        Args:
            width: Width of the image in pixels.
            height: Height of the image in pixels.
            random: Uniform in [0, 1), Python floats [draws].

        Raises:
            UsageError: The transform cannot be applied to an image of this size.
        """

    def __call__(self, image: Image) -> Image:
        """Transforms a PIL image.

        Raises:
            TypeError: `image` is not a PIL image.
            UsageError: The transform cannot be applied to an image of this size.
        """
        if not is_picture(image):
            raise TypeError(f"expected a PIL image, got {type(image).__module__}.{type(image).__qualname__}")
        random: list[float] = []
        if self.draws:
            # Imported only here: a loader passes the numbers in, and needs no torch for them.
            import torch

            random = torch.rand(self.draws, dtype=torch.float64).tolist()
        width, height = image.size
        return apply(image, self.operations(width, height, random))

    def __repr__(self) -> str:
        return shown(self)


def parameters_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a class's parameters. A transform has each of them as an attribute, as torchvision's have."""
    return tuple(inspect.signature(kind).parameters)


def shown(transform: Any) -> str:
    """Return a transform as torchvision shows its own: the class and all parameters."""
    values = (f"{name}={getattr(transform, name)}" for name in parameters_of(type(transform)))
    return f"{type(transform).__name__}({', '.join(values)})"


def uniform(bounds: Sequence[float], number: float) -> float:
    """The number between two bounds that a random number in [0, 1) stands for: uniformly distributed, too."""
    low, high = bounds
    return low + (high - low) * number
