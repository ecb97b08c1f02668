"""Every error that packtrain raises on purpose; `PacktrainError` is the base of all."""

from packtrain._core import errors
from packtrain._core.errors import *  # noqa: F403  # all that are users'

__all__ = [name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)]
