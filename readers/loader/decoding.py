"""Decodes the images of a batch where the consumer wants them, and makes of each what its plan says.

A decoder turns compressed bytes into pixels on the device, each image of its own size. All that follows, crop, resize
and flips, is two multiplications with matrices for the whole batch, see `resampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..dataset.rows import is_sample
from ..transforms.undecoded import Undecoded
from .resampling import resampled

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class UndecodedImages:
    """The images of a batch, still to be decoded.

    Attributes:
        images: The images.
        shape: Height, width and channels of each result.
    """

    images: Sequence[Undecoded]
    shape: tuple[int, ...]


class ImageDecoder(Protocol):
    """Decodes whole images."""

    def decode(self, data: Sequence[Buffer]) -> Sequence[torch.Tensor | None]:
        """Decodes images to tensors on the device, uint8 [height, width, 3] each.

        Returns:
            None in place of each image that the decoder refuses.
        """


class BatchDecoder:
    """Decodes the images of a batch.

    Args:
        decoder: Decodes them.
        fallback: Decodes what that refuses, on the CPU.
        device: Where the results are.
    """

    def __init__(self, decoder: ImageDecoder, fallback: Callable[[Buffer], torch.Tensor], device: torch.device) -> None:
        self._decoder = decoder
        self._fallback = fallback
        self._device = device

    def __call__(self, batch: Any) -> Any:
        """The batch with tensors, uint8 [samples, 3, height, width] in channels_last memory, for undecoded images."""
        values = [self._decoded(value) if isinstance(value, UndecodedImages) else value for value in batch]
        return type(batch)(*values) if is_sample(batch) else type(batch)(values)

    def _decoded(self, batch: UndecodedImages) -> torch.Tensor:
        data = [image.data for image in batch.images]
        found = self._decoder.decode(data)
        pixels = [
            self._fallback(each).to(self._device) if image is None else image
            for each, image in zip(data, found, strict=True)
        ]
        return resampled(pixels, [image.plan for image in batch.images]).permute(0, 3, 1, 2)
