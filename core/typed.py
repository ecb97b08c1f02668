"""Checks what JSON gave against the type hints of frozen dataclasses.

Whoever wrote a document may have written anything, and its checksum with it. So nothing of a document is used before
each of its values has the type, the range and the form that the dataclass says:

    @dataclass(frozen=True)
    class Shard:
        name: Annotated[str, Form(r"[a-z]+", "a name of letters a to z")]
        bytes: Annotated[int, Between(0, MOST)]

    parse(tuple[Shard, ...], [{"name": "a", "bytes": "x"}])   # Mismatch: [0].bytes: expected a whole number from 0, ...

Known are bool, int, float, str, None, unions, ``tuple[X, ...]``, dataclasses (objects with exactly these keys), and
``Annotated`` with one `Between`, `Form`, `OneOf` or `Spelled`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NoReturn, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import PacktrainError

T = TypeVar("T")
Parser = Callable[[Any], Any]
MOST: Final = (1 << 62) - 1
"""The largest count, size or offset in any document: sums of several still fit 64 bits."""
_SHOWN: Final = 40
_NAMES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}


class Mismatch(ValueError):
    """A value that does not have the form it should have; the message says where it is, as in ``shards[3].bytes``."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def inside(self, part: str) -> Mismatch:
        """The same, seen from the value around it: `part` is ``.key`` or ``[number]``."""
        return type(self)(self.problem, part + self.path)

    def __str__(self) -> str:
        return f"{self.path.removeprefix('.')}: {self.problem}" if self.path else self.problem


class UnknownKey(Mismatch):
    """An object has a key that its dataclass does not know."""


@dataclass(frozen=True)
class Between:
    """A number within these limits, both included."""

    least: int
    most: int

    def parser(self) -> Parser:
        """Reads such a number."""
        least, most = self.least, self.most
        expected = f"a whole number from {least}" if most == MOST else f"a whole number from {least} to {most}"
        return lambda value: value if type(value) is int and least <= value <= most else _refuse(expected, value)


@dataclass(frozen=True)
class Form:
    """A text that matches a regular expression as a whole, in words `expected`."""

    pattern: str
    expected: str

    def parser(self) -> Parser:
        """Reads such a text."""
        matches = re.compile(self.pattern).fullmatch
        return lambda value: value if type(value) is str and matches(value) else _refuse(self.expected, value)


@dataclass(frozen=True)
class OneOf:
    """One of these texts."""

    known: tuple[str, ...]

    def parser(self) -> Parser:
        """Reads one of the texts."""
        expected = f"one of {', '.join(self.known)}"
        return lambda value: value if type(value) is str and value in self.known else _refuse(expected, value)


@dataclass(frozen=True)
class Spelled:
    """A value that the document spells as a text; `parse` makes it, or raises one of packtrain's errors."""

    parse: Callable[[str], Any]

    def parser(self) -> Parser:
        """Reads the text, and makes the value."""
        text = _parser(str)

        def read(value: Any) -> Any:
            try:
                return self.parse(text(value))
            except PacktrainError as error:
                raise Mismatch(str(error)) from error

        return read


def parse(kind: type[T], value: object) -> T:
    """Makes a `kind` of plain values: dicts, lists, texts, numbers, booleans and None.

    Raises:
        Mismatch: They do not have the form that the type hints say.
    """
    plain: Any = kind
    found: T = _parser(plain)(value)
    return found


def parse_json(kind: type[T], text: str | bytes) -> T:
    """Makes a `kind` of a JSON text.

    Raises:
        Mismatch: The text is not JSON, or does not have the form that the type hints say.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mismatch(f"not JSON ({error})") from error
    return parse(kind, value)


def is_count(value: object) -> TypeGuard[int]:
    """True for a whole number from 0 to `MOST`."""
    return type(value) is int and 0 <= value <= MOST


@functools.cache
def _parser(kind: Any) -> Parser:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        parser: Parser = inner[1].parser()
        return parser
    if origin in (Union, UnionType):
        (other,) = (_parser(each) for each in inner if each is not NoneType)
        return lambda value: None if value is None else other(value)
    if origin is tuple and inner[1:] == (...,):
        return _tuple(_parser(inner[0]))
    if is_dataclass(kind):
        return _dataclass(kind)
    if kind in _NAMES:
        # Not isinstance: True is an int for Python.
        return lambda value: value if type(value) is kind else _refuse(_NAMES[kind], value)
    raise TypeError(f"{kind} is not a type that a document can hold")


def _tuple(read_one: Parser) -> Parser:
    def read(value: Any) -> Any:
        if type(value) is not list:
            _refuse("a list", value)
        result: list[Any] = []
        for item in value:
            try:
                result.append(read_one(item))
            except Mismatch as error:
                raise error.inside(f"[{len(result)}]") from None
        return tuple(result)

    return read


def _dataclass(kind: Any) -> Parser:
    hints = get_type_hints(kind, include_extras=True)
    parsers = [(field.name, _parser(hints[field.name])) for field in fields(kind)]
    names = {name for name, _ in parsers}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            _refuse("an object", value)
        if value.keys() != names:
            lacking, unknown = sorted(names - value.keys()), sorted(value.keys() - names)
            if lacking:
                raise Mismatch(f"has no key {_shown(lacking[0])}")
            raise UnknownKey(f"has an unknown key {_shown(unknown[0])}")
        found = {}
        for name, read_field in parsers:
            try:
                found[name] = read_field(value[name])
            except Mismatch as error:
                raise error.inside(f".{name}") from None
        try:
            return kind(**found)
        except PacktrainError as error:
            raise Mismatch(str(error)) from error

    return read


def _refuse(expected: str, found: object) -> NoReturn:
    raise Mismatch(f"expected {expected}, found {_shown(found)}")


def _shown(value: object) -> str:
    """A value in a few characters, none of which can disturb a terminal."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return json.dumps(value, default=lambda value: type(value).__name__)
