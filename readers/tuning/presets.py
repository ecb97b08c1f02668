"""Transforms that go by a name on a command line. Free of torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from packtrain._core.errors import UsageError
from packtrain._core.suggestions import did_you_mean

from ..transforms.geometric import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, compose

_MODULE: Final = "packtrain.transforms"
# What is common for evaluation: 256 before a crop of 224.
_BEFORE_CROP: Final = 256 / 224


@dataclass(frozen=True)
class Preset:
    """A transform, and how to write it in a program.

    Attributes:
        transform: For `open_dataset`.
        expression: Python for it; None if there is no transform.
        imports: What the expression needs: "from MODULE import NAMES"; None if nothing.
    """

    transform: Any
    expression: str | None
    imports: str | None


def _rrc(size: int) -> tuple[list[Any], str]:
    return [RandomResizedCrop(size), RandomHorizontalFlip()], f"[RandomResizedCrop({size}), RandomHorizontalFlip()]"


def _center(size: int) -> tuple[list[Any], str]:
    whole = round(size * _BEFORE_CROP)
    return [Resize(whole), CenterCrop(size)], f"[Resize({whole}), CenterCrop({size})]"


def _crop(size: int) -> tuple[list[Any], str]:
    made: list[Any] = [RandomCrop(size, pad_if_needed=True), RandomHorizontalFlip()]
    return made, f"[RandomCrop({size}, pad_if_needed=True), RandomHorizontalFlip()]"


_MAKERS: Final[dict[str, Callable[[int], tuple[list[Any], str]]]] = {"rrc": _rrc, "center": _center, "crop": _crop}

NAMES: Final = "rrc224, center224, crop224 (with any size), none, or module:attribute"
"""For people: what `preset` knows."""


def preset(name: str) -> Preset:
    """The transform called `name`.

    Args:
        name: ``"rrc224"``: RandomResizedCrop and a flip, for training; ``"center224"``: Resize to 256 and CenterCrop,
            for evaluation; ``"crop224"``: RandomCrop (smaller images are padded) and a flip. Any other size in place of
            224. ``"none"``: images as they are stored. ``"module:attribute"``: whatever `open_dataset` takes.

    Raises:
        UsageError: There is none of this name, or it cannot be imported.
    """
    if name == "none":
        return Preset(None, None, None)
    if ":" in name:
        return _imported(name)
    found = re.fullmatch(r"([a-z]+)([1-9]\d{0,4})", name)
    if not found or found[1] not in _MAKERS:
        hint = did_you_mean(name, [*(f"{kind}224" for kind in _MAKERS), "none"])
        raise UsageError(f"transform {name!r}: expected {NAMES}{hint}")
    made, expression = _MAKERS[found[1]](int(found[2]))
    names = ", ".join(sorted(type(each).__name__ for each in made))
    return Preset(made, expression, f"from {_MODULE} import {names}")


def _imported(name: str) -> Preset:
    module, _, attribute = name.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"transform {name!r}: expected module:attribute, such as my_package.transforms:train")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"transform {name!r} cannot be imported ({error}): is its folder in PYTHONPATH?") from error
    compose(found)
    return Preset(found, attribute, f"from {module} import {attribute}")
