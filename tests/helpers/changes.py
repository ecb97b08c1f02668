"""Transforms that are set while workers are running. A module of its own, because workers import it by name."""

from __future__ import annotations

import os
from typing import Any

from PIL.Image import Image


class Unreadable:
    """Can be pickled, but not unpickled by a process that was forked before."""

    def __call__(self, image: Image) -> Image:
        return image

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> Unreadable:
    raise ImportError("a module that was not there when the workers were started")


class Refusing:
    """A transform that fails."""

    def __call__(self, image: Image) -> Image:
        raise ValueError("no, thank you")


class Halting:
    """A transform that ends its process."""

    def __call__(self, image: Image) -> Image:
        os._exit(3)
