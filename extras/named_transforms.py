"""Transforms by the names that a command line has for them. Does not import torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from packtrain._core.arguments import unexpected
from packtrain._core.errors import UsageError
from packtrain._core.suggestions import did_you_mean
from packtrain._readers.transforms.compose import compose
from packtrain._readers.transforms.geometric import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

_NAMES: Final = "rrc224, center224, crop224 (with any size), none, or module:attribute"
_PUBLIC_MODULE: Final = "packtrain.transforms"
"""The module from which users import transforms."""
_RESIZE_TO_CROP: Final = 256 / 224
"""The usual ratio for evaluation: resize to 256, crop 224."""


@dataclass(frozen=True)
class NamedTransform:
    """A transform and the Python that makes it.

    Attributes:
        transform: The transform, as `open_dataset` takes it; None leaves images as they are stored.
        expression: Python expression that makes the transform; None if there is no transform.
        imports: Import statement that `expression` needs; None if it needs none.
    """

    transform: Any
    expression: str | None
    imports: str | None


def _rrc(size: int) -> tuple[list[Any], str]:
    return [RandomResizedCrop(size), RandomHorizontalFlip()], f"[RandomResizedCrop({size}), RandomHorizontalFlip()]"


def _center(size: int) -> tuple[list[Any], str]:
    resized = round(size * _RESIZE_TO_CROP)
    return [Resize(resized), CenterCrop(size)], f"[Resize({resized}), CenterCrop({size})]"


def _crop(size: int) -> tuple[list[Any], str]:
    transform: list[Any] = [RandomCrop(size, pad_if_needed=True), RandomHorizontalFlip()]
    return transform, f"[RandomCrop({size}, pad_if_needed=True), RandomHorizontalFlip()]"


_MAKERS: Final[dict[str, Callable[[int], tuple[list[Any], str]]]] = {"rrc": _rrc, "center": _center, "crop": _crop}


def named_transform(name: str) -> NamedTransform:
    """Return the transform of a name.

    Args:
        name: ``"rrc224"``: `RandomResizedCrop` and a flip, for training. ``"center224"``: `Resize` to 256 and
            `CenterCrop`, for evaluation. ``"crop224"``: `RandomCrop`, which pads smaller images, and a flip. All three
            take any other size in place of 224. ``"none"``: images as they are stored. ``"module:attribute"``:
            anything that `open_dataset` takes.

    Raises:
        UsageError: There is no transform of this name, or it cannot be imported.
    """
    if name == "none":
        return NamedTransform(None, None, None)
    if ":" in name:
        return _imported(name)
    found = re.fullmatch(r"([a-z]+)([1-9]\d{0,4})", name)
    if not found or found[1] not in _MAKERS:
        hint = did_you_mean(name, [*(f"{kind}224" for kind in _MAKERS), "none"])
        raise unexpected("transform", name, f"{_NAMES}{hint}")
    transform, expression = _MAKERS[found[1]](int(found[2]))
    classes = ", ".join(sorted(type(each).__name__ for each in transform))
    return NamedTransform(transform, expression, f"from {_PUBLIC_MODULE} import {classes}")


def _imported(name: str) -> NamedTransform:
    module, _, attribute = name.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise unexpected("transform", name, "module:attribute, such as my_package.transforms:train")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"transform {name!r} cannot be imported ({error}): is its folder in PYTHONPATH?") from error
    compose(found)
    return NamedTransform(found, attribute, f"from {module} import {attribute}")
