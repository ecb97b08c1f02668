"""Recognises the transforms of torchvision.transforms and torchvision.transforms.v2.

Both versions give the same pixels for PIL images, except where a transform says otherwise. What v2 makes of tensors has
other pixels: pipelines that begin with its ``ToImage`` are not recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from packtrain._core.errors import UsageError

from ..base import Transform, parameters_of
from ..choices import Chain, RandomApply, RandomChoice, RandomOrder
from ..colour import (
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
from ..erasing import RandomErasing
from ..geometric import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from ..policies import AutoAugment, RandAugment, TrivialAugmentWide
from ..tensor_steps import (
    ConvertImageDtype,
    FinishingStep,
    Normalize,
    PILToTensor,
    ToDtype,
    ToImage,
    ToPureTensor,
    ToTensor,
)
from ..warps import RandomAffine, RandomPerspective, RandomRotation
from .makers import Maker, Makers, Recognise, Recognised

V1: Final = "torchvision.transforms"
V2: Final = "torchvision.transforms.v2"


def _same(make: type[Transform | FinishingStep], **fixed: Any) -> Maker:
    """Makes a transform or step from attributes that have the names and values of its parameters."""
    names = [name for name in parameters_of(make) if name not in fixed]

    def maker(given: Any, recognise: Recognise) -> Recognised:
        return (make(**{name: getattr(given, name) for name in names}, **fixed),)

    return maker


def _sequence(given: Any, recognise: Recognise) -> Recognised | None:
    parts: list[Any] = []
    for each in given.transforms:
        known = recognise(each)
        if known is None:
            return None
        parts += known
    return parts


def _parts(given: Any, recognise: Recognise) -> Iterable[Transform]:
    """The transforms to choose from, each as one.

    Raises:
        UsageError: One of them is not known.
    """
    for each in given.transforms:
        known = recognise(each)
        if known is None or not all(isinstance(part, Transform) for part in known):
            raise UsageError(f"{each!r} is not known")
        yield Chain(known) if len(known) != 1 else known[0]  # type: ignore[arg-type, misc]


def _apply(given: Any, recognise: Recognise) -> Recognised:
    return (RandomApply(list(_parts(given, recognise)), given.p),)


def _choice(given: Any, recognise: Recognise) -> Recognised:
    return (RandomChoice(list(_parts(given, recognise)), given.p),)


def _order(given: Any, recognise: Recognise) -> Recognised:
    return (RandomOrder(list(_parts(given, recognise))),)


def _nothing(given: Any, recognise: Recognise) -> Recognised:
    return ()


def _unchanged(given: Any, recognise: Recognise) -> Recognised:
    # Unlike `_nothing`, it does something to tensors, and so must not follow the steps that make them.
    return (Chain(()),)


def _random_crop_2(given: Any, recognise: Recognise) -> Recognised:
    padding = given.padding
    if padding is not None:
        left, right, top, bottom = padding
        padding = (left, top, right, bottom)
        if given.pad_if_needed and given.padding_mode not in ("constant", "edge"):
            raise UsageError("v2 pads once by the sum of both, so that what it reflects is not a reflection itself")
    return (RandomCrop(given.size, padding, given.pad_if_needed, given.fill, given.padding_mode),)


def _normalize(given: Any, recognise: Recognise) -> Recognised:
    # Tensors and arrays too.
    mean, std = (getattr(found, "tolist", lambda found=found: found)() for found in (given.mean, given.std))
    return (Normalize(mean, std, given.inplace),)


def _erasing(given: Any, recognise: Recognise) -> Recognised:
    # Version 2 keeps None for "random".
    value: Any = "random" if given.value is None else given.value
    return (RandomErasing(given.p, given.scale, given.ratio, value, given.inplace),)


def _to_dtype(given: Any, recognise: Recognise) -> Recognised | None:
    # A dict has a dtype for each type of tensor.
    return None if isinstance(given.dtype, dict) else (ToDtype(given.dtype, given.scale),)


_ALIKE: Final[tuple[type[Transform | FinishingStep], ...]] = (
    *(CenterCrop, ColorJitter, GaussianBlur, Grayscale, PILToTensor, Pad, RandomAdjustSharpness, RandomAutocontrast),
    *(RandomEqualize, RandomGrayscale, RandomHorizontalFlip, RandomInvert, RandomPerspective, RandomPosterize),
    *(RandomRotation, RandomSolarize, RandomVerticalFlip, ToTensor),
)
# torchvision antialiases PIL images whatever its transforms say.
_ANTIALIASED: Final = (RandomResizedCrop, Resize)
# The two versions round in different ways.
_VERSIONED: Final = (AutoAugment, RandAugment, RandomAffine, TrivialAugmentWide)
_BOTH: Final[Mapping[str, Maker]] = {
    **{make.__name__: _same(make) for make in _ALIKE},
    **{make.__name__: _same(make, antialias=True) for make in _ANTIALIASED},
    "Compose": _sequence,
    "Normalize": _normalize,
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "RandomErasing": _erasing,
    "RandomOrder": _order,
}

MAKERS: Final[Makers] = {
    **{(package, name): maker for package in (V1, V2) for name, maker in _BOTH.items()},
    **{
        (package, make.__name__): _same(make, version=version)
        for version, package in enumerate((V1, V2), 1)
        for make in _VERSIONED
    },
    (V1, "ConvertImageDtype"): _same(ConvertImageDtype),
    (V1, "RandomCrop"): _same(RandomCrop),
    (V2, "ConvertImageDtype"): _same(ToDtype, scale=True),
    (V2, "Identity"): _nothing,
    (V2, "RGB"): _same(RGB),
    (V2, "RandomCrop"): _random_crop_2,
    (V2, "ToDtype"): _to_dtype,
    (V2, "ToImage"): _same(ToImage),
    (V2, "ToPILImage"): _unchanged,
    (V2, "ToPureTensor"): _same(ToPureTensor),
    ("torch.nn.modules.linear", "Identity"): _nothing,
}
