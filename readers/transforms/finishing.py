"""The end of a pipeline: what makes a float tensor of bytes, and what follows on tensors.

A loader leaves these steps to the process that trains, or to its device, so that only bytes travel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
            image: [channels, height, width]; may be overwritten.
            random: Uniform in [0, 1), Python floats [draws].
        """
