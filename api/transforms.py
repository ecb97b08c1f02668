"""Transforms with torchvision's names, parameters and pixels that see an image before it is decoded."""

from packtrain._readers.transforms.choices import RandomApply as RandomApply
from packtrain._readers.transforms.choices import RandomChoice as RandomChoice
from packtrain._readers.transforms.choices import RandomOrder as RandomOrder
from packtrain._readers.transforms.colour import RGB as RGB
from packtrain._readers.transforms.colour import ColorJitter as ColorJitter
from packtrain._readers.transforms.colour import GaussianBlur as GaussianBlur
from packtrain._readers.transforms.colour import Grayscale as Grayscale
from packtrain._readers.transforms.colour import RandomAdjustSharpness as RandomAdjustSharpness
from packtrain._readers.transforms.colour import RandomAutocontrast as RandomAutocontrast
from packtrain._readers.transforms.colour import RandomEqualize as RandomEqualize
from packtrain._readers.transforms.colour import RandomGrayscale as RandomGrayscale
from packtrain._readers.transforms.colour import RandomInvert as RandomInvert
from packtrain._readers.transforms.colour import RandomPosterize as RandomPosterize
from packtrain._readers.transforms.colour import RandomSolarize as RandomSolarize
from packtrain._readers.transforms.compose import ColoursOnly as ColoursOnly
from packtrain._readers.transforms.compose import Compose as Compose
from packtrain._readers.transforms.compose import from_timm as from_timm
from packtrain._readers.transforms.erasing import RandomErasing as RandomErasing
from packtrain._readers.transforms.geometric import CenterCrop as CenterCrop
from packtrain._readers.transforms.geometric import Pad as Pad
from packtrain._readers.transforms.geometric import RandomCrop as RandomCrop
from packtrain._readers.transforms.geometric import RandomHorizontalFlip as RandomHorizontalFlip
from packtrain._readers.transforms.geometric import RandomResizedCrop as RandomResizedCrop
from packtrain._readers.transforms.geometric import RandomVerticalFlip as RandomVerticalFlip
from packtrain._readers.transforms.geometric import Resize as Resize
from packtrain._readers.transforms.policies import AutoAugment as AutoAugment
from packtrain._readers.transforms.policies import RandAugment as RandAugment
from packtrain._readers.transforms.policies import TrivialAugmentWide as TrivialAugmentWide
from packtrain._readers.transforms.tensor_steps import ConvertImageDtype as ConvertImageDtype
from packtrain._readers.transforms.tensor_steps import Normalize as Normalize
from packtrain._readers.transforms.tensor_steps import PILToTensor as PILToTensor
from packtrain._readers.transforms.tensor_steps import ToDtype as ToDtype
from packtrain._readers.transforms.tensor_steps import ToImage as ToImage
from packtrain._readers.transforms.tensor_steps import ToPureTensor as ToPureTensor
from packtrain._readers.transforms.tensor_steps import ToTensor as ToTensor
from packtrain._readers.transforms.views import FiveCrop as FiveCrop
from packtrain._readers.transforms.views import TenCrop as TenCrop
from packtrain._readers.transforms.views import Views as Views
from packtrain._readers.transforms.warps import RandomAffine as RandomAffine
from packtrain._readers.transforms.warps import RandomPerspective as RandomPerspective
from packtrain._readers.transforms.warps import RandomRotation as RandomRotation

__all__ = [name for name in dir() if not name.startswith("_")]
