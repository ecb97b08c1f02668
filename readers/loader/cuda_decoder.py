"""Decoding on a GPU: nvImageCodec, or else nvJPEG by way of torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from packtrain._codec.pillow import open_image
from packtrain._core.arguments import choice
from packtrain._core.errors import MissingDependency, UsageError

from .decoding import BatchDecoder, ImageDecoder

if TYPE_CHECKING:
    from typing_extensions import Buffer


def decode_of(decode: Literal["cpu", "cuda"], device: torch.device | None) -> Callable[[Any], Any] | None:
    """What decodes batches on the device; None: the workers decode.

    Raises:
        UsageError: `decode` is neither, or the batches do not go to a GPU.
        MissingDependency: Nothing is installed that decodes on a GPU.
    """
    if choice("decode", decode, ("cpu", "cuda")) == "cpu":
        return None
    if device is None or device.type != "cuda":
        raise UsageError("decode='cuda' needs device='cuda', where the batches then are")
    return BatchDecoder(_found(device), pillow_pixels, device)


def pillow_pixels(data: Buffer) -> torch.Tensor:
    """An image as Pillow decodes it, uint8 [height, width, 3]."""
    return torch.from_numpy(np.array(open_image(memoryview(data)).convert("RGB")))


def _found(device: torch.device) -> ImageDecoder:
    raise MissingDependency("nothing that decodes on a GPU is installed: pip install nvidia-nvimgcodec-cu12")
