"""Imports torchvision, even next to a build of torch that it was not compiled for."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

_OPERATORS: Final = ("nms", "qnms", "roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
_LIBRARIES: list[object] = []
"""Keeps the declared operators: they vanish with the library object that declared them."""


def import_torchvision() -> Any:
    """Returns the module `torchvision`.

    A torchvision that was compiled for another build of torch cannot load its C++ operators, and without their schemas
    it refuses to be imported. No transform calls any of them, so here they are only declared.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        import torch

        sys.modules.pop("torchvision", None)
        untyped: Any = torch.library
        library = untyped.Library("torchvision", "DEF")
        for name in _OPERATORS:
            library.define(f"{name}() -> Tensor")
            library.define(f"_{name}_backward() -> Tensor")
        _LIBRARIES.append(library)
        return importlib.import_module("torchvision")
