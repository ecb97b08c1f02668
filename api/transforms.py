"""Transforms with torchvision's names, parameters and pixels that see an image before it is decoded."""

from packtrain._readers.transforms.choices import RandomApply, RandomChoice, RandomOrder
from packtrain._readers.transforms.colour import (
    RGB,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from packtrain._readers.transforms.compose import ColoursOnly, Compose, from_timm
from packtrain._readers.transforms.erasing import RandomErasing
from packtrain._readers.transforms.geometric import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from packtrain._readers.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from packtrain._readers.transforms.tensor_steps import (
    ConvertImageDtype,
    Normalize,
    PILToTensor,
    ToDtype,
    ToImage,
    ToPureTensor,
    ToTensor,
)
from packtrain._readers.transforms.views import FiveCrop, TenCrop, Views
from packtrain._readers.transforms.warps import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "RGB",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "ColoursOnly",
    "Compose",
    "ConvertImageDtype",
    "FiveCrop",
    "GaussianBlur",
    "Grayscale",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "TenCrop",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "ToTensor",
    "TrivialAugmentWide",
    "Views",
    "from_timm",
]
