"""Recognises the steps on tensors of torchvision.transforms and torchvision.transforms.v2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..finishing import (
    ConvertImageDtype,
    FinishingStep,
    Normalize,
    PILToTensor,
    RandomErasing,
    ToDtype,
    ToImage,
    ToPureTensor,
    ToTensor,
)
from .makers import Maker, Makers, Recognise, Recognised

V1: Final = "torchvision.transforms"
V2: Final = "torchvision.transforms.v2"


def _plain(make: Callable[..., FinishingStep], *names: str) -> Maker:
    """Makes a step from attributes that have the names and values of its parameters."""

    def maker(given: Any, recognise: Recognise) -> Recognised:
        return (make(**{name: getattr(given, name) for name in names}),)

    return maker


def _normalize(given: Any, recognise: Recognise) -> Recognised:
    # Tensors and arrays too.
    mean, std = (getattr(found, "tolist", lambda found=found: found)() for found in (given.mean, given.std))
    return (Normalize(mean, std, given.inplace),)


def _to_dtype(given: Any, recognise: Recognise) -> Recognised | None:
    # A dict has a dtype for each type of tensor.
    return None if isinstance(given.dtype, dict) else (ToDtype(given.dtype, given.scale),)


def _convert_2(given: Any, recognise: Recognise) -> Recognised:
    return (ToDtype(given.dtype, scale=True),)


def _erasing(given: Any, recognise: Recognise) -> Recognised:
    # Version 2 keeps None for "random".
    value: Any = "random" if given.value is None else given.value
    return (RandomErasing(given.p, given.scale, given.ratio, value, given.inplace),)


MAKERS: Final[Makers] = {
    (V1, "ConvertImageDtype"): _plain(ConvertImageDtype, "dtype"),
    (V1, "Normalize"): _normalize,
    (V1, "PILToTensor"): _plain(PILToTensor),
    (V1, "RandomErasing"): _erasing,
    (V1, "ToTensor"): _plain(ToTensor),
    (V2, "ConvertImageDtype"): _convert_2,
    (V2, "Normalize"): _normalize,
    (V2, "PILToTensor"): _plain(PILToTensor),
    (V2, "RandomErasing"): _erasing,
    (V2, "ToDtype"): _to_dtype,
    (V2, "ToImage"): _plain(ToImage),
    (V2, "ToPureTensor"): _plain(ToPureTensor),
    (V2, "ToTensor"): _plain(ToTensor),
}
