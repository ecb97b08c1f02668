"""Recognises the transforms of torchvision.transforms and torchvision.transforms.v2.

Both versions give the same pixels for PIL images, except where a transform says otherwise. What v2 makes of tensors has
other pixels: pipelines that begin with its ``ToImage`` are not recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from packtrain._core.errors import UsageError

from .. import choices, colour, erasing, geometric, policies, tensor_steps, warps
from ..base import Transform, parameters_of
from ..tensor_steps import FinishingStep
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
        yield choices.joined(known)  # type: ignore[arg-type]


def _of_several(make: Callable[..., Transform], *options: str) -> Maker:
    """Makes a choice among the transforms of another one, with some of its attributes."""

    def maker(given: Any, recognise: Recognise) -> Recognised:
        return (make(list(_parts(given, recognise)), *(getattr(given, name) for name in options)),)

    return maker


def _nothing(given: Any, recognise: Recognise) -> Recognised:
    return ()


def _unchanged(given: Any, recognise: Recognise) -> Recognised:
    # Unlike `_nothing`, it does something to tensors, and so must not follow the steps that make them.
    return (choices.Chain(()),)


def _random_crop_2(given: Any, recognise: Recognise) -> Recognised:
    padding = given.padding
    if padding is not None:
        left, right, top, bottom = padding
        padding = (left, top, right, bottom)
        if given.pad_if_needed and given.padding_mode not in ("constant", "edge"):
            raise UsageError("v2 pads once by the sum of both, so that what it reflects is not a reflection itself")
    return (geometric.RandomCrop(given.size, padding, given.pad_if_needed, given.fill, given.padding_mode),)


def _normalize(given: Any, recognise: Recognise) -> Recognised:
    # Tensors and arrays too.
    mean, std = (getattr(found, "tolist", lambda found=found: found)() for found in (given.mean, given.std))
    return (tensor_steps.Normalize(mean, std, given.inplace),)


def _erasing(given: Any, recognise: Recognise) -> Recognised:
    # Version 2 keeps None for "random".
    value: Any = "random" if given.value is None else given.value
    return (erasing.RandomErasing(given.p, given.scale, given.ratio, value, given.inplace),)


def _to_dtype(given: Any, recognise: Recognise) -> Recognised | None:
    # A dict has a dtype for each type of tensor.
    return None if isinstance(given.dtype, dict) else (tensor_steps.ToDtype(given.dtype, given.scale),)


_ALIKE: Final[tuple[type[Transform | FinishingStep], ...]] = (
    *(geometric.CenterCrop, geometric.Pad, geometric.RandomHorizontalFlip, geometric.RandomVerticalFlip),
    *(colour.ColorJitter, colour.GaussianBlur, colour.Grayscale, colour.RandomAdjustSharpness),
    *(colour.RandomAutocontrast, colour.RandomEqualize, colour.RandomGrayscale, colour.RandomInvert),
    *(colour.RandomPosterize, colour.RandomSolarize, warps.RandomPerspective, warps.RandomRotation),
    *(tensor_steps.PILToTensor, tensor_steps.ToTensor),
)
# torchvision antialiases PIL images whatever its transforms say.
_ANTIALIASED: Final = (geometric.RandomResizedCrop, geometric.Resize)
# The two versions round in different ways.
_VERSIONED: Final = (policies.AutoAugment, policies.RandAugment, warps.RandomAffine, policies.TrivialAugmentWide)
RUN: Final = (*_ALIKE, *_ANTIALIASED, *_VERSIONED, geometric.RandomCrop)
"""Those of packtrain that have the name and the parameters of torchvision's."""
_BOTH: Final[Mapping[str, Maker]] = {
    **{make.__name__: _same(make) for make in _ALIKE},
    **{make.__name__: _same(make, antialias=True) for make in _ANTIALIASED},
    "Compose": _sequence,
    "Normalize": _normalize,
    "RandomApply": _of_several(choices.RandomApply, "p"),
    "RandomChoice": _of_several(choices.RandomChoice, "p"),
    "RandomErasing": _erasing,
    "RandomOrder": _of_several(choices.RandomOrder),
}

MAKERS: Final[Makers] = {
    **{(package, name): maker for package in (V1, V2) for name, maker in _BOTH.items()},
    **{
        (package, make.__name__): _same(make, version=version)
        for version, package in enumerate((V1, V2), 1)
        for make in _VERSIONED
    },
    (V1, "ConvertImageDtype"): _same(tensor_steps.ConvertImageDtype),
    (V1, "RandomCrop"): _same(geometric.RandomCrop),
    (V2, "ConvertImageDtype"): _same(tensor_steps.ToDtype, scale=True),
    (V2, "Identity"): _nothing,
    (V2, "RGB"): _same(colour.RGB),
    (V2, "RandomCrop"): _random_crop_2,
    (V2, "ToDtype"): _to_dtype,
    (V2, "ToImage"): _same(tensor_steps.ToImage),
    (V2, "ToPILImage"): _unchanged,
    (V2, "ToPureTensor"): _same(tensor_steps.ToPureTensor),
    ("torch.nn.modules.linear", "Identity"): _nothing,
}
