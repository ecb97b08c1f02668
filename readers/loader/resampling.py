"""Crop, antialiased resize and flips of a batch of images of different sizes, as multiplications with matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from packtrain._codec.image_plan import ImagePlan


def resampled(images: Sequence[torch.Tensor], plans: Sequence[ImagePlan]) -> torch.Tensor:
    """Crops, resizes and flips each image as its plan says.

    Args:
        images: uint8 [height, width, 3], each of its own size, all on one device.
        plans: What becomes of each. All results have one size.

    Returns:
        uint8 [images, height, width, 3].
    """
    return torch.stack([_resampled(image, plan) for image, plan in zip(images, plans, strict=True)])


def _resampled(image: torch.Tensor, plan: ImagePlan) -> torch.Tensor:
    left, top, width, height = plan.box
    assert plan.window is None
    pixels = image[top : top + height, left : left + width]
    if plan.resize is not None:
        values = pixels.permute(2, 0, 1)[None].float()
        size = plan.resize[1::-1]
        values = F.interpolate(values, size, mode="bilinear", antialias=True)
        pixels = values.round_().clamp_(0, 255).to(torch.uint8)[0].permute(1, 2, 0)
    if plan.mirrored:
        pixels = pixels.flip(1)
    return pixels.flip(0) if plan.rest else pixels
