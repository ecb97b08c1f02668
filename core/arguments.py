"""Checks of arguments. All failures read alike: name, value, and what was expected."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex, TypeVar, cast

from .errors import UsageError
from .paths import local_path
from .suggestions import did_you_mean

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# More of a value does not help to find it in a program.
_SHOWN = 100


def unexpected(name: str, value: object, expected: str) -> UsageError:
    """The error about an argument.

    >>> unexpected("batch_size", "8", "a whole number, at least 1")
    UsageError("batch_size='8': expected a whole number, at least 1")
    """
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}... (an object of type {type(value).__name__})"
    return UsageError(f"{name}={shown}: expected {expected}")


def whole(name: str, value: SupportsIndex, least: int | None = None, most: int | None = None) -> int:
    """A whole number of any type, numpy's for example, but not a bool.

    Raises:
        UsageError: It is something else, less than `least`, or more than `most`.
    """
    limits = ("" if least is None else f", at least {least}") if most is None else f" from {least} to {most}"
    expected = f"a whole number{limits}"
    if isinstance(value, bool):
        raise unexpected(name, value, expected)
    try:
        number = operator.index(value)
    except TypeError:
        raise unexpected(name, value, expected) from None
    if (least is not None and number < least) or (most is not None and number > most):
        raise unexpected(name, value, expected)
    return number


def number(name: str, value: SupportsFloat, least: float, most: float, expected: str) -> float:
    """A number from `least` to `most`.

    Raises:
        UsageError: It is something else.
    """
    try:
        # float("0.5") would be a number, too.
        found = None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        found = None
    if found is None or not least <= found <= most:
        raise unexpected(name, value, expected)
    return found


def flag(name: str, value: object) -> bool:
    """True or False, also numpy's. Nothing else, though Python takes every object for one of them.

    Raises:
        UsageError: It is something else.
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise unexpected(name, value, "True or False")
    return bool(value)


def function(name: str, value: Callable[..., T] | None) -> Callable[..., T] | None:
    """A function, or None.

    Raises:
        UsageError: It is something else.
    """
    if value is not None and not callable(value):
        raise unexpected(name, value, "a function")
    return value


def instance(name: str, value: object, kind: type[T], *texts: str) -> T:
    """An object of a class. The message names `texts` too: the caller takes each of them for such an object.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(value, kind):
        others = f" or one of {', '.join(texts)}" if texts else ""
        raise unexpected(name, value, f"a {kind.__name__}{others}")
    return value


def path_of(name: str, value: object) -> Path:
    """A path of this machine, given as a text or as a path.

    Raises:
        UsageError: It is something else, empty, or a URL.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise unexpected(name, value, "a path; `.` is the working folder")
    return local_path(text)


def choice(name: str, value: object, choices: Iterable[str]) -> str:
    """One of several names.

    Raises:
        UsageError: It is something else.
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        similar = did_you_mean(value, known) if isinstance(value, str) else ""
        raise unexpected(name, value, f"one of {', '.join(known)}{similar}")
    return value


def items(name: str, value: Iterable[T], expected: str) -> list[T]:
    """The items of a list, tuple or other iterable; a string counts as a single item, and is not one.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise unexpected(name, value, expected)
    return list(value)


def refuse_unknown(
    function: str, unknown: Iterable[str], known: Iterable[str], options: Mapping[str, type] | None = None
) -> None:
    """Refuses keyword arguments that a function does not have.

    Args:
        function: Name of the function.
        unknown: Names of the arguments.
        known: Names of those that it has.
        options: For each of these that takes an object with further options, the class of that object.

    Raises:
        UsageError: There is one.
    """
    known, options = list(known), options or {}
    for name in unknown:
        guess = did_you_mean(name, known)
        for argument, kind in options.items():
            inner = vars(kind)["__dataclass_fields__"]
            if name in inner:
                guess = f": write {argument}={kind.__name__}({name}=...)"
            elif not guess and (found := did_you_mean(name, inner)):
                guess = f"{found} It belongs in {argument}={kind.__name__}(...)"
        raise UsageError(f"{function} has no argument {name!r}{guess}")


def checks_names(**options: type) -> Callable[[F], F]:
    """Makes a public function or class refuse unknown arguments: of names with a guess what was meant, or too many.

    Python's own error is a ``TypeError`` without either. The signature, the docstring and the types stay as they are.

    Args:
        options: For each argument that takes an object with further options, the class of that object.
    """

    def decorated(target: F) -> F:
        made: Any = target
        call = vars(made)["__init__"] if isinstance(made, type) else made
        # All but `self`.
        first, code = int(call is not made), call.__code__
        known = code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount]
        unnamed = known[: code.co_argcount - first]

        @functools.wraps(call)
        def checked(*arguments: Any, **named: Any) -> Any:
            refuse_unknown(made.__name__, [name for name in named if name not in known], known, options)
            if (given := len(arguments) - first) > len(unnamed):
                most = f"at most {len(unnamed)} argument(s) without a name ({', '.join(unnamed)})"
                raise UsageError(f"{made.__name__} takes {most}, and {given} are given")
            return call(*arguments, **named)

        if call is made:
            return cast(F, checked)
        made.__init__ = checked
        return target

    return decorated
