"""The steps of a pipeline that are called with images instead of being fused, and what would be faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .base import Transform
from .compose import Compose, name_of
from .views import Views


class Unfused(NamedTuple):
    """The steps that are not fused.

    Attributes:
        steps: Names of the steps that are called with PIL images or arrays, each once.
        remedy: What would be faster; empty if nothing is known.
    """

    steps: tuple[str, ...] = ()
    remedy: str = ""


def unfused(transforms: Iterable[Compose | Views]) -> Unfused:
    """Return what is not fused in some transforms.

    Args:
        transforms: The transforms of a dataset, or of several.
    """
    parts = [part for each in transforms for part in (each.views if isinstance(each, Views) else (each,))]
    steps = dict.fromkeys(name_of(step) for part in parts for step in part.foreign)
    remedies = dict.fromkeys(filter(None, map(_remedy, parts)))
    return Unfused(tuple(steps), next(iter(remedies), ""))


def _remedy(transform: Compose) -> str:
    if not transform.foreign:
        return ""
    first = transform.foreign[0]
    if displaced := tuple(dict.fromkeys(name_of(each) for each in transform.displaced if each is not first)):
        return f"{' and '.join(displaced)} in front of {name_of(first)}"
    if name_of(first) in set(_names(Transform)):
        return f"packtrain.transforms.{name_of(first)} in place of {type(first).__module__}'s"
    return f"a faster {name_of(first)}"


def _names(kind: type[Any]) -> Iterator[str]:
    """Names of the transforms that packtrain has."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("packtrain."):
            yield each.__name__
        yield from _names(each)
