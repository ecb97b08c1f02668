"""JSON lines: an object on each line, whose keys are the columns."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from packtrain._codec.values import decode_json
from packtrain._core.errors import UsageError

from .cells import kind_of
from .rows import BadRow, Row, columns_of, shown, start_of_text
from .suggestions import Remedy

_SAMPLED_LINES: Final = 100
_HEAD: Final = 1 << 20
_OF_OBJECTS: Final = re.compile(r'\s*(?:\{\s*("(?:[^"\\]|\\.)*")\s*:\s*)?\[\s*\{')
"""The beginning of a JSON document that is a list of objects, or has one under its first key."""


class JsonLines:
    """The rows of such a text. A key that a line lacks is a missing value, like null.

    Args:
        text: Content of the list, in UTF-8.
        name: Name of the list, for messages.
        wanted: Keys of the columns to read.

    Attributes:
        sha256: SHA-256 of the text, in hexadecimal digits.

    Raises:
        ListError: The text is empty.
    """

    def __init__(self, text: bytes, name: str, wanted: Sequence[str]) -> None:
        self.sha256 = hashlib.sha256(text).hexdigest()
        self._text = text
        self._name = name
        self._wanted = wanted
        self._start = start_of_text(text, name)

    def __iter__(self) -> Iterator[Row | BadRow]:
        """Yields all rows that are not blank.

        Raises:
            UsageError: None of them has one of the columns; this is known only at the end.
        """
        unseen, sound = set(self._wanted), False
        for line, place, found, doubts in self._objects():
            if isinstance(found, str):
                yield BadRow(line, shown(self._line(place)), found)
                continue
            sound = True
            if unseen:
                unseen -= found.keys()
            values = [found.get(key) for key in self._wanted]
            if doubts and (doubt := _doubt(values)) is not None:
                yield BadRow(line, shown(self._line(place)), str(doubt))
            else:
                yield Row(line, place, values)
        if sound and unseen:
            columns_of(self.sample()[0], [key for key in self._wanted if key in unseen], self._name)

    def values(self, place: int) -> list[Any]:
        """Returns the values of the wanted columns on the sound line at `place`."""
        found, _ = _read(self._line(place))
        return [found.get(key) for key in self._wanted]

    def place_of_column(self, wanted: int) -> None:
        """Returns None: keys may stand anywhere on a line."""

    def sample(self) -> tuple[list[str], list[str]]:
        """The keys on the first lines, and the first value of each as a text."""
        sample = (found for *_, found, _ in islice(self._objects(), _SAMPLED_LINES) if isinstance(found, dict))
        values: dict[str, Any] = {}
        for found in sample:
            values = found | {name: value for name, value in values.items() if value is not None}
        return list(values), [json.dumps(value, default=str).strip('"') for value in values.values()]

    def _objects(self) -> Iterator[tuple[int, int, dict[str, Any] | str, bool]]:
        """Yields number, place and object of each line, or what is wrong with it; and whether it holds doubts."""
        line, place = 0, self._start
        while place < len(self._text):
            text = self._line(place)
            if text.strip():
                yield line, place, *_object(text)
            line, place = line + 1, place + len(text) + 1

    def _line(self, place: int) -> bytes:
        stop = self._text.find(b"\n", place)
        return self._text[place:] if stop < 0 else self._text[place:stop]


def _object(line: bytes) -> tuple[dict[str, Any] | str, bool]:
    """The object on a line, or what is wrong with it; and whether it holds doubts."""
    try:
        found, doubts = _read(line)
    except UnicodeDecodeError as error:
        return f"the line is not encoded in UTF-8 (byte {error.start})", False
    except ValueError as error:
        return f"the line is not JSON ({error})", False
    return (found, doubts) if isinstance(found, dict) else (f"expected an object, found {kind_of(found)}", False)


def _read(line: bytes) -> tuple[Any, bool]:
    """The value on a line, and whether it may hold doubts: in columns that nobody asked for, these do not count."""
    try:
        return decode_json(line, nan=True), False
    except json.JSONDecodeError:
        raise
    except ValueError:
        return decode_json(line, nan=True, doubts=True), True


def _doubt(value: Any) -> ValueError | None:
    """The first doubt in a value, see `decode_json`."""
    if isinstance(value, ValueError):
        return value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(_doubt, inside)), None)


def require_lines(source: Path, text: bytes) -> None:
    """Refuses JSON that is not written line by line; the message has what jq makes lines of it.

    Raises:
        UsageError: It is one document, or values of several lines each.
    """
    head = text[:_HEAD].removeprefix(BOM_UTF8).decode(errors="replace")
    line, _, rest = head.lstrip().partition("\n")
    if _ends(line) == len(line.rstrip()) and rest.strip():
        return
    if (end := _ends(head.lstrip())) is not None and head.lstrip()[end:].strip():
        why, command = "has values of several lines each, but a list has", "."
    else:
        found = _OF_OBJECTS.match(head)
        why, command = "is one JSON document, but a list has", f".{found[1] or ''}[]" if found else ""
    remedy = Remedy(f"{source} {why} an object on each line", f"jq -c {shlex.quote(command)}" if command else "")
    raise UsageError(remedy.text(source))


def no_objects(source: Path, text: bytes) -> UsageError:
    """The error about JSON lines of which none is an object."""
    first = next(row for row in JsonLines(text, source.name, ()) if isinstance(row, BadRow))
    return UsageError(f"{source}: line {first.line}: {first.reason}, but a list has an object on each line")


def _ends(text: str) -> int | None:
    """The end of the JSON value with which a text begins; None if it does not end there."""
    try:
        return json.JSONDecoder().raw_decode(text)[1]
    except (ValueError, RecursionError):
        return None


def starts_with_object(text: bytes) -> bool:
    """True if the first line of a text is an object, as in JSON lines."""
    line = text[: text.find(b"\n") + 1 or len(text)].removeprefix(BOM_UTF8).strip()
    return line.startswith(b"{") and isinstance(_object(line)[0], dict)
