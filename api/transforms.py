"""Transforms with torchvision's names, parameters and pixels that see an image before it is decoded."""

from packtrain._readers.transforms.geometric import (
    CenterCrop,
    Compose,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    Transform,
)

__all__ = [
    "CenterCrop",
    "Compose",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "Transform",
]
