"""Checks of the arguments of public functions, so that a wrong one ends in a message and not in a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from .errors import UsageError
from .suggestions import did_you_mean


def require(name: str, value: int, least: int, most: int | None = None) -> int:
    """Checks that an argument is a whole number, and returns it.

    Raises:
        UsageError: It is not, or it is less than `least` or more than `most`.
    """
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f", at least {least}" if most is None else f" from {least} to {most}"
        raise UsageError(f"{name}={value!r}: expected a whole number{limits}")
    return value


def require_one_of(name: str, value: Any, known: Collection[str]) -> None:
    """Checks that an argument is one of the texts in `known`.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r}: expected one of {', '.join(known)}")
    if value not in known:
        raise UsageError(f"{name} {value!r}: expected one of {', '.join(known)}{did_you_mean(value, known)}")


def require_type(name: str, value: Any, kind: type) -> None:
    """Checks that an argument is a `kind`.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{name}={value!r}: expected a {kind.__name__}")


def require_functions(**functions: Callable[..., Any] | None) -> None:
    """Checks that arguments are functions or None.

    Raises:
        UsageError: One of them is something else.
    """
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UsageError(f"{name}={function!r}: expected a function")


def path_of(name: str, value: str | os.PathLike[str]) -> Path:
    """The path that an argument stands for.

    Raises:
        UsageError: It is not a path.
    """
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name}={value!r}: expected a path")
    return Path(value)
