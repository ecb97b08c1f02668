"""Recognises transforms of other libraries by class and parameters, so that pipelines can be pasted as they are.

Classes are known by module and name, so that no library is imported for this. A subclass may do something else, so only
the class itself is recognised; nor is an object that was given methods or hooks of its own.
"""

from __future__ import annotations

from typing import Any, Final

from packtrain._core.errors import UsageError

from ..base import Transform
from ..tensor_steps import FinishingStep
from . import timm, torchvision
from .makers import Makers, Recognised

# A library's modules are its own affair where its classes are known by the name of a package.
_PACKAGES: Final = (torchvision.V2, torchvision.V1)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
_MAKERS: Final[Makers] = {**timm.MAKERS, **torchvision.MAKERS}


def recognised(transform: Any) -> Recognised | None:
    """Return packtrain's transforms that do the same; None if the transform is not known, or was changed.

    packtrain's transforms are recognised as themselves.
    """
    if isinstance(transform, Transform | FinishingStep):
        return (transform,)
    maker = _MAKERS.get(class_of(transform))
    try:
        return None if maker is None or _is_changed(transform) else maker(transform, recognised)
    except (UsageError, AttributeError):
        # Parameters that are not ours, or that another version of the library calls otherwise.
        return None


def _is_changed(transform: Any) -> bool:
    """True if an object was given methods of its own or hooks, so that it may do something else than its class."""
    own = getattr(transform, "__dict__", {})
    methods = any(callable(value) and hasattr(type(transform), name) for name, value in own.items())
    return methods or any(own.get(hooks) for hooks in _HOOKS)


def class_of(transform: Any) -> tuple[str, str]:
    """Module and name of an object's class; for torchvision's transforms, the package they are imported from."""
    kind = type(transform)
    inside = (name for name in _PACKAGES if kind.__module__ == name or kind.__module__.startswith(f"{name}."))
    return next(inside, kind.__module__), kind.__name__
