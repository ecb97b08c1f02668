"""Transforms with torchvision's names, parameters and pixels that see an image before it is decoded."""

from packtrain._readers.transforms.compose import Compose
from packtrain._readers.transforms.geometric import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from packtrain._readers.transforms.several_crops import FiveCrop, TenCrop
from packtrain._readers.transforms.views import Views

__all__ = [
    "CenterCrop",
    "Compose",
    "FiveCrop",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "TenCrop",
    "Views",
]
